"""What a thread says of itself, by a clock of the test."""

import gc
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from dali_storage.contract import stages as ambient
from dali_storage.contract.stages import begin, enter, leave, note
from dali_storage.observing import activity
from dali_storage.observing.activity import Activities, SlowBatch
from dali_storage.runtime import profiling


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0)
    for each in (activity, ambient):
        monkeypatch.setattr(each, "monotonic_ns", lambda: clock.now)
    return clock


@pytest.fixture
def mine():
    """The activity of this thread, as if it were a lane."""
    activities = Activities("R", 1)
    activities.lanes[0].adopt()
    yield activities.lanes[0], activities
    activities.lanes[0].release()


def stages(clock, *steps):
    for stage, seconds in steps:
        enter(stage)
        clock.now += seconds * 10**9


def totals(activities):
    return {name: it.total / 1e9 for name, it in activities.times.merged().items()}


def test_a_stage_lasts_until_the_next_and_counts_once_a_batch(clock, mine):
    _, activities = mine
    begin(7)
    stages(clock, ("queued", 3), ("opening", 1), ("reading", 5), ("opening", 1), ("reading", 2))
    leave()
    assert totals(activities) == {"queued": 3, "opening": 2, "reading": 7}
    assert {it.count for it in activities.times.merged().values()} == {1}


def test_batches_that_are_read_at_once_have_equal_shares_of_each_stage(clock, mine):
    _, activities = mine
    begin(7, 4)
    stages(clock, ("opening", 1), ("reading", 8))
    leave()
    assert totals(activities) == {"opening": 1, "reading": 8}
    found = activities.times.merged()["reading"]
    assert (found.count, found.most / 1e9) == (4, 2)


def test_others_see_the_stage_since_when_of_which_batch_and_on_what(clock, mine):
    lane, _ = mine
    assert (lane.current, lane.batch, lane.describe()) == (None, None, "")
    assert lane.thread == threading.get_native_id()
    begin(7)
    clock.now = 5
    enter("reading")
    clock.now = 9
    note(lambda: "a.jpg")
    assert (lane.current, lane.batch, lane.describe()) == (("reading", 5), 7, "a.jpg")
    note(lambda: 1 // 0)  # what it speaks of may be gone
    assert lane.describe() == ""
    leave()
    assert (lane.current, lane.batch, lane.described_by) == (None, None, None)


def test_the_five_slowest_batches_are_named_by_their_first_sample(clock, mine):
    _, activities = mine
    for seconds in (3, 9, 1, 4, 8, 2, 7):
        begin(seconds)
        stages(clock, ("waiting", 99), ("queued", 50), ("opening", 0), ("reading", seconds))
        note(lambda seconds=seconds: f"{seconds} and 3 more")
        leave()
    expected = [SlowBatch(each, "reading", f"{each} and 3 more") for each in (9, 8, 7, 4, 3)]
    assert activities.slowest() == expected
    activities.reset()
    assert (activities.slowest(), totals(activities)) == ([], {})


def test_a_batch_that_was_interrupted_does_not_count(clock, mine):
    _, activities = mine
    begin(1)
    stages(clock, ("reading", 100))
    begin(2)
    stages(clock, ("reading", 1))
    leave()
    assert totals(activities) == {"reading": 1}


def test_a_thread_without_an_activity_says_nothing():
    for call in (lambda: enter("reading"), lambda: note(str), leave):
        call()
    begin(1)


def test_an_activity_keeps_nothing_that_it_described(mine):
    class File:
        name = "a.jpg"

    one = File()
    begin(1)
    enter("reading")
    note(lambda one=one: one.name)
    gone = weakref.ref(one)
    del one
    leave()
    gc.collect()
    assert gone() is None
    assert mine[1].slowest()[0].name == "a.jpg"


# --- other tools ----------------------------------------------------------------------------------


class Domain:
    """A domain of nvtx, which notes the ranges; a dummy, if no tool is attached."""

    def __init__(self, attached):
        self.attached, self.seen, self.open = attached, [], 0

    def get_event_attributes(self, message):
        return {"message": message} if self.attached else None

    def push_range(self, attributes):
        self.open += 1
        self.seen.append(attributes["message"])

    def pop_range(self):
        self.open -= 1
        assert self.open == 0


@pytest.mark.parametrize("attached", [True, False])
def test_stages_are_nvtx_ranges_if_a_tool_is_attached(monkeypatch, clock, attached):
    domains = {}

    def get_domain(name):
        return domains.setdefault(name, Domain(attached))

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(get_domain=get_domain))
    activities = Activities("R", 1)
    lane = activities.lanes[0]
    lane.adopt()
    try:
        begin(1)
        stages(clock, ("opening", 1), ("reading", 1), ("decoding", 1))
        assert domains["dali_storage"].open == attached
        leave()
    finally:
        lane.release()
    assert [*domains] == ["dali_storage"]
    assert domains["dali_storage"].open == 0
    assert domains["dali_storage"].seen == ["opening", "reading", "decoding"] * attached
    assert totals(activities) == {"opening": 1, "reading": 1, "decoding": 1}


def test_without_the_package_nvtx_there_are_no_ranges(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert type(profiling.make_log()) is list


@pytest.mark.parametrize(
    ("name", "comm"),
    [
        ("dali_storage:Reader:0", "dali:Reader:0"),
        ("dali_storage:ImageNetTrain:12", "dali:ImageNe:12"),
        ("dali_storage:cache", "dali:cache"),
        ("dali_storage:get:network", "dali:ge:network"),
        ("dali_storage:Ünïcödé:1", None),
    ],
)
def test_the_kernel_knows_a_thread_by_its_name(name, comm):
    seen = []

    def look():
        profiling.show_name()
        path = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        seen.append(path.read_bytes().rstrip(b"\n"))

    thread = threading.Thread(target=look, name=name)
    thread.start()
    thread.join()
    if comm is None:  # a letter may be cut
        assert (seen[0][:5], seen[0][-2:], len(seen[0])) == (b"dali:", b":1", 15)
    else:
        assert seen == [comm.encode()]
