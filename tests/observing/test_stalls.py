"""Readers that hang: the warnings of their watchdog, and the report of all readers."""

import os
import re
import subprocess
import sys
import threading
from functools import partial
from math import inf
from queue import SimpleQueue

import pytest

import dali_storage
from dali_storage.observing import meter, reporting, stalls
from dali_storage.observing.meter import Meter, OpenReaders, Timed
from dali_storage.reading.opening import Opening
from dali_storage.reading.source import BatchStream
from dali_storage.runtime.histogram import Times
from dali_storage.samples.discovery import from_files
from tests.kit.paths import ROOT
from tests.kit.process import SECONDS, refuse_thread, status_of_fork, wait_until
from tests.kit.stand_ins import Recorder, backend

SOON = 0.05  # seconds


class Clock:
    def __init__(self) -> None:
        self.now = 10**12

    def __call__(self) -> int:
        return self.now

    def turn(self, seconds):
        self.now += round(1e9 * seconds)


class Alone(OpenReaders):
    """Of one test."""

    def __init__(self) -> None:
        self.warnings = SimpleQueue[str]()
        super().__init__(self.warnings.put)

    def warning(self, pattern, then=lambda: None):
        """The first warning of this kind; others may come on a busy machine."""
        while not re.search(pattern, text := self.warnings.get(timeout=SECONDS)):
            pass
        then()
        return text


@pytest.fixture
def watchdog(monkeypatch):
    """The one of all readers that open. It goes on to warn."""
    monkeypatch.setattr(stalls, "_TIMES", [2**number for number in range(40)])
    monkeypatch.setattr(meter, "OPEN", watchdog := Alone())
    yield watchdog
    for reader in [*watchdog.readers.values()]:
        watchdog.remove(reader)
    wait_until(lambda: watchdog._thread is None)


@pytest.fixture
def looking():
    """Open readers without a thread that looks at them, its clock and warnings."""
    warnings, clock = list[str](), Clock()
    return OpenReaders(warnings.append, clock), clock, warnings


def opened(readers, stall_after=10.0, threads=1, name="R"):
    """A reader, and its threads."""
    reader = Meter(name, name)
    reader.threads = [Timed(f"{name}:{it}", Times(), it) for it in range(threads)]
    readers.add(reader)
    reader.stall_after = stall_after  # only now: no thread is started
    return reader, reader.threads


def stream(reader, find=lambda *_: from_files(["a", "b"]), **options):
    source = BatchStream(
        "R",
        Opening(find=find, reader=reader, observe=partial(Meter, stall_after=SOON), **options),
    )
    source.configure(batch_size=2, seed=None, checkpointing=False)
    return source


def held(opened):
    """A backend that reads nothing before `go` of its readers, which are in `opened`."""

    def hold(reader):
        reader.go.clear()
        opened.append(reader)

    return backend(hold)


# --- when there is a warning ---------------------------------------------------------------------


def test_a_stage_is_warned_of_at_1_2_4_and_8_times_as_long(looking):
    watchdog, clock, warnings = looking
    _, (activity,) = opened(watchdog)
    activity.log.append(("reading", clock.now))
    found = []
    for step in range(120):
        delay, before = watchdog.look(), len(warnings)
        assert 0 < delay <= 1
        clock.turn(delay if step % 2 else delay / 2)  # also earlier than it asks for
        watchdog.look()
        if len(warnings) > before:
            found.append((clock.now - activity.log[0][1]) / 1e9)
    assert found == [10, 20, 40, 80]


def test_one_warning_tells_of_all_threads_of_a_reader_and_of_no_other(looking):
    watchdog, clock, warnings = looking
    _, (first, second, _) = opened(watchdog, threads=3)
    _, (other,) = opened(watchdog, name="Other")
    first.batch = 7
    first.log.append(("reading", clock.now))
    first.describe = lambda: "a \udcff\n.jpg"
    clock.turn(4)
    second.log.append(("decoding", clock.now))
    second.describe = lambda: 1 / 0
    other.log.append(("reading", clock.now))
    clock.turn(6)
    watchdog.look()
    head, *lines = warnings.pop().split("\n")
    assert head == "R: in one stage for 10.0 s (stall_after=10)"
    assert re.fullmatch(
        r"  R:0: reading for 10.0 s, since [\d:]{8}, batch 7, a \\udcff\\n.jpg", lines[0]
    )
    assert re.fullmatch(r"  R:1: decoding for 6.0 s, since [\d:]{8}", lines[1])
    assert lines[2:] == ["  idle: R:2"]
    assert not warnings


