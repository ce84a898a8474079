"""The report that a signal asks for."""

import os
import select
import signal
import threading

import pytest

import dali_storage
from dali_storage.observing import meter, signals
from dali_storage.observing.meter import Meter, OpenReaders
from tests.kit.process import SECONDS, wait_until
from tests.observing.test_stalls import held, stream

SIGNAL = signal.SIGUSR2


@pytest.fixture(autouse=True)
def handler():
    """The handler of the signal is restored."""
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)


@pytest.fixture
def watchdog(monkeypatch):
    monkeypatch.setattr(meter, "OPEN", watchdog := OpenReaders())
    return watchdog


def test_a_signal_prints_the_report(watchdog, capfd):
    dali_storage.report_on(SIGNAL)
    watchdog.add(Meter("R", "a \udcff"))
    signal.raise_signal(SIGNAL)
    assert capfd.readouterr().err == dali_storage.report()
    assert "a \\udcff: no batches\n" in dali_storage.report()


def test_a_signal_is_answered_while_a_batch_is_awaited_and_locks_are_held(watchdog, monkeypatch):
    opened, printed = [], []
    end, begin = os.pipe()
    monkeypatch.setattr(signals, "_STDERR", begin)
    source = stream(held(opened))
    source.start(device_id=None)

    def ask():
        wait_until(lambda: "asking: waiting" in dali_storage.report())
        wait_until(lambda: "R:0: reading for" in dali_storage.report())
        with watchdog._lock, source._prefetcher._lanes._lock:
            os.kill(os.getpid(), SIGNAL)
            ready, _, _ = select.select([end], [], [], SECONDS)
            printed.extend(os.read(it, 10**6).decode() for it in ready)
        opened[0].go.set()

    dali_storage.report_on(SIGNAL)
    asker = threading.Thread(target=ask)
    asker.start()
    source.batch()
    asker.join(SECONDS)
    source.close()
    os.close(begin)
    os.close(end)
    assert "R:0: reading for" in printed[0]
    assert "R:asking: waiting for" in printed[0]


def test_a_handler_that_was_there_is_called_after_the_report_and_each_once(watchdog, capfd):
    called = []
    signal.signal(SIGNAL, lambda number, frame: called.append((number, capfd.readouterr().err)))
    dali_storage.report_on(SIGNAL)
    dali_storage.report_on(SIGNAL)
    signal.raise_signal(SIGNAL)
    assert called == [(SIGNAL, dali_storage.report())]


def test_a_report_that_fails_does_not_disturb_the_program(watchdog, monkeypatch, capfd):
    dali_storage.report_on(SIGNAL)
    watchdog.readers = None
    signal.raise_signal(SIGNAL)
    assert capfd.readouterr().err == ""
    watchdog.reset()
    monkeypatch.setattr(signals, "_STDERR", 10**6)  # it is closed
    signal.raise_signal(SIGNAL)


@pytest.fixture
def full_pipe(monkeypatch):
    """The standard error stream is a pipe that is full and does not block; returns its end."""
    end, begin = os.pipe()
    os.set_blocking(begin, False)
    filled = os.write(begin, bytes(10**7))
    monkeypatch.setattr(signals, "_STDERR", begin)
    yield end, filled
    os.close(begin)
    os.close(end)


def test_a_report_is_written_whole_to_a_pipe_that_takes_it_by_and_by(watchdog, full_pipe):
    end, left = full_pipe
    watchdog.add(Meter("R", "x" * 200_000))
    text, found = dali_storage.report().encode(), []

    def drain():
        while sum(map(len, found)) < left + len(text):
            found.append(os.read(end, 999))

    drained = threading.Thread(target=drain)
    drained.start()
    dali_storage.report_on(SIGNAL)
    signal.raise_signal(SIGNAL)
    drained.join()  # or there is more to come
    assert b"".join(found)[left:] == text


def test_a_pipe_that_nobody_reads_does_not_hold_the_program(watchdog, full_pipe, monkeypatch):
    monkeypatch.setattr(signals, "_PATIENCE", 1)
    dali_storage.report_on(SIGNAL)
    signal.raise_signal(SIGNAL)
    assert len(os.read(full_pipe[0], 10**7)) == full_pipe[1]
