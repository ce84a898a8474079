"""Lanes and turns: how many threads work at once, in which order jobs begin, and their end."""

import resource
import threading
from contextlib import contextmanager

import pytest

from dali_storage.contract.stages import yield_turn
from dali_storage.reading.lanes import Gate, Lanes
from tests.kit.process import SECONDS, refuse_thread, wait_until
from tests.kit.process import lanes as started


class Gates:
    """Jobs that say when they begin and when they are at work, and end when they are told to."""

    def __init__(self) -> None:
        self.begun = []
        self.at_work = {}  # the lane of each job
        self.ended = 0
        self._changed = threading.Condition()
        self._open = set()
        self._yielding = set()
        self.yields = 1  # times a job yields

    def begin(self, job):
        self.begun.append(job)

    def work(self, job, lane):
        with self._changed:
            self.at_work[job] = lane
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: job in self._open | self._yielding, SECONDS)
        if job in self._yielding:
            for _ in range(self.yields):
                yield_turn()
            with self._changed:
                assert self._changed.wait_for(lambda: job in self._open, SECONDS)
        with self._changed:
            del self.at_work[job]
            self.ended += 1
            self._changed.notify_all()

    def let_yield(self, job):
        with self._changed:
            self._yielding.add(job)
            self._changed.notify_all()

    def let_end(self, *jobs):
        with self._changed:
            self._open.update(jobs)
            self._changed.notify_all()

    def wait_for(self, *jobs):
        """Wait until exactly these jobs are at work."""
        with self._changed:
            met = self._changed.wait_for(lambda: set(self.at_work) == set(jobs), SECONDS)
            assert met, self.at_work

    def wait_for_end(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended == count, SECONDS)


@contextmanager
def lanes(count, turns, jobs):
    """Lanes to which jobs from 0 to `jobs` - 1 have been submitted."""
    gates = Gates()
    running = Lanes[int](count, turns=turns, begin=gates.begin, work=gates.work)
    try:
        for job in range(jobs):
            running.submit(job)
        yield gates, running
    finally:
        gates.let_end(*range(jobs + 100))
        running.close()


def test_lanes_of_several_readers_wait_at_their_gate_for_those_that_have_not_yielded():
    gate, gates = Gate(), Gates()
    gate.put(None)
    both = [Lanes[int](1, turns=1, begin=gates.begin, work=gates.work, gate=gate) for _ in "ab"]
    try:
        for job, at_work in [(0, 0), (1, 0), (2, 1)]:
            both[job % 2].submit(job)
            wait_until(lambda job=job: job in gates.begun)
            gates.wait_for(at_work)
            if job == 1:
                gates.let_yield(0)
                gates.wait_for(0, 1)
                gates.let_end(0)
        gates.let_end(1)
        gates.wait_for(2)
    finally:
        gates.let_end(0, 1, 2)
        for each in both:
            each.close()


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_as_many_lanes_work_as_there_are_turns(turns):
    with lanes(6, turns, jobs=6) as (gates, _):
        for done in range(6):
            gates.wait_for(*range(done, min(done + turns, 6)))
            gates.let_end(done)
        gates.wait_for_end(6)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_lane_that_yields_lets_the_next_one_start(turns):
    with lanes(6, turns, jobs=6) as (gates, _):
        for yielding in range(6 - turns):
            gates.wait_for(*range(yielding + turns))
            gates.let_yield(yielding)
        gates.wait_for(*range(6))


def test_no_more_lanes_start_than_there_are():
    with lanes(2, 2, jobs=3) as (gates, _):
        gates.wait_for(0, 1)
        gates.let_yield(0)
        gates.let_yield(1)
        gates.let_end(1)
        gates.wait_for(0, 2)


def test_a_turn_that_is_yielded_twice_is_yielded_once():
    with lanes(4, 1, jobs=4) as (gates, _):
        gates.yields = 2
        gates.wait_for(0)
        gates.let_yield(0)
        gates.wait_for(0, 1)
        yield_turn()  # and in a thread that is no lane it does nothing
        gates.let_end(0)
        gates.wait_for_end(1)
        gates.wait_for(1)


def test_a_lane_keeps_its_turn_from_job_to_job():
    with lanes(4, 1, jobs=4) as (gates, _):
        for job in range(4):
            gates.wait_for(job)
            assert gates.at_work == {job: 0}
            gates.let_end(job)
        gates.wait_for_end(4)


def test_jobs_begin_in_order_and_one_at_a_time():
    beginning, at_once, begun = threading.Semaphore(1), [], []

    def begin(job):
        at_once.append(not beginning.acquire(blocking=False))
        begun.append(job)
        beginning.release()

    ended = threading.Semaphore(0)
    running = Lanes[int](4, turns=4, begin=begin, work=lambda job, lane: ended.release())
    for job in range(2000):
        running.submit(job)
    for _ in range(2000):
        assert ended.acquire(timeout=SECONDS)
    running.close()
    assert begun == list(range(2000))
    assert not any(at_once)


def test_no_thread_is_started_before_it_is_needed():
    before = started()
    with lanes(8, 8, jobs=2) as (gates, _):
        gates.wait_for(0, 1)
        assert len(started() - before) == 2
    assert started() <= before


def test_closing_drops_the_jobs_that_have_not_begun():
    with lanes(2, 1, jobs=5) as (gates, running):
        gates.wait_for(0)
        closing = threading.Thread(target=running.close)
        closing.start()
        wait_until(lambda: not running._jobs)  # close() drops them first
        gates.let_end(*range(5))
        closing.join(SECONDS)
        assert not closing.is_alive()
    assert gates.begun == [0]


@pytest.mark.parametrize("turns", [1, 2])
def test_a_thread_that_cannot_be_started_is_an_error_only_if_no_lane_works(turns, monkeypatch):
    with lanes(2, turns, jobs=1) as (gates, running):
        gates.wait_for(0)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse_thread)
            running.submit(1)
            gates.let_yield(0)
            gates.let_end(0, 1)
            gates.wait_for_end(2)
    with monkeypatch.context() as patch, lanes(2, turns, jobs=0) as (gates, running):
        patch.setattr(threading.Thread, "start", refuse_thread)
        monkeypatch.setattr(resource, "getrlimit", lambda which: (7, 9))
        what = r"start new thread: RLIMIT_NPROC \(ulimit -u\) is 7.*; raise the limit, or .* lanes"
        with pytest.raises(RuntimeError, match=what):
            running.submit(0)
    assert gates.begun == []
