"""Any calls of a prefetcher, while reads end in any order; the oracle is the samples' own bytes."""

from collections import Counter, deque
from random import Random

import numpy as np
import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from dali_storage.contract.format import Format
from dali_storage.reading import prefetch
from dali_storage.reading.buffers import BufferPool, make_room
from dali_storage.reading.loading import Loading
from dali_storage.samples.discovery import from_files
from tests.kit.stand_ins import Recorder, content
from tests.kit.tiers import by_tier
from tests.kit.views import views_of

BATCH, BATCHES = 4, 300
CATALOG = from_files([f"path/{sample}" for sample in range(BATCH * BATCHES)])
WAYS = [lambda index: index + 1, lambda index: index + 2, lambda index: min(index + 1, 25)]
SEEDS = st.integers(0, 99)
NEAR = st.just(0) | st.integers(-12, 12)  # batches from the next one


class SteppedLanes:
    """As `Lanes`, but without threads: a job is done when one of the first is chosen."""

    def __init__(self, count, *, begin, work, drop, **_):
        self.count, self.begin, self.work, self.drop = count, begin, work, drop
        self.jobs, self.closed = [], False

    def submit(self, job):
        if self.closed:
            raise RuntimeError("closed")
        self.jobs.append(job)

    def step(self, random):
        lane = random.randrange(min(len(self.jobs), self.count))
        self.begin(job := self.jobs.pop(lane))
        self.work(job, lane)
        # A thread ends at its own frames. Here an error would also keep those of the caller, with
        # the batch that they return, until the garbage collector runs.
        for it in (*job.samples.values(), *job.outcomes.values()):
            if isinstance(it, Exception):
                it.with_traceback(None)

    def close(self):
        self.closed = True
        while self.jobs:
            self.drop(self.jobs.pop(0))

    def in_lane(self):
        return False


class TurnedOrder:
    """The samples of a batch are turned once for each of the `cuts` before it."""

    def __init__(self, cuts, wrong):
        self.cuts, self.wrong = [*cuts], wrong

    def batch(self, index):
        if index in self.wrong:
            raise ArithmeticError(index)
        samples = np.arange(BATCH * index, BATCH * (index + 1))
        return np.roll(samples, sum(cut < index for cut in self.cuts))


class Storage(Recorder):
    """A `Recorder` that tells of each read in a lane."""

    hot_below = 0  # samples

    def read(self, batch, lane):
        self.note(batch.samples)
        super().read(batch, lane)


class Memory(Storage):
    """It has samples in memory, and some need no lane."""

    def views(self, samples, lane):
        if lane < self.lanes:
            self.note(samples)
        for sample in self.broken.intersection(samples.tolist()):
            raise FileNotFoundError(2, "gone", f"path/{sample}")
        return views_of([content(sample) for sample in samples.tolist()])

    def hot(self, samples):
        return bool((samples < self.hot_below).all())


