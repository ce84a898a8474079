"""Readers that hang: the warnings of their watchdog, and the report of all readers."""

import os
import re
import subprocess
import sys
import threading
from functools import partial
from queue import SimpleQueue

import pytest

from dali_storage.observing import reporting, stalls
from dali_storage.observing.activity import Activity
from dali_storage.observing.observer import Observed
from dali_storage.observing.stalls import Watchdog
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


class Alone(Watchdog):
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
    monkeypatch.setattr(stalls, "WATCHDOG", watchdog := Alone())
    yield watchdog
    for watched in [*watchdog._watched.values()]:
        watchdog.forget(watched)
    wait_until(lambda: watchdog._thread is None)


@pytest.fixture
def looking():
    """A watchdog without a thread, its clock and warnings."""
    warnings, clock = list[str](), Clock()
    return Watchdog(warnings.append, clock), clock, warnings


def watched(watchdog, stall_after=10.0, threads=1, name="R"):
    """A reader, and the activities of its threads; no thread is started that looks at them."""
    reader = watchdog.watch(name, None)
    reader.stall_after = stall_after
    reader.activities = [Activity(f"{name}:{it}", Times(), it) for it in range(threads)]
    return reader, reader.activities


def stream(reader, find=lambda *_: from_files(["a", "b"]), **options):
    source = BatchStream(
        "R",
        Opening(find=find, reader=reader, observe=partial(Observed, stall_after=SOON), **options),
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
    _, (activity,) = watched(watchdog)
    activity.log.append(("reading", clock.now))
    found = []
    for _ in range(30):
        delay, before = watchdog.look(), len(warnings)
        assert 0 < delay <= 10
        clock.turn(min(delay, 4))  # also earlier than it asks for
        watchdog.look()
        if len(warnings) > before:
            found.append((clock.now - activity.log[0][1]) / 1e9)
    assert found == [10, 20, 40, 80]


def test_one_warning_tells_of_all_threads_of_a_reader_and_of_no_other(looking):
    watchdog, clock, warnings = looking
    _, (first, second, _) = watched(watchdog, threads=3)
    _, (other,) = watched(watchdog, name="Other")
    first.begin(7)
    first.log.append(("reading", clock.now))
    first.described_by = lambda: "a \udcff\n.jpg"
    clock.turn(4)
    second.log.append(("decoding", clock.now))
    second.described_by = lambda: 1 / 0
    other.log.append(("reading", clock.now))
    clock.turn(6)
    assert watchdog.look() == 4  # the second one has been at its stage for 6 seconds
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
    _, (activity,) = watched(watchdog)
    for _ in range(50):
        activity.log.append(("reading", clock.now))
        clock.turn(9)
        watchdog.look()
        activity.leave()
        clock.turn(100)  # it is idle
        watchdog._planned = None
        watchdog.look()
    assert not warnings


def test_a_second_stall_is_warned_of_too(looking):
    watchdog, clock, warnings = looking
    _, (activity,) = watched(watchdog)
    for number in range(1, 4):
        activity.log.append(("reading", clock.now))
        for _ in range(4):
            clock.turn(3)
            watchdog.look()
        assert len(warnings) == number


def test_a_thread_that_hangs_later_than_another_is_warned_of_too(looking):
    watchdog, clock, warnings = looking
    _, (first, second) = watched(watchdog, threads=2)
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
    _, (activity,) = watched(watchdog)
    activity.log.append(("reading", clock.now))
    activity.described_by = lambda: text
    activity.thread = 1  # not of this process
    assert watchdog.report().endswith("; /data\n")


def test_a_process_that_was_stopped_is_looked_at_again_before_a_warning(looking):
    watchdog, clock, warnings = looking
    _, (activity,) = watched(watchdog)
    activity.log.append(("reading", clock.now))
    assert watchdog.look() == 10
    clock.turn(10)  # as long as the stage may take
    assert watchdog.look() == 10
    assert not warnings
    for _ in range(2):
        clock.turn(5)
        watchdog.look()
    assert len(warnings) == 1


def test_a_reader_that_cannot_be_looked_at_does_not_hide_another(looking):
    watchdog, clock, warnings = looking
    bad, _ = watched(watchdog, name="Bad")
    bad.activities = None
    _, (activity,) = watched(watchdog)
    activity.log.append(("reading", clock.now))
    clock.turn(10)
    watchdog.look()
    assert [text.split("\n")[0].split(":")[0] for text in warnings] == [
        "Bad cannot be watched",
        "R",
    ]


def test_readers_of_one_name_are_told_apart(looking):
    watchdog, _, _ = looking
    found = [watchdog.watch("R", None) for _ in range(3)]
    assert [it.name for it in found] == ["R", "R (2)", "R (3)"]
    watchdog.forget(found[1])
    assert watchdog.watch("R", None).name == "R (2)"


# --- what hangs ----------------------------------------------------------------------------------


def test_a_backend_that_blocks_is_warned_of_and_reported(watchdog):
    opened = []
    source = stream(held(opened))
    source.start(device_id=None)
    source.read_ahead()
    line = r"R:\d: reading for .* s, since .*, batch \d, a and 1 more; thread"
    warning = watchdog.warning(line)
    wait_until(lambda: watchdog.report().count(": reading for") == 2)
    report = watchdog.report()
    assert re.search(line, report)
    assert re.match(r".*file\(name='R'\): in one stage for .* \(stall_after=0.05\)\n", warning)
    assert re.search(r"0 batches, 0 bytes, waited 0.0 of .* s, 0.0 of 2 batches ready", report)
    assert "idle: R:asking" in report
    opened[0].go.set()
    source.batch()
    assert "1 batches, 3 bytes" in watchdog.report()
    source.close()
    assert "0 open readers" in watchdog.report()
    wait_until(lambda: watchdog._thread is None)


def test_a_reader_that_is_dropped_is_watched_no_longer(watchdog):
    source = stream(Recorder)
    source.start(device_id=None)
    assert "1 open readers" in watchdog.report()
    del source
    wait_until(lambda: watchdog._thread is None)
    assert "0 open readers" in watchdog.report()


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
    assert "0 open readers" in watchdog.report()


# --- the thread ----------------------------------------------------------------------------------


def test_there_is_no_thread_without_a_reader_that_wants_warnings(watchdog):
    quiet = watchdog.watch("Quiet", None)
    assert watchdog._thread is None
    loud = watchdog.watch("Loud", 3600.0)
    assert watchdog._thread.is_alive()
    watchdog.forget(loud)
    wait_until(lambda: watchdog._thread is None)
    watchdog.forget(quiet)
    assert watchdog.watch("Loud", 3600.0)
    assert watchdog._thread.is_alive()


def test_a_reader_that_wants_earlier_warnings_does_not_wait_for_the_others(watchdog):
    watchdog.watch("Patient", 3600.0)
    wait_until(lambda: watchdog._planned)
    watchdog.watch("More patient than the clock can count", 1e308)
    reader = watchdog.watch("R", SOON)
    activity = Activity("R:0", Times(), 0)
    activity.log.append(("reading", 0))
    reader.activities = [activity]
    assert watchdog.warnings.get(timeout=SECONDS).startswith("R: in one stage for")


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
        assert "0 open readers in process" in stalls.WATCHDOG.report()
        stalls.WATCHDOG._warn = (warnings := SimpleQueue[str]()).put
        opened = []
        source = stream(held(opened))
        source.start(device_id=None)
        source.read_ahead()
        while "reading for" not in warnings.get(timeout=SECONDS):
            pass
        opened[0].go.set()
        source.close()

    reader = stalls.WATCHDOG.watch("R", 3600.0)
    try:
        assert status_of_fork(child) == 0
    finally:
        stalls.WATCHDOG.forget(reader)


ENDS = """
import threading, time
from dali_storage.observing.activity import Activity
from dali_storage.runtime.histogram import Times
from dali_storage.observing import stalls
warned = threading.Semaphore(0)
WARN = stalls.WATCHDOG._warn
stalls.WATCHDOG._warn = lambda text: (WARN(text), warned.release())
for number in range(200):
    reader = stalls.WATCHDOG.watch("R", 0.001 + number / 10_000)
    reader.activities = [Activity("R:0", Times(), 0)]
    reader.activities[0].log.append(("reading", time.monotonic_ns()))
warned.acquire()
"""


def test_a_program_ends_while_it_warns():
    command = [sys.executable, "-c", ENDS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10 * SECONDS)
    assert done.returncode == 0, done.stderr
    assert re.match(r"R( \(\d+\))?: in one stage for", done.stderr)
    assert not re.search("Traceback|Fatal|Error", done.stderr)