def test_a_thread_that_goes_on_is_not_warned_of(looking):
    watchdog, clock, warnings = looking
    _, (activity,) = opened(watchdog)
    for _ in range(50):
        activity.log.append(("reading", clock.now))
        clock.turn(9)
        watchdog.look()
        activity.sum_up()
        clock.turn(100)  # it is idle
        watchdog._planned = inf
        watchdog.look()
    assert not warnings


def test_a_second_stall_is_warned_of_too(looking):
    watchdog, clock, warnings = looking
    _, (activity,) = opened(watchdog)
    for number in range(1, 4):
        activity.log.append(("reading", clock.now))
        for _ in range(4):
            clock.turn(3)
            watchdog.look()
        assert len(warnings) == number


def test_a_thread_that_hangs_later_than_another_is_warned_of_too(looking):
    watchdog, clock, warnings = looking
    _, (first, second) = opened(watchdog, threads=2)
    first.log.append(("reading", clock.now))
    found = []
    for second_ in range(0, 400, 2):
        if second_ == 200:
            second.log.append(("reading", clock.now))
        watchdog.look()
        found += [second_] * len(warnings)
        warnings.clear()
        clock.turn(2)
    assert found == [10, 20, 40, 80, 210, 220, 240, 280]


@pytest.mark.parametrize("text", ["/data", "/data and 3 more", "/data and 3 more, python-file"])
def test_the_mount_of_a_root_is_found(looking, monkeypatch, text):
    monkeypatch.setattr(reporting, "mount_of", lambda path: path.decode())
    watchdog, clock, _ = looking
    _, (activity,) = opened(watchdog)
    activity.log.append(("reading", clock.now))
    activity.describe = lambda: text
    activity.native_id = 1  # not of this process
    assert reporting.paragraph("R", [activity], clock.now).endswith("; /data\n")


def test_a_process_that_was_stopped_is_looked_at_again_before_a_warning(looking):
    watchdog, clock, warnings = looking
    _, (activity,) = opened(watchdog)
    activity.log.append(("reading", clock.now))
    watchdog.look()
    clock.turn(10)  # as long as the stage may take
    watchdog.look()
    for _ in range(2):
        assert not warnings
        clock.turn(5)
        watchdog.look()
    assert len(warnings) == 1


def test_a_reader_that_cannot_be_looked_at_does_not_hide_another(looking):
    watchdog, clock, warnings = looking
    bad, _ = opened(watchdog, name="Bad")
    bad.threads = None
    _, (activity,) = opened(watchdog)
    activity.log.append(("reading", clock.now))
    clock.turn(10)
    watchdog.look()
    assert [text.split("\n")[0].split(":")[0] for text in warnings] == [
        "Bad cannot be watched",
        "R",
    ]


# --- what hangs ----------------------------------------------------------------------------------


def test_a_backend_that_blocks_is_warned_of_and_reported(watchdog):
    opened = []
    source = stream(held(opened))
    source.start(device_id=None)
    source.read_ahead()
    line = r"R:\d: reading for .* s, since .*, batch \d, a and 1 more; thread"
    warning = watchdog.warning(line)
    wait_until(lambda: dali_storage.report().count(": reading for") == 2)
    report = dali_storage.report()
    assert re.search(line, report)
    assert re.match(r".*file\(name='R'\): in one stage for .* \(stall_after=0.05\)\n", warning)
    assert re.search(r"0 batches, 0 bytes, waited 0.0 of .* s, 0.0 of 2 batches ready", report)
    assert "idle: R:asking" in report
    opened[0].go.set()
    source.batch()
    assert "1 batches, 3 bytes" in dali_storage.report()
    source.close()
    assert "0 open readers" in dali_storage.report()
    wait_until(lambda: watchdog._thread is None)