class Calls(stateful.RuleBasedStateMachine):
    """What the caller, the storage and other threads do, and what the caller may then get."""

    exact = True  # each batch is a piece, so it is known what is read ahead
    fails, wrong, kind = True, {23, 29}, Storage

    @initialize(lanes=st.sampled_from([1, 3]), depth=st.sampled_from([1, 4]), long=st.booleans())
    def begin(self, lanes, depth, long):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(prefetch, "Lanes", SteppedLanes)
        self.patch.setattr(prefetch, "take", self.wait)
        self.count, self.room = lanes, max(lanes, depth)
        self.most = 1 if self.exact else 16 if long else 1 if self.kind is Memory else 3
        self.open()

    def open(self):
        self.reader = self.kind(CATALOG, lanes=self.count)
        self.reader.note = self.note
        pool = BufferPool(self.reader.allocate, make_room(self.room, 1 << 40, 0))
        pool.room.note(1)  # as if a batch had been read
        loading = Loading(
            CATALOG, self.reader, Format(), pool, {0: True} if self.kind is Memory else {}
        )
        self.cuts, self.successor, self.next, self.follower = [], WAYS[0], 0, None
        order = TurnedOrder(self.cuts, self.wrong)
        self.ahead = prefetch.Prefetcher(loading, order, most=self.most * BATCH)
        self.lanes = self.ahead._lanes
        self.closes_after, self.closes_in_read, self.closed = -1, False, False
        self.held = deque(maxlen=5)
        self.planned = {}  # the batches that may be read ahead: None, or whether the read succeeded
        self.wanted, self.tried, self.faults = Counter(), Counter(), []

    def note(self, samples):
        """A lane, which keeps its errors for the caller, reads batches."""
        is_right = self.reader.broken.isdisjoint(samples.tolist())
        for index in {*(samples // BATCH).tolist()}:
            self.tried[index] += 1
            if self.closed or index not in self.planned:
                self.faults.append(f"{index} is read, and nobody wants it")
            if self.exact and self.tried[index] > self.wanted[index]:
                self.faults.append(f"{index} is read again")
            self.planned[index] = is_right
        if self.closes_in_read and not self.closed:
            self.close()

    def wait(self, queue):
        """Lanes end their reads, and another thread may close the prefetcher."""
        while queue.empty():
            if self.closes_after == 0:
                self.close()
            elif not self.lanes.jobs:
                pytest.fail("the caller would wait for ever")
            else:
                self.lanes.step(self.random)
            self.closes_after -= 1
        return queue.get()

    def close(self):
        self.closed = True
        self.ahead.close()

    def plan(self, index):
        """Note what is wanted, and what a lane may read."""
        needs_lane = index in self.planned or index in self.wrong
        if not needs_lane and BATCH * (index + 1) <= self.reader.hot_below:
            self.planned = {}
            return
        way = [index]
        while len(way) < (1 + self.room) * self.most and self.successor(way[-1]) not in way:
            way.append(self.successor(way[-1]))
        self.planned = {each: self.planned.get(each) for each in way}
        for each in way:
            self.wanted[each] = self.tried[each] + (self.planned[each] is None)
        if self.planned[index] is False:
            self.wanted[index] += 1

    def get(self, index, seed):
        self.plan(index := index % 200)
        self.random, batch, error = Random(seed), None, None
        broken = {it for it in self.reader.broken if it // BATCH == index}
        was_right = self.planned.get(index)
        try:
            batch = self.ahead.get(index, successor=self.successor)
        except (OSError, ArithmeticError) as caught:
            error = caught.with_traceback(None)
        except Exception:
            assert self.closed
        self.planned.pop(index, None)
        self.next = self.successor(index)
        self.follower = None if self.next == index else self.next
        if batch is not None:
            samples = deque(range(BATCH * index, BATCH * (index + 1)))
            samples.rotate(sum(cut < index for cut in self.cuts))
            expected = [content(sample) for sample in samples]
            assert [*map(bytes, batch.outputs[0])] == expected
            assert batch.nbytes == sum(map(len, expected))
            assert not broken or was_right or not self.exact
            if seed % 2:
                self.held.append((expected, batch.outputs))
            elif self.held:
                self.held.popleft()
        elif isinstance(error, ArithmeticError):
            assert index in self.wrong
        elif error is not None:
            assert error.filename in {f"path/{sample}" for sample in broken}

    @rule(by=NEAR, count=st.integers(1, 16), seed=SEEDS)
    def go_on(self, by, count, seed):
        self.get(max(self.next + by, 0), seed)
        for number in range(1, count):
            self.get(self.next, seed + number)

    @rule(by=NEAR, seed=SEEDS, after=st.integers(-1, 3), fails=st.booleans())
    def close_meanwhile(self, by, seed, after, fails):
        if fails and self.fails:
            self.reader.broken = {*range(BATCH * BATCHES)}
        self.closes_after, self.closes_in_read = after, after < 0
        if self.lanes.jobs and after < 0:
            self.lanes.step(Random(seed))
        else:
            self.get(max(self.next + by, 0), seed)
        for _ in range(2 - self.closed):
            self.close()
        with pytest.raises(RuntimeError):
            self.ahead.get(1000)
        self.is_sound()
        # Of several batches, one that fails keeps the others until the next collection.
        if not (self.wrong or self.reader.broken):
            alive = [it for it in self.reader.allocated if it() is not None]
            assert len(alive) <= len(self.held)
        self.open()

    @rule(seed=SEEDS, most=st.sampled_from([1, 1000]))
    def finish(self, seed, most=1000):
        """Lanes end their reads."""
        random = Random(seed)
        while self.lanes.jobs and (most := most - 1) >= 0:
            self.lanes.step(random)
        unread = {each for each, is_right in self.planned.items() if is_right is None}
        if not self.exact:  # of a piece that fails, the rest is not read
            unread &= {self.follower} if not self.fails else set()
        assert unread <= self.wrong or self.lanes.jobs, "what follows is read ahead"

    @precondition(lambda self: self.fails)
    @rule(by=st.integers(0, 8), seed=SEEDS, count=st.sampled_from([0, 6]), heals=st.booleans())
    def fail(self, by, seed, count, heals):
        self.go_on(0, 6, seed)  # so that pieces are long
        self.reader.broken.add(BATCH * (self.next + by) + seed % BATCH)
        for number in range(count):
            self.get(self.next, seed + number)
        if heals:
            self.finish(seed)
            self.reader.broken = set()

    @precondition(lambda self: self.kind is Memory)
    @rule(by=NEAR, seed=SEEDS)
    def warm_up(self, by, seed):
        """All batches up to one, which is got, and a few more are hot."""
        self.reader.hot_below = BATCH * (self.next + by + 9)
        self.get(max(self.next + by, 0), seed)
        self.finish(seed)

    @rule(way=st.sampled_from(WAYS), seed=SEEDS, count=st.sampled_from([0, 2]))
    def go_another_way(self, way, seed, count):
        self.successor, self.follower = way, None
        for _ in range(count):
            self.get(self.next, seed)
            self.finish(seed)

    @rule(by=st.just(0) | st.integers(-1, 3), seed=SEEDS, count=st.sampled_from([0, 1, 5]))
    def change_order(self, by, seed, count):
        self.cuts.append(cut := self.next + by)
        order = TurnedOrder(self.cuts, self.wrong)
        self.ahead.change_order(order, lambda index: index <= cut)
        self.planned = {index: it for index, it in self.planned.items() if index <= cut}
        self.go_another_way(self.successor, seed, count)

    @stateful.invariant()
    def is_sound(self):
        """Nothing is read in vain, or into memory that the user holds."""
        assert self.faults == []
        for expected, outputs in self.held:
            assert [*map(bytes, outputs[0])] == expected
        if self.exact:
            assert len(self.reader.allocated) <= 2 + self.room + self.held.maxlen

    def teardown(self):
        if hasattr(self, "patch"):
            self.patch.undo()


KINDS = {
    "batches": {},
    "pieces": {"exact": False, "fails": False, "wrong": set()},
    "failing pieces": {"exact": False},
    "memory": {"exact": False, "kind": Memory},
}
SETTINGS = settings(max_examples=by_tier(50, 300), stateful_step_count=by_tier(30, 80))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_got_is_right(kind):
    stateful.run_state_machine_as_test(type(kind, (Calls,), KINDS[kind]), settings=SETTINGS)
