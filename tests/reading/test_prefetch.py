"""Reading ahead: which batches are read, and what becomes of them, of errors and of Ctrl-C."""

import contextlib
import gc
import signal
import threading
import weakref
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

from dali_storage.contract.errors import RecordError, SampleChangedError
from dali_storage.contract.format import Format
from dali_storage.observing.statistics import figures
from dali_storage.order import Order, OrderOptions, sequence
from dali_storage.reading import prefetch
from dali_storage.reading.lanes import copying_lanes
from dali_storage.reading.position import next_index
from dali_storage.reading.prefetch import Prefetcher
from dali_storage.samples.discovery import from_files
from tests.kit.interrupts import ends_at, interrupted
from tests.kit.process import SECONDS, lanes, wait_until, without_collector
from tests.kit.reading_ahead import reading_ahead
from tests.kit.stand_ins import Recorder, content
from tests.kit.views import views_of

SAMPLES = 40
BATCH = 4


class Stream:
    """The bytes of the batches of a prefetcher."""

    def __init__(self, reader: Recorder, depth: int = 1, **options: Any) -> None:
        catalog = from_files([f"path/{sample}" for sample in range(SAMPLES)])
        order = Order(SAMPLES, BATCH, OrderOptions())
        self.reader = reader
        self.ahead = reading_ahead(catalog, reader, order, depth, **options)
        self.close = self.ahead.close

    def get(self, index, **options):
        batch = self.ahead.get(index, **options)
        assert len(batch.samples) == len(batch.outputs[0])
        return [content.tobytes() for content in batch.outputs[0]]

    @property
    def statistics(self):
        return figures(self.ahead.observer)

    def finish(self):
        """Wait until all that is read ahead has been read."""
        wait_until(
            lambda: all(piece.outcomes is not None for piece in [*self.ahead._ahead.values()])
        )


@contextmanager
def prefetcher(depth=1, *, lanes=2, fmt=None, most=1, nbytes=1 << 30, **options):
    """A prefetcher with a `Recorder`, which may be given other attributes.

    By default every batch is a piece, like large ones.
    """
    reader = Recorder(from_files(["x"]), lanes=lanes)
    vars(reader).update(options)
    ahead = Stream(reader, depth, fmt=fmt, most=most, nbytes=nbytes)
    ahead.ahead.room.note(1)  # as if a batch had been read
    yield ahead
    reader.go.set()
    ahead.close()


def expected(index):
    return [content((index * BATCH + slot) % SAMPLES) for slot in range(BATCH)]


def require_batches(ahead, *indices):
    for index in indices:
        assert ahead.get(index) == expected(index)


PIECES = pytest.mark.parametrize("most", [1, 64])
"""The most samples of several batches that are read at once."""


class Large(Recorder):
    """All samples have the same `size`, which may be changed at any time; nothing is written."""

    size = 5000  # smaller ones are copied

    def sizes(self, samples, lane):
        return np.full_like(samples, self.size)

    def _fill(self, batch):
        self.read_batches.append(batch.samples.tolist())

    @property
    def buffers(self):
        """How many are alive."""
        return sum(it() is not None for it in self.allocated)


def large(depth=2, *, lanes=8, nbytes, most=1):
    """A prefetcher of batches of 20,032 bytes."""
    catalog = from_files([f"path/{sample}" for sample in range(SAMPLES)])
    return Stream(Large(catalog, lanes=lanes), depth, most=most, nbytes=nbytes)


@pytest.mark.parametrize(("fit", "ahead"), [(0, 1), (1, 1), (2, 1), (3, 2), (6, 5), (99999, 8)])
def test_batches_read_ahead_and_idle_buffers_fit_into_the_bytes(fit, ahead):
    """But one is read while another is delivered. What the user holds does not count."""
    size = 4 * 5008  # aligned
    stream = large(2, nbytes=fit * size + 1)
    with contextlib.closing(stream), without_collector():
        held = []
        for index in range(12):
            held += [stream.ahead.get(index)]
            stream.finish()
            assert len(stream.reader.read_batches) <= max(1 + index + ahead, 2 + ahead)
        assert len(stream.reader.read_batches) == 12 + ahead
        assert stream.statistics.depth == ahead
        assert stream.statistics.choices["buffer_bytes"] == f"{fit * size + 1} (as given)"
        assert ("depth" in stream.statistics.choices) == (ahead < 8)
        assert stream.reader.buffers == 12 + ahead
        del held[:]
        stream.ahead.get(12)
        stream.finish()
        if fit < 100:
            assert stream.reader.buffers <= max(fit, 2)


