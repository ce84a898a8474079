"""The pool of requests beside a model; store and client answer when the machine says so."""

import errno
import threading
import time
from collections import Counter
from contextlib import ExitStack
from queue import SimpleQueue
from typing import NamedTuple
from unittest.mock import patch

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dali_storage.backends.objects import calls, pool, threads
from dali_storage.backends.objects.errors import ShortBodyError
from tests.kit.process import lanes, wait_until
from tests.kit.tiers import by_tier


class Panic(BaseException):
    """As Rust's panics are: no Exception."""


PASSES, PANIC, CLOSE = ShortBodyError("passes"), Panic("of Rust"), Panic("closes")
UNREACHED = RuntimeError("HttpError {\n    kind: Connect")  # passes once the store has answered
ERRORS = st.sampled_from([None, None, None, PASSES, UNREACHED, PANIC])
EVENTS = st.sampled_from(["submit"] * 4 + ["answer"] * 13 + ["time passes"] * 2 + ["end"])
RETRY = 30.0


class Lane(threading.Thread):
    """One `run()`, and the model of it.

    Attributes:
        missing: positions without an answer, as far as they are needed.
        direct: positions for the threads of the pool; the client has the others.
        retried: positions that are asked for again after a failure.
        failed: errors by position.
        began: when threads have first asked for a position.
        over: whether the end has been seen.
    """

    def __init__(self, number, count, client):
        super().__init__()
        self.contents = [b"%d of %d" % (position, number) for position in range(count)]
        self.got = [bytearray(len(content)) for content in self.contents]
        self.missing, self.retried = {*range(count)}, set()
        self.direct = {*range(0, count, 2)} if client else {*range(count)}
        self.failed, self.began, self.error = {}, {}, None
        self.hedged = Counter()
        self.cancelled = self.over = False

    def fail(self, position, error):
        self.failed[position] = repr(error)
        self.missing = {other for other in self.missing if other < min(self.failed)}

    def cancel(self):
        self.cancelled = bool(self.missing)
        self.missing = set()

    def check(self, cause):
        assert not self.written, "the client may still write"
        if self.cancelled:
            assert self.error.errno == (errno.EIO if cause else errno.ECANCELED)
            assert self.error.__cause__ is cause
        elif self.failed:
            assert self.error.args == min(self.failed.items())
        else:
            assert (self.error, self.got) == (None, self.contents)


class Request(NamedTuple):
    """A call of `ask`, which waits for the answer."""

    lane: Lane
    position: int
    hedges: bool
    answer: SimpleQueue


class Client:
    """Requests every second item of the lanes that have it, within the permits."""

    def __init__(self, pool):
        self.pool, self.lock, self.todo, self.flying = pool, threading.RLock(), [], []

    def send(self, call, positions):
        with self.lock:
            self.todo += [(call, position) for position in positions if position % 2]
        self.go_on()
        return [position for position in positions if not position % 2]

    def go_on(self):
        with self.lock:
            while self.todo and self.pool.pace.try_take(self.go_on):
                self.flying.append(self.todo.pop(0))
                call, position = self.flying[-1]
                call.begin(position)

    def end(self, job):
        self.flying.remove(job)
        self.pool.pace.give_back()

    def drop(self, call, position=None):
        with self.lock:
            left = [job for job in self.flying if job[0] is call and position in (None, job[1])]
            self.todo = [job for job in self.todo if job[0] is not call or position is not None]
            for job in left:
                self.end(job)

    def writes(self, items, *positions):
        jobs = [job for job in [*self.todo, *self.flying] if job[0].items is items]
        return any(position in positions or not positions for _, position in jobs)


