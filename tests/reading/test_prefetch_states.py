"""Any calls of a prefetcher, while reads end in any order; the oracle is the samples' own bytes."""

import threading
from collections import Counter, deque
from functools import partial
from queue import SimpleQueue
from random import Random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dali_storage.contract.format import Format
from dali_storage.reading import prefetch
from dali_storage.reading.buffers import BufferPool, make_room
from dali_storage.reading.loading import Loading
from dali_storage.samples.discovery import from_files
from tests.kit.stand_ins import Recorder, content
from tests.kit.tiers import by_tier
from tests.kit.views import views_of

BATCH, BATCHES = 4, 300
WRONG = frozenset({13, 17})  # batches that the order cannot compute
SEEDS = st.integers(0, 99)
NEAR = st.just(0) | st.integers(-12, 12)  # batches from the next one
BROKEN = st.lists(st.integers(0, 5 * BATCH), min_size=1, max_size=4)  # samples from its first
CATALOG = from_files([f"path/{sample}" for sample in range(BATCH * BATCHES)])


class Stepped:
    """A thread that runs only while another one waits for it."""

    here = threading.local()

    def __init__(self, call):
        self._go, self._stopped = SimpleQueue(), SimpleQueue()
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call):
        self._go.get()
        self.here.thread = self
        try:
            call()
        finally:
            self._stopped.put(False)

    def pause(self):
        """Called in the thread itself."""
        self._stopped.put(True)
        self._go.get()

    def goes_on(self):
        """Run to the next pause; whether there is one."""
        self._go.put(None)
        return self._stopped.get()


class SteppedLanes:
    """As `Lanes`, but a read ends only by a call of `step()`."""

    def __init__(self, count, *, begin, work, drop, **_):
        self._begin, self._work, self._drop = begin, work, drop
        self._jobs, self._free, self._closed = deque(), [*range(count)], False
        self.at_work = []  # lanes and threads

    def submit(self, job):
        if self._closed:
            raise RuntimeError("closed")
        self._jobs.append(job)
        self._start()

    def step(self, random):
        """End the read of one lane, which goes on to its next one."""
        lane, thread = at_work = random.choice(self.at_work)
        if not thread.goes_on():
            self.at_work.remove(at_work)
            self._free.append(lane)
            self._start()

    def close(self):
        self._closed = True
        while self._jobs:
            self._drop(self._jobs.popleft())
        while self.at_work:
            self.step(Random(0))

    def in_lane(self):
        return False

    def _run(self, job, lane):
        self._begin(job)
        self._work(job, lane)

    def _start(self):
        while self._jobs and self._free:
            job, lane = self._jobs.popleft(), self._free.pop()
            thread = Stepped(partial(self._run, job, lane))
            if thread.goes_on():
                self.at_work.append((lane, thread))
            else:
                self._free.append(lane)


class TurnedOrder:
    """The samples of a batch are turned once for each of the `cuts` before it, or `wrong`."""

    def __init__(self, wrong, cuts=()):
        self.wrong, self.cuts = wrong, [*cuts]

    def batch(self, index):
        if index in self.wrong:
            raise ArithmeticError(index)
        turns = sum(cut < index for cut in self.cuts)
        return np.roll(np.arange(BATCH * index, BATCH * (index + 1)), turns)