def test_a_reader_that_is_dropped_is_watched_no_longer(watchdog):
    source = stream(Recorder)
    source.start(device_id=None)
    assert "1 open readers" in dali_storage.report()
    del source
    wait_until(lambda: watchdog._thread is None)
    assert "0 open readers" in dali_storage.report()


def test_a_search_for_samples_that_blocks_is_warned_of_with_the_kernels_view(watchdog, tmp_path):
    """To open a pipe blocks, until somebody writes to it."""
    os.mkfifo(pipe := tmp_path / "pipe")

    def find(*_):
        pipe.read_bytes()
        raise FileNotFoundError(2, "gone", "root")

    line = (
        r"  opening: finding samples for .*, /data and 1 more, 'b'; .*, wait chan.*; \w+ \S+ on /"
    )
    writer = threading.Thread(target=watchdog.warning, args=(line, lambda: pipe.write_bytes(b"")))
    writer.start()
    with pytest.raises(FileNotFoundError):
        stream(Recorder, find, names=[b"/data", b"/more"], backend="'b'").open()
    writer.join()  # or find() would still wait
    assert "0 open readers" in dali_storage.report()


# --- the thread ----------------------------------------------------------------------------------


def add(readers, stall_after):
    readers.add(one := Meter("R", "R", stall_after))
    return one


def test_there_is_no_thread_without_a_reader_that_wants_warnings(watchdog):
    quiet = add(watchdog, None)
    assert watchdog._thread is None
    loud = add(watchdog, 3600.0)
    assert watchdog._thread.is_alive()
    watchdog.remove(loud)
    wait_until(lambda: watchdog._thread is None)
    watchdog.remove(quiet)
    add(watchdog, 3600.0)
    assert watchdog._thread.is_alive()


def test_a_reader_that_wants_earlier_warnings_does_not_wait_for_the_others(watchdog, monkeypatch):
    monkeypatch.setattr(meter, "_LONGEST", 3600.0)
    add(watchdog, 3600.0)
    wait_until(lambda: watchdog._planned < inf)
    add(watchdog, 1e308)  # more than the clock can count
    reader = Meter("R", "R", SOON)
    reader.threads = [Timed("R:0", Times(), 0)]
    reader.threads[0].log.append(("reading", 0))
    watchdog.add(reader)
    assert watchdog.warnings.get(timeout=SECONDS).startswith("R (R-3): in one stage for")


def test_a_process_without_room_for_a_thread_reads_without_warnings(watchdog, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse_thread)
        source = stream(Recorder)
        source.open()
    source.start(device_id=None)
    assert source.batch().nbytes == 3
    source.close()


def test_a_fork_has_a_watchdog_of_its_own():
    def child():
        assert "0 open readers in process" in dali_storage.report()
        meter.OPEN._warn = (warnings := SimpleQueue[str]()).put
        opened = []
        source = stream(held(opened))
        source.start(device_id=None)
        source.read_ahead()
        while "reading for" not in warnings.get(timeout=SECONDS):
            pass
        opened[0].go.set()
        source.close()

    reader = add(meter.OPEN, 3600.0)
    try:
        assert status_of_fork(child) == 0
    finally:
        meter.OPEN.remove(reader)


ENDS = """
import threading, time
from dali_storage.observing.meter import OPEN, Meter, Timed
from dali_storage.runtime.histogram import Times
warned = threading.Semaphore(0)
WARN = OPEN._warn
OPEN._warn = lambda text: (WARN(text), warned.release())
for number in range(200):
    reader = Meter("R", "R", 0.001 + number / 10_000)
    reader.threads = [Timed("R:0", Times(), 0)]
    reader.threads[0].log.append(("reading", time.monotonic_ns()))
    OPEN.add(reader)
warned.acquire()
"""


def test_a_program_ends_while_it_warns():
    command = [sys.executable, "-c", ENDS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10 * SECONDS)
    assert done.returncode == 0, done.stderr
    assert re.match(r"R( \(R-\d+\))?: in one stage for", done.stderr)
    assert not re.search("Traceback|Fatal|Error", done.stderr)