class PoolMachine(RuleBasedStateMachine):
    @initialize(most=st.sampled_from([1, 2, 5]), extra=st.sampled_from([0.0, 0.05, 1.0]))
    def open(self, most, extra):
        self.before, self.now, self.most, self.extra = lanes(), 0.0, most, extra
        changes = [(module, "time", self) for module in (calls, pool, threads)]
        short = "_FIRST_PAUSE", "_LONGEST_PAUSE", "_CLOSING"
        changes += [(threads, name, 0.001) for name in short]
        changes += [(pool, "_LOOK", 0.001), (pool, "_EXTRA", extra)]
        self.patches = ExitStack()
        for change in changes:
            self.patches.enter_context(patch.object(*change))
        self.pool = pool.RequestPool(most, retry=RETRY, hedge=1.0 if extra else None)
        self.client = Client(self.pool)
        self.lanes, self.requests, self.arrived = [], [], SimpleQueue()
        self.counts = Counter()
        self.ended, self.cause = False, None

    def monotonic(self):
        return self.now

    def run(self, lane, client):
        def take(position, answer):
            if answer is not None:
                assert not self.client.writes(items, position)
                lane.got[position][:] = answer

        def explain(position, error):
            return RuntimeError(position, repr(error))

        items = [(lane, position) for position in range(len(lane.got))]
        given = {"client": client, "places": [*map(memoryview, lane.got)]}
        try:
            self.pool.run(self.ask, items, take, explain, **given)
        except Exception as error:
            lane.error = error
        lane.written = self.client.writes(items)

    def ask(self, item):
        hedges = threading.current_thread() in self.pool._threads._hedging
        self.arrived.put(request := Request(*item, hedges, SimpleQueue()))
        answer = request.answer.get()
        if answer is CLOSE:
            self.pool.close()
        if answer:
            raise answer
        return request.lane.contents[request.position]

    @rule(event=EVENTS, number=st.integers(0, 99), client=st.booleans(), error=ERRORS)
    def happen(self, event, number, client, error):
        """One rule for all: Hypothesis would leave out some, without which most do nothing."""
        {
            "submit": lambda: self.submit(1 + number % 6, client),
            "answer": lambda: self.answer(number, error),
            "time passes": self.time_passes,
            "end": lambda: self.ended or self.end(number % 4),
        }[event]()

    def submit(self, count, client):
        self.lanes.append(lane := Lane(len(self.lanes), count, client))
        if self.ended:
            lane.cancel()
        lane.run = lambda: self.run(lane, self.client if client else None)
        lane.start()

    def answer(self, number, error):
        """A request of a thread or of the client, if there is any."""
        hedging_first = sorted(self.requests, key=lambda it: not it.hedges)  # and more often
        if waiting := [*hedging_first, *self.client.flying]:
            chosen = waiting[number * number * len(waiting) // 10_000]
            (self.answer_thread if chosen in self.requests else self.answer_client)(chosen, error)

    def answer_thread(self, request, error):
        self.requests.remove(request)
        lane, position = request.lane, request.position
        if not request.hedges:
            lane.retried.discard(position)
            if error and position in lane.missing:
                passes = error is PASSES or (error is UNREACHED and self.counts["request"])
                if passes and self.now < lane.began[position] + RETRY:
                    lane.retried.add(position)
                    self.counts["retry"] += 1
                else:
                    lane.fail(position, error)
            else:
                error = None  # an answer of another may still be on its way to the lane
                self.counts["request"] += 1
        if not error:
            lane.missing.discard(position)
        request.answer.put(error)

    def answer_client(self, job, error):
        call, position = job
        lane, _ = call.items[position]
        self.client.end(job)
        if error:
            lane.direct.add(position)
            self.pool.ask_again(call, position)
        else:
            self.counts["request"] += 1
            lane.missing.discard(position)
            call.places[position][:] = lane.contents[position]
            self.pool.pace.note("request", 0)
            call.answer(position, None)

    def time_passes(self):
        """So much that all requests are late for hedging and for retries."""
        hedged, retried = self.pool.hedged, any(lane.retried for lane in self.lanes)
        late = any(it.position in it.lane.missing for it in self.requests)
        self.now += 2 * RETRY
        if retried or not self.extra:
            time.sleep(0.003)
            assert self.pool.hedged <= hedged + bool(self.extra)  # a lane may just have looked
        elif late and not (hedged or self.ended):
            wait_until(lambda: self.is_settled() and any(it.hedges for it in self.requests))

    def end(self, how):
        """By an error, or not; closing, here or in a thread of the pool."""
        self.ended, self.cause = True, MemoryError() if how == 0 else None
        for lane in self.lanes:
            lane.cancel()
        if how < 2:
            self.pool.cancel(self.cause)
        elif how == 2 and self.requests:
            self.requests.pop().answer.put(CLOSE)
        else:
            self.pool.close()

    @invariant()
    def all_permits_are_used_or_nothing_waits_for_one(self):
        for _ in range(20):  # most often
            if self.is_settled():
                break
            time.sleep(0.0001)
        wait_until(self.is_settled)
        asked = sum(len(lane.contents) for lane in self.lanes)
        assert self.pool.hedged <= max(asked * self.extra, 1) + 1  # lanes do not lock
        for lane in self.lanes:
            if not (lane.missing or lane.over):
                lane.check(self.cause)
                lane.over = True

    def is_settled(self):
        while not self.arrived.empty():
            self.requests.append(request := self.arrived.get())
            lane, position = request.lane, request.position
            if request.hedges:
                lane.hedged[position] += 1
                assert lane.hedged[position] <= 2  # of the client's request, and of a thread's
            else:
                lane.began.setdefault(position, self.now)
                assert self.ended or not lane.over, "nobody needs it any more"
        asked = {(it.lane, it.position) for it in self.requests if not it.hedges}
        waiting = [
            (lane, position) for lane in self.lanes for position in lane.missing & lane.direct
        ]
        used = len(asked) + len(self.client.flying)
        assert used <= self.most or self.ended
        free = self.pool.pace._permits.qsize()  # whoever was answered has given it back
        idle = free + used == self.most and not ({*waiting} - asked or self.client.todo)
        over = all(lane.missing or not lane.is_alive() for lane in self.lanes)
        return over and (used == self.most or idle or self.ended)

    def teardown(self):
        with self.patches:
            while self.requests or self.client.flying:
                self.answer(0, None)
                self.all_permits_are_used_or_nothing_waits_for_one()
            self.pool.close()
            self.pool.close()
            assert all(lane.over for lane in self.lanes)
            wait_until(lambda: not lanes() - self.before)
            counted = self.pool.pace.times.merged()
            for kind in self.counts if not self.ended else ():
                assert counted[kind].count == self.counts[kind]


TestPool = PoolMachine.TestCase
# A lane that hangs takes a minute, and would be tried again and again.
TestPool.settings = settings(
    phases={*Phase} - {Phase.shrink}, stateful_step_count=40, max_examples=by_tier(100, 600)
)