def test_of_batches_whose_size_is_unknown_one_is_read_ahead():
    stream = large(8, nbytes=1 << 30)
    with contextlib.closing(stream):
        stream.reader.go.clear()
        stream.ahead.read_ahead(0, next_index)
        wait_until(lambda: len(stream.reader.under_way) == 2)
        stream.reader.go.set()
        stream.ahead.get(0)
        stream.finish()
        assert len(stream.reader.read_batches) == 1 + 8


def test_after_a_larger_batch_what_no_longer_fits_is_dropped_and_read_later():
    stream = large(8, lanes=1, nbytes=200_000)
    with contextlib.closing(stream):
        for index in range(60):
            if index == 30:
                stream.reader.size = 20_000  # two batches fit
            assert len(stream.ahead.get(index).outputs[0][0]) in (5000, 20_000)
            stream.finish()
        assert stream.statistics.depth == len(stream.ahead._ahead) == 1
        assert len(stream.reader.read_batches) <= 60 + 1 + 8


def test_pieces_of_several_batches_are_smaller_where_less_is_read_ahead():
    with prefetcher(most=1000, nbytes=4000) as ahead:
        taken_in_a_row(ahead, 100)
        nbytes = [sum(map(len, map(content, batch))) for batch in ahead.reader.read_batches]
        assert max(map(len, ahead.reader.read_batches)) > BATCH
        assert max(nbytes) <= 4000 // 8 * 2  # by the mean size of a batch
        assert ahead.statistics.depth == 2


@pytest.mark.parametrize("end", [0, 6])
def test_a_batch_that_follows_itself_is_the_last_that_is_read(end):
    def last(index):
        return min(index + 1, end)

    with prefetcher(5, most=64) as ahead:
        ahead.ahead.room.largest = 0  # as at the start, when one batch is read to learn its size
        for index in range(end + 1):
            assert ahead.get(index, successor=last) == expected(index)
        ahead.finish()
        batches = [batch[::BATCH] for batch in ahead.reader.read_batches]
        assert sorted(it for batch in batches for it in batch) == [
            BATCH * index for index in range(end + 1)
        ]
        assert not ahead.ahead._ahead
        assert ahead.get(end, successor=last) == expected(end)  # if asked for again


@pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.SampleReplaced")
def test_a_bad_sample_of_a_piece_is_replaced_in_its_batch_and_in_no_other():
    from dali_storage.bad_samples.replacement import OnError

    reader = Recorder(from_files(["x"]))
    reader.broken = {bad := 8 * BATCH + 1}
    ahead = Stream(reader, on_error=OnError(replace=True))
    with contextlib.closing(ahead):
        for index in range(10):
            batch = ahead.ahead.get(index)
            wrong = [slot for slot in range(BATCH) if batch.samples[slot] != index * BATCH + slot]
            assert wrong == ([1] if index == 8 else [])
            assert [*map(bytes, batch.outputs[0])] == [*map(content, batch.samples.tolist())]
        assert [found[0] for found in ahead.ahead.loading.substitute.found] == [bad]
    assert any(len(batch) > BATCH and bad in batch for batch in reader.read_batches)