class Storage(Recorder):
    """It notes each read, in which its lane pauses."""

    begun = ended = staticmethod(lambda *_: None)
    hot_below = 0

    def read(self, batch, lane):
        self._watch(batch.samples, partial(super().read, batch, lane))

    def _watch(self, samples, call):
        indices = [*dict.fromkeys((samples // BATCH).tolist())]
        notes = [(index, self.begun(index)) for index in indices]
        Stepped.here.thread.pause()
        is_right = False
        try:
            result = call()
            is_right = True
            return result
        finally:
            for index, note in notes:
                self.ended(index, note, is_right)


class HeldStorage(Storage):
    """It has samples in memory, and those below `hot_below` need no lane."""

    def views(self, samples, lane):
        if lane == self.lanes:
            return self._found(samples)
        return self._watch(samples, partial(self._found, samples))

    def hot(self, samples):
        return bool((samples < self.hot_below).all())

    def _found(self, samples):
        for sample in samples.tolist():
            if sample in self.broken:
                raise FileNotFoundError(2, "gone", f"path/{sample}")
        return views_of([content(sample) for sample in samples.tolist()])


def next_one(index):
    return index + 1


def every_other(index):
    return index + 2


def ending(index):
    return min(index + 1, 25)


class Calls(RuleBasedStateMachine):
    """What a caller, the storage and other threads do, and what the caller may then get.

    Each batch is a piece, so what is read ahead is known exactly.
    """

    exact, in_memory, fails, wrong = True, False, True, WRONG

    @initialize(
        lanes=st.sampled_from([1, 2, 4]), depth=st.sampled_from([1, 3, 8]), long=st.booleans()
    )
    def begin(self, lanes, depth, long):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(prefetch, "Lanes", SteppedLanes)
        self.patch.setattr(prefetch, "take", self.wait)
        self.lanes, self.room = lanes, max(lanes, depth)
        short = 1 if self.in_memory else 3 * BATCH
        self.most = 1 if self.exact else 16 * BATCH if long else short
        self.longest = (1 + self.room) * max(self.most // BATCH, 1)
        self.open()

    def open(self):
        self.reader = (HeldStorage if self.in_memory else Storage)(CATALOG, lanes=self.lanes)
        self.reader.begun, self.reader.ended = self.read_begun, self.read_ended
        pool = BufferPool(self.reader.allocate, make_room(self.room, 1 << 40, 0))
        pool.room.note(1)  # as if a batch had been read
        loading = Loading(CATALOG, self.reader, Format(), pool, [0] if self.in_memory else ())
        self.cuts, self.successor, self.next = [], next_one, 0
        self.ahead = prefetch.Prefetcher(loading, TurnedOrder(self.wrong), most=self.most)
        self.closes_after, self.closed = -1, False
        self.held, self.most_held = [], 0
        self.window = {}  # the batches ahead: None, or whether they were read without an error
        self.asked = set()  # the batches of which a read may begin
        self.follower = None  # the batch that is read ahead, at the least
        self.wanted, self.tried, self.right = Counter(), Counter(), Counter()
        self.faults = []  # of reads: a lane keeps its errors for the caller

    # What the storage notes, in a lane.

    def read_begun(self, index):
        self.tried[index] += 1
        if self.closed or index not in self.asked:
            self.faults.append(f"{index} is read, and nobody wants it")
        if self.exact and self.tried[index] > self.wanted[index]:
            self.faults.append(f"{index} is read again")
        return self.wanted[index], self.right

    def read_ended(self, index, note, is_right):
        wanted, right = note
        right[index] += is_right
        if index in self.window and wanted == self.wanted[index]:
            self.window[index] = is_right

    # What happens while the caller waits.

    def wait(self, queue):
        while queue.empty():
            if self.closes_after == 0:
                self.close()
            self.closes_after -= 1
            if queue.empty():
                if not self.ahead._lanes.at_work:
                    pytest.fail("the caller would wait for ever")
                self.ahead._lanes.step(self.random)
        return queue.get()

    def close(self):
        self.closed = True
        self.ahead.close()

    # The calls.

    @rule(count=st.integers(1, 16), seed=SEEDS, hold=st.booleans())
    def go_on(self, count, seed, hold):
        for _ in range(count):
            self.get(self.next, seed, hold)
            hold = False

    @rule(by=NEAR, seed=SEEDS, hold=st.booleans())
    def seek(self, by, seed, hold):
        self.get(max(self.next + by, 0), seed, hold)

    def get(self, index, seed, hold=False):
        index %= 200
        if index != self.follower:
            self.right = Counter()
        self.plan(index)
        self.random = Random(seed)
        broken = {it for it in self.reader.broken if it // BATCH == index}
        was_right = self.window.get(index)
        batch = error = None
        try:
            batch = self.ahead.get(index, successor=self.successor)
        except (OSError, ArithmeticError) as caught:
            error = caught.with_traceback(None)
        except Exception:
            assert self.closed
        self.window.pop(index, None)
        self.next = self.successor(index)
        self.follower = None if self.next == index else self.next
        if batch is not None:
            assert self.contents(batch) == self.expected(index)
            assert not broken or was_right or not self.exact
            if hold:
                self.held.append((index, self.expected(index), batch.outputs))
                self.most_held = max(self.most_held, len(self.held))
        elif isinstance(error, ArithmeticError):
            assert index in self.wrong
        elif error is not None:
            assert error.filename in {f"path/{sample}" for sample in broken}
        del batch
        if self.closed:
            self.require_closed()
        else:
            assert max(self.right.values(), default=0) <= 1, "what follows is read once"

    @rule(by=NEAR, seed=SEEDS, after=st.integers(0, 3), fails=st.booleans())
    def close_meanwhile(self, by, seed, after, fails):
        if fails and self.fails:
            self.fail(range(BATCH * BATCHES))
        self.closes_after = after
        self.get(max(self.next + by, 0), seed)
        if not self.closed:
            self.close()
            self.require_closed()
        self.open()

    @rule(seed=SEEDS)
    def finish(self, seed):
        """All that is read ahead is read."""
        random, lanes = Random(seed), self.ahead._lanes
        while lanes.at_work:
            lanes.step(random)
        unread = {index for index, is_right in self.window.items() if is_right is None}
        if not self.exact:  # of a piece that fails, the rest is not read
            unread &= set() if self.in_memory or self.fails else {self.follower}
        assert unread <= self.wrong, "what follows is read ahead"

    @rule(seed=SEEDS)
    def step(self, seed):
        if self.ahead._lanes.at_work:
            self.ahead._lanes.step(Random(seed))

    @precondition(lambda self: self.fails)
    @rule(at=BROKEN)
    def fail(self, at):
        self.reader.broken |= {BATCH * self.next + each for each in at}

    @rule()
    def heal(self):
        self.reader.broken = set()

    @precondition(lambda self: self.fails)
    @rule(at=BROKEN, seed=SEEDS)
    def fail_for_a_moment(self, at, seed):
        self.fail(at)
        self.finish(seed)
        self.heal()

    @precondition(lambda self: self.in_memory)
    @rule(by=NEAR, seed=SEEDS)
    def warm_up(self, by, seed):
        """All batches below one are hot, which is got."""
        self.reader.hot_below = BATCH * (self.next + by + 1)
        self.get(max(self.next + by, 0), seed)
        self.finish(seed)

    @rule(
        successor=st.sampled_from([next_one, every_other, ending]), seed=SEEDS, look=st.booleans()
    )
    def go_another_way(self, successor, seed, look):
        self.successor, self.follower = successor, None
        if look:
            self.go_on(2, seed, hold=False)
            self.finish(seed)

    @rule(by=st.just(0) | st.integers(-1, 3), seed=SEEDS, look=st.booleans())
    def change_order(self, by, seed, look):
        self.cuts.append(cut := self.next + by)
        self.ahead.change_order(TurnedOrder(self.wrong, self.cuts), lambda index: index <= cut)
        self.window = {index: it for index, it in self.window.items() if index <= cut}
        self.asked &= {*self.window}
        self.follower = None
        if look:
            self.get(self.next, seed)
            self.finish(seed)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def let_go(self, which):
        self.held.pop(which % len(self.held))

    @invariant()
    def reads_are_as_wanted(self):
        assert self.faults == []

    @invariant()
    def held_batches_stay_as_they_are(self):
        for _, expected, outputs in self.held:
            assert [*map(bytes, outputs[0])] == expected

    @invariant()
    def there_are_no_more_buffers_than_are_used(self):
        if self.exact:
            most = 1 + self.room + self.reader.lanes + self.most_held
            assert len(self.reader.allocated) <= most

    def teardown(self):
        if hasattr(self, "patch"):
            self.ahead._lanes.close()
            self.patch.undo()

    # The model.

    def plan(self, index):
        """Note what lanes may read, and what is wanted of it."""
        needs_lane = index in self.window or index in self.wrong
        is_hot = not needs_lane and BATCH * (index + 1) <= self.reader.hot_below
        way = [index]
        while len(way) < self.longest and (follower := self.successor(way[-1])) not in way:
            way.append(follower)
        self.asked = {*way}
        for each in way:
            if each not in self.window or (each == index and self.window[each] is False):
                self.wanted[each] += 1
                self.window[each] = None
        self.window = {each: self.window[each] for each in way}
        if is_hot:
            self.window, self.asked = {}, set()

    def contents(self, batch):
        assert batch.samples.size == len(batch.outputs[0])
        assert batch.nbytes == sum(len(each) for each in batch.outputs[0])
        return [*map(bytes, batch.outputs[0])]

    def expected(self, index):
        samples = deque(range(BATCH * index, BATCH * (index + 1)))
        samples.rotate(sum(cut < index for cut in self.cuts))
        return [content(sample) for sample in samples]

    def require_closed(self):
        """No buffer is left but those of the user, and nothing is read."""
        assert self.reader.closed
        self.reads_are_as_wanted()
        with pytest.raises(RuntimeError):
            self.ahead.get(1000)
        self.ahead.close()
        # Of several batches, one that fails keeps the others until the next collection.
        if self.exact or not self.fails:
            assert sum(it() is not None for it in self.reader.allocated) <= len(self.held)


class CallsOfPieces(Calls):
    """Pieces have several batches."""

    exact, fails, wrong = False, False, frozenset()


class CallsOfFailingPieces(Calls):
    exact = False


class CallsOfSamplesInMemory(Calls):
    exact, in_memory = False, True


SETTINGS = settings(max_examples=by_tier(25, 300), stateful_step_count=by_tier(40, 80))
KINDS = [Calls, CallsOfPieces, CallsOfFailingPieces, CallsOfSamplesInMemory]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_got_is_right(kind):
    run_state_machine_as_test(kind, settings=SETTINGS)
