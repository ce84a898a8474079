"""Requests under way at once: their threads, pauses and reports."""

import threading
import time
from contextlib import closing
from queue import Empty

import pytest

from dali_storage.backends.objects import calls, threads
from dali_storage.backends.objects import pool as requests
from dali_storage.backends.objects.errors import ShortBodyError
from dali_storage.contract.stages import Activity, mine


class Clock:
    """A clock that only pauses between two tries move; they take no time."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    def monotonic(self):
        return self.now

    def get(self, timeout):
        self.now += timeout
        self.pauses.append(timeout)
        raise Empty

    def put(self, _):
        pass


def answers(pool, ask, count=1):
    """What `ask` returns for the numbers below `count`; of an error, the position is noted."""
    got = {}

    def explain(position, error):
        return RuntimeError(position, repr(error))

    pool.run(ask, range(count), got.__setitem__, explain)
    return [got[position] for position in range(count)]


def slow(number):
    time.sleep(0.02)
    return number


@pytest.fixture
def pool(threads_end):
    with closing(requests.RequestPool(40, retry=30, hedge=None)) as pool:
        yield pool


@pytest.fixture
def clock(pool, monkeypatch):
    clock = Clock()
    for module in (calls, requests, threads):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(pool._threads, "_closing", clock)
    return clock


def test_few_threads_are_enough_if_the_machine_has_no_more(pool, request_threads, monkeypatch):
    start, left = threading.Thread.start, 0

    def start_some(thread):
        nonlocal left
        if left == 0:
            raise RuntimeError("can't start new thread")
        left -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(RuntimeError, match="can't start"):
        answers(pool, abs, 3)
    for left in (2, 14):  # noqa: B007 -  the others are missing at once, or when the store turns out to be slow
        assert answers(pool, slow, 60) == [*range(60)]
    monkeypatch.undo()
    answers(pool, slow, 99)
    assert len(request_threads()) > 18


def test_a_store_that_answers_at_once_gets_few_requests(pool, clock, request_threads):
    for _ in range(10):
        assert answers(pool, abs, 60) == [*range(60)]
    assert len(request_threads()) <= 16


def test_after_an_error_of_the_lane_nothing_more_is_asked_for(pool, request_threads):
    asked, failed = list[int](), threading.Event()

    def ask(number):
        asked.append(number)
        if number >= 16:  # the lane takes 16 answers together
            failed.wait(60)
        return number

    def take(position, answer):
        raise MemoryError

    for _ in range(3):
        failed.clear()
        with pytest.raises(MemoryError):
            pool.run(ask, range(200), take, lambda _, error: MemoryError(error))
        failed.set()
        assert answers(pool, abs, 50) == [*range(50)]
    assert len(asked) <= 3 * (16 + len(request_threads()))


def test_pauses_between_tries_double_up_to_15_seconds(pool, clock):
    """After 1,024 doublings a number is none any more."""
    pool._threads._retry = 1e6

    def ask(number):
        if len(clock.pauses) < 1100:
            raise ShortBodyError
        return number

    assert answers(pool, ask) == [0]
    longest = [min(0.1 * 2**number, 15.0) for number in range(20)]
    for pause, most in zip(clock.pauses, longest, strict=False):
        assert most / 2 <= pause <= most
    counted = pool.pace.times.merged()["retry"]
    assert counted.total == pytest.approx(1e9 * sum(clock.pauses))


def test_a_report_names_what_has_no_answer_yet(pool, monkeypatch):
    lane, seen = Activity("R:0"), list[str]()

    def ask(number):
        if number == 7:
            seen.append(lane.describe())
        return number

    monkeypatch.setattr(mine, "activity", lane)
    pool.run(ask, [7], lambda *_: None, lambda *_: OSError(), describe="object {}".format)
    assert (seen, lane.describe) == (["object 7"], None)