def taken_in_a_row(ahead, count):
    """How many batches each read had, when these were got one after another."""
    for index in range(count):
        ahead.get(index)
        ahead.finish()
    return [len(batch) // BATCH for batch in ahead.reader.read_batches]


@pytest.mark.parametrize(("most", "pieces"), [(3, {1}), (9, {1, 2}), (12, {1, 2, 3})])
def test_pieces_grow_to_their_limit_while_batches_are_got_in_a_row(most, pieces):
    with prefetcher(most=most) as ahead:
        read = taken_in_a_row(ahead, 30)
        assert ({*read}, sorted(read[:3])) == (pieces, [1, 1, 1])
        ahead.reader.read_batches.clear()
        ahead.get(1000)
        ahead.finish()
        assert {len(batch) for batch in ahead.reader.read_batches} == {BATCH}


def test_pieces_are_as_long_as_the_mean_size_of_batches_allows(monkeypatch):
    nbytes = sum(len(sample) for index in range(10) for sample in expected(index)) / 10
    monkeypatch.setattr(prefetch, "_NBYTES", round(4 * nbytes))
    with prefetcher(most=1000) as ahead:
        assert {*taken_in_a_row(ahead, 100)[-10:]} <= {3, 4, 5, 6}  # the mean of the last 16


def test_in_an_outage_a_piece_fails_after_two_reads_and_its_rest_is_read_when_it_is_asked_for():
    with prefetcher(lanes=1, most=8 * BATCH) as ahead:
        taken_in_a_row(ahead, 20)
        known, before = [*ahead.ahead._ahead], len(ahead.reader.read_batches)
        ahead.reader.broken = {*range(SAMPLES)}
        require_batches(ahead, *known)  # the next piece is read meanwhile
        ahead.finish()
        assert len(ahead.reader.read_batches) == before + 2
        first = known[-1] + 1
        with pytest.raises(FileNotFoundError):
            ahead.get(first + 2)
        with pytest.raises(FileNotFoundError):
            ahead.get(first + 3)
        ahead.reader.broken = set()
        require_batches(ahead, first + 5, *range(first, first + 20))


@PIECES
def test_a_size_that_changed_once_is_read_again_and_one_that_keeps_changing_is_refused(most):
    # Sample 5 changes twice as it is read ahead, and twice as its batch is asked for.
    with prefetcher(growths={2: 1, 5: 4}, most=most) as ahead:
        require_batches(ahead, 0)
        ahead.finish()
        with pytest.raises(SampleChangedError) as caught:
            ahead.get(1)
        assert caught.value.filename == "path/5"
        require_batches(ahead, 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_batches_that_are_held_at_random_are_never_overwritten(seed):
    random, held = Random(seed), {}
    with prefetcher(3, most=64) as ahead:
        for index in range(10_000):
            held[index] = ahead.ahead.get(index).outputs[0]
            for one in random.sample(sorted(held), min(len(held), random.randrange(3))):
                assert [content.tobytes() for content in held.pop(one)] == expected(one)


class Held(Recorder):
    """Its samples are in memory already."""

    def views(self, samples, lane):
        contents = [content(sample) for sample in samples.tolist()]
        return views_of(contents)

    def hot(self, samples):
        return bool((samples < 20).all())


@pytest.mark.parametrize("views", [{}, {0: True}])
def test_what_is_hot_needs_no_lane(views):
    order, before = Order(SAMPLES, BATCH, OrderOptions()), lanes()
    catalog = from_files([f"path/{sample}" for sample in range(SAMPLES)])
    reader = Held(catalog, lanes=2)
    ahead = reading_ahead(catalog, reader, order, 1, views=views)
    with contextlib.closing(ahead):
        for index in range(5):
            ahead.read_ahead(index, next_index)
            assert [*map(bytes, ahead.get(index).outputs[0])] == expected(index)
            assert bool(lanes() - before) == (not views)
        for index in (5, 9, 10, 2, 11):  # 5 and 9 are not hot
            assert [*map(bytes, ahead.get(index).outputs[0])] == expected(index)
        assert bool(lanes() - before)
        assert figures(ahead.observer).batches == 10


@pytest.mark.parametrize("point", range(60))
def test_ctrl_c_in_a_hot_batch_does_not_disturb_the_order(point):
    options = OrderOptions(shuffle_after_epoch=True, seed=3)
    right = Order(20, BATCH, options)
    ahead = reading_ahead(
        from_files([f"path/{sample}" for sample in range(20)]),
        Held(from_files(["x"])),
        Order(20, BATCH, options),
        1,
        views={0: True},
    )
    with contextlib.closing(ahead):
        ahead.get(4)
        ends_at(point, sequence, partial(ahead.get, 5))  # which begins the next epoch
        for index in (5, 6, 7, 12):
            batch, samples = ahead.get(index), right.batch(index).tolist()
            assert batch.samples.tolist() == samples
            assert [*map(bytes, batch.outputs[0])] == [*map(content, samples)]


class Picky(Format):
    """Refuses every batch, after a look at its first sample."""

    def decode(self, catalog, delivered, views):
        try:
            int(bytes(look(views.slices()[0])))
        except ValueError as error:
            raise RecordError(b"path", f"no number: {error}") from None


def look(first):
    if first.nbytes:
        raise ValueError("bytes")
    return first


@PIECES
@pytest.mark.parametrize(("broken", "fmt"), [({1}, None), (set(), Picky())], ids=["read", "decode"])
def test_batches_that_fail_keep_no_buffers(broken, fmt, most):
    """Not even while their errors are kept, which refer to those that caused them."""
    errors = []
    with without_collector(), prefetcher(broken=broken, fmt=fmt, most=most) as ahead:
        for _ in range(50):
            with pytest.raises((FileNotFoundError, RecordError)) as caught:
                ahead.get(0)
            errors.append(caught.value)
        assert len(ahead.reader.allocated) <= 5


def test_a_hot_batch_that_fails_keeps_no_memory_of_the_reader():
    buffers = []

    class Noting(Held):
        def views(self, samples, lane):
            found = super().views(samples, lane)
            buffers.append(weakref.ref(found.buffer))
            return found

    catalog = from_files([f"path/{sample}" for sample in range(SAMPLES)])
    order = Order(SAMPLES, BATCH, OrderOptions())
    ahead = reading_ahead(catalog, Noting(catalog), order, 1, views={0: True}, fmt=Picky())
    with without_collector(), contextlib.closing(ahead):
        try:
            look(kept := np.zeros(1))
        except ValueError as before:  # of the caller: its frames stay as they are
            frame = before.__traceback__.tb_next.tb_frame
            with pytest.raises(RecordError) as caught:
                ahead.get(0)
        assert frame.f_locals == {"first": kept}
        assert [buffer() for buffer in buffers] == [None]
        assert caught.value.filename == "path"


def test_a_reader_keeps_no_closed_prefetcher():
    with prefetcher() as ahead:
        require_batches(ahead, 0)
    reader, one = ahead.reader, weakref.ref(ahead.ahead)
    del ahead
    gc.collect()
    assert one() is None
    assert reader.closed


def begin_a_read(ahead):
    """Have a read under way that ends when `reader.go` is set."""
    ahead.get(0)
    ahead.finish()
    ahead.reader.go.clear()
    ahead.get(1)
    wait_until(lambda: ahead.reader.under_way)


def test_closing_from_a_lane_does_not_wait_for_itself():
    with prefetcher(lanes=1) as ahead:
        ahead.reader.before = lambda batch: ahead.close()
        require_batches(ahead, 0)
        wait_until(lambda: ahead.reader.closed)


def test_ctrl_c_while_closing_closes_nothing_under_a_running_read():
    with prefetcher() as ahead:
        begin_a_read(ahead)
        main = threading.main_thread().ident
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
            ahead.close()
        assert (bool(ahead.reader.under_way), ahead.reader.closed) == (True, 0)
        threading.Timer(0.1, ahead.reader.go.set).start()
        ahead.close()
        assert (bool(ahead.reader.under_way), ahead.reader.closed) == (False, 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in finalizers
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("start", [0, 5])
def test_ctrl_c_at_any_point_locks_nothing_up(lanes, start):
    ends = KeyboardInterrupt, RuntimeError  # Thread.start() may turn one into the other
    for point in range(80):
        with prefetcher(lanes=lanes, most=64) as ahead:
            if start:
                for index in range(start):
                    ahead.get(index)
            with contextlib.suppress(*ends), interrupted(Prefetcher.get, point):
                ahead.get(start)
            seen = []

            def go_on(ahead=ahead, seen=seen):
                seen += [ahead.get(index) for index in range(start, start + 5)]
                ahead.close()

            thread = threading.Thread(target=go_on, daemon=True)
            thread.start()
            thread.join(SECONDS)
            assert not thread.is_alive(), point
            assert seen == [expected(index) for index in range(start, start + 5)]
    threading._limbo.clear()  # Python counts interrupted starts


@pytest.mark.parametrize(
    ("cooperative", "turns", "processors", "at_once"),
    [
        *((False, None, 2, 3), (False, 1, 9, 3)),
        *((True, 1, 2, 1), (True, 2, 2, 2), (True, 9, 2, 3)),
        *((True, None, 3, 1), (True, None, 4, 2), (True, None, 7, 2), (True, None, 8, 3)),
    ],
)
def test_lanes_of_a_cooperative_reader_that_copy_at_once_follow_from_the_processors(
    cooperative, turns, processors, at_once, monkeypatch
):
    monkeypatch.setattr("dali_storage.reading.lanes.processors", lambda: processors)
    reader = Recorder(from_files(["x"]), lanes=3)
    reader.cooperative, reader.copying_lanes = cooperative, turns
    assert copying_lanes(reader) == at_once
    seen = set[int]()
    reader.before = lambda batch: seen.add(threading.get_ident())
    ahead = Stream(reader, 5)
    require_batches(ahead, *range(20))
    ahead.close()
    assert reader.most_at_once <= at_once
    assert len(seen) == 1 or at_once > 1, "a lane that never yields keeps its thread"
