"""What a thread says of itself, by a clock of the test."""

import gc
import sys
import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from dali_storage.contract import stages as ambient
from dali_storage.contract.options import Choice
from dali_storage.contract.stages import enter, mine, note
from dali_storage.observing import meter
from dali_storage.observing.meter import Meter, Timed
from dali_storage.observing.statistics import figures
from dali_storage.reading.buffers import Room
from dali_storage.runtime.histogram import Times
from tests.kit.interrupts import interrupted

READER: Any = SimpleNamespace(lanes=1, times=None, choices={})
ROOM = Room(Choice(1, ""), 1)


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0)
    for each in (meter, ambient):
        monkeypatch.setattr(each, "monotonic_ns", lambda: clock.now)
    return clock


@pytest.fixture
def one(monkeypatch):
    """A reader that reads, and this thread is its lane."""
    made = Meter("R", "R")
    made.begin(READER, ROOM, ())
    monkeypatch.setattr(mine, "activity", made.threads[0])
    return made


def stages(clock, *steps):
    for stage, seconds in steps:
        enter(stage)
        clock.now += seconds * 10**9


def totals(one):
    return {name: it.total / 1e9 for name, it in one.histograms().items()}


def test_a_stage_lasts_until_the_next_and_counts_once_a_batch(clock, one):
    stages(clock, ("queued", 3))
    with one.reading(0, 7, 1):
        stages(clock, ("opening", 1), ("reading", 5), ("opening", 1), ("reading", 2))
    assert totals(one) == {"queued": 3, "opening": 2, "reading": 7}
    assert {it.count for it in one.histograms().values()} == {1}


def test_batches_that_are_read_at_once_have_equal_shares_of_each_stage(clock, one):
    with one.reading(0, 7, 4):
        stages(clock, ("opening", 1), ("reading", 8))
    assert totals(one) == {"opening": 1, "reading": 8}
    found = one.histograms()["reading"]
    assert (found.count, found.most / 1e9) == (4, 2)
    assert figures(one).slowest[0].seconds == 2


def test_a_batch_that_the_waiting_thread_reads_itself_is_a_part_of_the_wait(clock, one):
    with one.waiting(7, 1):
        clock.now += 10**9
        stages(clock, ("reading", 2))
    assert totals(one) == {"waiting": 3, "reading": 2}
    assert mine.activity is one.threads[0]


def test_others_see_the_stage_since_when_of_which_batch_and_on_what(clock, one):
    lane = one.threads[0]
    with one.reading(0, 7, 1):
        clock.now = 5
        enter("reading", lambda: "a.jpg")
        assert (lane.log, lane.batch, lane.describe()) == ([("reading", 5)], 7, "a.jpg")
        before = note(lambda: "a part")
        assert (lane.describe(), note(before)(), lane.describe()) == ("a part", "a part", "a.jpg")
    assert (lane.log, lane.batch, lane.describe) == ([], None, None)


def test_the_five_slowest_batches_are_named_by_their_first_sample(clock, one):
    for seconds in (3, 9, 1, 4, 8, 2, 7):
        with one.reading(0, seconds, 1):
            stages(clock, ("waiting", 99), ("queued", 50), ("opening", 0))
            enter("reading", lambda seconds=seconds: f"{7 // (seconds - 4)}.jpg")  # 4: it is gone
            clock.now += seconds * 10**9
    found = [(it.seconds, it.stage, it.name) for it in figures(one).slowest]
    names = {9: "1.jpg", 8: "1.jpg", 7: "2.jpg", 4: "", 3: "-7.jpg"}
    assert found == [(seconds, "reading", name) for seconds, name in names.items()]
    one.reset()
    assert (figures(one).slowest, totals(one)) == ((), {})


def test_a_ctrl_c_at_any_point_of_the_beginning_of_a_wait_leaves_no_wait(one):
    for point in range(6):  # the next one is the end of the wait
        with suppress(KeyboardInterrupt), interrupted(Meter.__enter__, point), one.waiting(1, 1):
            pass
        assert (one.threads[1].log, one.batches) == ([], 0)
        assert mine.activity is one.threads[0]


def test_a_wait_that_a_ctrl_c_left_open_does_not_count(clock, one):
    one.threads[1].log.append(("waiting", -(10**10)))
    with one.waiting(1, 1) as given:
        clock.now += 10**9
        given.append(5)
    assert (totals(one), one.batches, one.nbytes) == ({"waiting": 1}, 1, 5)


def test_a_thread_without_an_observer_says_nothing(monkeypatch):
    monkeypatch.setattr(mine, "activity", None)
    enter("reading", lambda: 1 // 0)
    assert note(lambda: 1 // 0) is None


def test_a_batch_keeps_nothing_that_it_described(one):
    class File:
        name = "a.jpg"

    file = File()
    with one.reading(0, 1, 1):
        enter("reading", lambda file=file: file.name)
    gone = weakref.ref(file)
    del file
    gc.collect()
    assert gone() is None
    assert figures(one).slowest[0].name == "a.jpg"


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
    domain, names = Domain(attached), set()

    def get_domain(name):
        names.add(name)
        return domain

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(get_domain=get_domain))
    one = Meter("R", "R")
    one.begin(READER, ROOM, ())
    monkeypatch.setattr(mine, "activity", one.threads[0])
    with one.reading(0, 1, 1):
        stages(clock, ("opening", 1), ("reading", 1), ("decoding", 1))
        assert domain.open == attached
    assert (domain.open, names) == (0, {"dali_storage"})
    assert domain.seen == ["opening", "reading", "decoding"] * attached
    assert totals(one) == {"opening": 1, "reading": 1, "decoding": 1}


def test_without_the_package_nvtx_there_are_no_ranges(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert type(Timed("R:0", Times(), 0).log) is list
