"""Requests under way at once: threads, retries, hedging, closing."""

import errno
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
def hedge():
    return None


@pytest.fixture
def pool(hedge, threads_end):
    with closing(requests.RequestPool(40, retry=30, hedge=hedge)) as pool:
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


# --- errors ---


def test_a_panic_in_a_thread_leaves_no_lane_waiting(pool):
    class Panic(BaseException):
        """As Rust's panics are: no Exception."""

    failed = threading.Semaphore(0)

    def ask(number):
        if number == 3:
            failed.acquire(timeout=60)  # those behind it fail before
            raise Panic("of Rust")
        if number > 3:
            failed.release()
            raise MemoryError
        return slow(number)

    for _ in range(30):  # as many as there are threads, and more
        with pytest.raises(RuntimeError, match=r"3, .*Panic.*of Rust"):
            answers(pool, ask, 9)
    assert answers(pool, abs, 50) == [*range(50)]


@pytest.mark.parametrize("failing", ["ask", "take"])
def test_after_an_error_nothing_more_is_asked_for(pool, request_threads, failing):
    asked, failed = list[int](), threading.Event()

    def ask(number):
        asked.append(number)
        if number == 5 and failing == "ask":
            raise MemoryError
        if number >= 16:  # the lane takes 16 answers together
            failed.wait(60)
        return number

    def take(position, answer):
        if failing == "take":
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


def test_the_last_error_is_raised_when_the_time_for_retries_is_over(pool, clock):
    def ask(number):
        assert clock.now < 1000, "it is asked for ever"
        raise ShortBodyError(f"error {len(clock.pauses)}")

    with pytest.raises(RuntimeError) as caught:
        answers(pool, ask)
    assert 15 < clock.now <= 30
    assert f"error {len(clock.pauses)}" in str(caught.value)


def test_an_endpoint_that_never_answered_is_a_mistake_and_not_asked_again(pool):
    tries = 0

    def ask(number):
        nonlocal tries
        if (tries := tries + 1) % 2:
            raise RuntimeError("HttpError {\n    kind: Connect")
        return number

    with pytest.raises(RuntimeError, match="Connect"):
        answers(pool, ask)
    assert tries == 1
    assert answers(pool, abs) == [0]
    tries = 0
    assert answers(pool, ask) == [0]
    assert tries == 2


def test_requests_and_retries_are_counted_apart(pool, clock):
    tries = 0

    def ask(number):
        nonlocal tries
        clock.now += 1
        if (tries := tries + 1) <= 2:
            raise ShortBodyError
        return number

    assert answers(pool, ask) == [0]
    counted = pool.pace.times.merged()
    assert {name: it.count for name, it in counted.items()} == {"request": 1, "retry": 2}
    assert counted["request"].total == 10**9
    assert counted["retry"].total == pytest.approx((2 + sum(clock.pauses)) * 10**9)


def test_a_report_names_what_has_no_answer_yet(pool, monkeypatch):
    lane, seen = Activity("R:0"), list[str]()

    def ask(number):
        if number == 7:
            seen.append(lane.describe())
        return number

    monkeypatch.setattr(mine, "activity", lane)
    pool.run(ask, [7], lambda *_: None, lambda *_: OSError(), describe="object {}".format)
    assert (seen, lane.describe) == (["object 7"], None)


# --- hedging ---


@pytest.mark.parametrize("hedge", [0.001])
def test_a_late_request_is_made_once_more_and_the_faster_answer_is_taken(pool):
    again, calls = threading.Event(), list[int]()

    def ask(number):
        calls.append(number)
        if len(calls) == 1:
            return -1 if again.wait(60) else -2
        return 5

    try:
        assert answers(pool, ask) == [5]
        assert (len(calls), pool.hedged) == (2, 1)
    finally:
        again.set()


def test_without_hedging_a_late_request_is_waited_for(pool):
    calls = list[int]()
    assert answers(pool, lambda i: calls.append(i) or slow(i), 20) == [*range(20)]
    assert (sorted(calls), pool.hedged) == ([*range(20)], 0)


@pytest.mark.parametrize("hedge", [0.001])
def test_hedging_adds_a_twentieth_at_most(pool):
    calls = list[int]()

    def ask(number):
        calls.append(number)
        while not pool.hedged:  # everything is late
            time.sleep(0.001)
        return slow(number)

    for _ in range(10):
        assert answers(pool, ask, 20) == [*range(20)]
    assert 1 <= pool.hedged <= 10
    assert len(calls) <= 210


@pytest.mark.parametrize("hedge", [0.001])
def test_no_request_is_hedged_while_another_is_retried(pool, clock, monkeypatch):
    ended, hedged = threading.Event(), list[int]()
    began = threading.Event()

    def get(timeout):
        clock.now += 1
        time.sleep(0.05)  # ten looks for what is late
        hedged.append(pool.hedged)
        raise Empty

    def ask(number):
        if number == 0 and began.wait(60) and len(hedged) < 3:
            raise ShortBodyError
        if number == 1 and not began.is_set():
            began.set()
            ended.wait(60)
        return number

    monkeypatch.setattr(clock, "get", get)
    answers(pool, abs)  # the store is there
    assert answers(pool, ask, 2) == [0, 1]  # the second one, by hedging in the end
    ended.set()
    assert (hedged, pool.hedged) == ([0, 0, 0], 1)


@pytest.mark.parametrize("hedge", [None, 60])
def test_a_lane_that_waits_for_a_store_that_hangs_is_woken_by_closing(pool, monkeypatch):
    waits, ended, waited = threading.Event(), threading.Event(), list[bool]()
    wait = pool._wait

    def ask(_):
        waited.append(ended.wait(60))

    monkeypatch.setattr(pool, "_wait", lambda call: (waits.set(), wait(call)))
    closer = threading.Thread(target=lambda: waits.wait(60) and pool.close())
    closer.start()
    with pytest.raises(OSError, match="the reader was closed"):
        answers(pool, ask)
    ended.set()
    closer.join(60)
    assert False not in waited  # or it was the answer that has woken it


@pytest.mark.parametrize("error", [None, ShortBodyError])  # one that may pass, after a pause
def test_a_pool_may_be_closed_in_any_thread_and_at_once(pool, error):
    """By the garbage collector in one of its own threads, for example."""

    def ask(number):
        pool.close()
        if error:
            raise error
        return slow(number)

    with pytest.raises(OSError, match="the reader was closed") as caught:
        answers(pool, ask, 30)
    assert caught.value.errno == errno.ECANCELED
    for each in (closers := [threading.Thread(target=pool.close) for _ in range(8)]):
        each.start()
    for each in closers:
        each.join(60)
        assert not each.is_alive()
    with pytest.raises(OSError, match="the reader was closed"):
        answers(pool, abs, 30)
