from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.contract import cuda
from dali_storage.contract._types import Buffer, IntArray
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import RecordError, SampleChangedError, SampleSizeChanged
from dali_storage.contract.format import Contents, Format
from dali_storage.contract.reader import Batch, Reader
from dali_storage.order import Order, OrderOptions
from dali_storage.reading.batches import layout, slices
from dali_storage.reading.buffers import BufferPool
from dali_storage.reading.prefetch import LoadedBatch, Prefetcher, ReaderStatistics
from dali_storage.samples.discovery import from_files
from tests.kit.fake_cuda import Cuda, put_on_gpu
from tests.kit.interrupts import interrupted
from tests.kit.process import open_files, threads

SAMPLES = 40
BATCH = 4

CtrlC = Callable[[float], None]


@pytest.fixture
def ctrl_c() -> Iterator[CtrlC]:
    """Has the main thread get a Ctrl-C in some seconds."""
    main = threading.main_thread().ident
    assert main is not None
    # Shells start background commands with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda seconds: threading.Timer(
        seconds, signal.pthread_kill, (main, signal.SIGINT)
    ).start()
    signal.signal(signal.SIGINT, before)


class Model(Reader):
    """Sample i is i + 1 bytes of value i. Fails, blocks and changes sizes on request."""

    alignment = 16

    def __init__(self, catalog: Catalog, *, lanes: int = 2) -> None:
        self.lanes = lanes
        self.broken: set[int] = set()
        self.growths: dict[int, int] = {}
        self.go = threading.Event()
        self.go.set()
        self.seconds = 0.0
        self.read_batches: list[list[int]] = []
        self.under_way: set[int] = set()
        self.most_at_once = 0
        self.closed = 0
        self.allocated = 0

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        return samples + 1

    def read(self, batch: Batch, lane: int) -> None:
        assert lane not in self.under_way, "one lane, two reads"
        assert not self.closed
        self.under_way.add(lane)
        self.most_at_once = max(self.most_at_once, len(self.under_way))
        try:
            self.go.wait()
            self.fill(batch)
        finally:
            self.under_way.remove(lane)

    def fill(self, batch: Batch) -> None:
        if self.seconds:
            time.sleep(self.seconds)
        self.read_batches.append(batch.samples.tolist())
        for sample, start in zip(batch.samples.tolist(), batch.offsets.tolist(), strict=True):
            if sample in self.broken:
                raise FileNotFoundError(2, "gone", f"path/{sample}")
            if self.growths.get(sample, 0):
                self.growths[sample] -= 1
                raise SampleSizeChanged(np.array([sample]))
            batch.buffer[start : start + sample + 1] = sample

    def allocate(self, nbytes: int) -> Buffer:
        self.allocated += 1
        return super().allocate(nbytes)

    def close(self) -> None:
        self.closed += 1


class Stream:
    """The bytes of the batches of a prefetcher."""

    def __init__(self, ahead: Prefetcher) -> None:
        self.ahead = ahead
        self.close = ahead.close

    def get(self, index: int, **options: Any) -> list[bytes]:
        batch = self.ahead.get(index, **options)
        assert len(batch.samples) == len(batch.contents)
        return [content.tobytes() for content in batch.contents]


@contextmanager
def prefetcher(reader: Model, depth: int = 1, fmt: Format | None = None) -> Iterator[Stream]:
    catalog = from_files([f"path/{sample}" for sample in range(SAMPLES)])
    order = Order(SAMPLES, BATCH, OrderOptions())
    ahead = Stream(Prefetcher(catalog, reader, order, depth, fmt=fmt))
    yield ahead
    reader.go.set()
    ahead.close()


def expected(index: int) -> list[bytes]:
    samples = [(index * BATCH + slot) % SAMPLES for slot in range(BATCH)]
    return [bytes([sample]) * (sample + 1) for sample in samples]


def wait_for(condition: object) -> None:
    assert callable(condition)
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("nothing happened for 5 s")


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("depth", [1, 3, 10])
def test_batches_are_delivered_in_order(lanes: int, depth: int) -> None:
    reader = Model(from_files(["x"]), lanes=lanes)
    with prefetcher(reader, depth) as ahead:
        assert [ahead.get(index) for index in range(50)] == [expected(index) for index in range(50)]
    assert reader.most_at_once <= lanes


def test_batches_in_gpu_memory_are_delivered_in_order(gpus: Cuda) -> None:
    reader = Model(from_files(["x"]), lanes=3)
    put_on_gpu(reader, 1)
    with prefetcher(reader, 3) as ahead:
        assert [ahead.get(index) for index in range(50)] == [expected(index) for index in range(50)]
        contents = ahead.ahead.get(50).contents
        assert {content.gpu for content in contents} == {1}  # type: ignore[attr-defined]


@pytest.mark.parametrize("lanes", [1, 3])
def test_gpu_memory_is_read_by_queued_copies_before_it_is_overwritten(
    gpus: Cuda, lanes: int
) -> None:
    """The copies are done as late as possible: when a lane waits for them."""
    reader = Model(from_files(["x"]), lanes=lanes)
    put_on_gpu(reader)
    stream, copies = cuda.CudaStream(0), list[list[bytes]]()
    pool = BufferPool(reader.allocate, stream.fence)
    order = Order(SAMPLES, BATCH, OrderOptions())
    ahead = Prefetcher(from_files(["x"] * SAMPLES), reader, order, 3, pool=pool)

    def queue_copy(contents: list[tuple[int, int]]) -> None:
        def copy() -> None:
            parts = [cuda.DeviceBuffer(*content, 0, None) for content in contents]
            copies.append([gpus.contents(part) for part in parts])

        gpus.queue(stream.pointer, copy)

    for index in range(200):
        pieces: Any = ahead.get(index).contents
        queue_copy([(piece.address, piece.nbytes) for piece in pieces])
        del pieces
    gpus.finish(stream.pointer)
    ahead.close()
    assert copies == [expected(index) for index in range(200)]
    assert not gpus.allocated


def test_batches_can_be_read_in_any_order() -> None:
    with prefetcher(Model(from_files(["x"]))) as ahead:
        for index in (0, 1, 7, 8, 3, 3, 1_000_000, 0, 2, 1, 0):
            assert ahead.get(index) == expected(index)


def test_a_sequential_caller_has_every_batch_read_once() -> None:
    reader = Model(from_files(["x"]), lanes=2)
    with prefetcher(reader, 3) as ahead:
        for index in range(20):
            ahead.get(index)
    batches = [tuple(batch) for batch in reader.read_batches]
    assert 20 <= len(batches) <= 20 + 3
    known = Counter(batch[0] for batch in batches)  # lanes may end in another order
    assert sorted(known) == [index * BATCH for index in range(10)]
    assert min(known.values()) == 2  # twenty batches are all samples twice


@pytest.mark.parametrize("depth", [1, 3, 10])
def test_batches_that_are_left_out_are_never_read(depth: int) -> None:
    """Of each ten batches the last three, as at the end of an epoch."""

    def successor(index: int) -> int:
        return index + 4 if index % 10 == 6 else index + 1

    reader = Model(from_files(["x"]), lanes=2)
    wanted = [index for index in range(40) if index % 10 < 7]
    with prefetcher(reader, depth) as ahead:
        for index in wanted:
            assert ahead.get(index, successor=successor) == expected(index)
    read = [tuple(batch) for batch in reader.read_batches]
    first = [tuple(content[0] for content in expected(index)) for index in wanted]
    # Those of a multiple of ten batches repeat the same samples.
    assert set(read) == set(first)
    assert len(read) <= len(wanted) + depth + 1


def test_a_seek_drops_what_was_read_ahead_and_nothing_that_follows() -> None:
    reader = Model(from_files(["x"]), lanes=2)
    with prefetcher(reader, 3) as ahead:
        ahead.get(0)
        wait_for(lambda: len(reader.read_batches) == 4)
        assert [ahead.get(index) for index in (2, 3)] == [expected(2), expected(3)]
        wait_for(lambda: len(reader.read_batches) == 7)
        time.sleep(0.05)
    firsts = [batch[0] // BATCH for batch in reader.read_batches]
    assert sorted(firsts) == [0, 1, 2, 3, 4, 5, 6]


def test_it_reads_ahead_up_to_the_depth() -> None:
    reader = Model(from_files(["x"]), lanes=1)
    with prefetcher(reader, 3) as ahead:
        ahead.get(0)
        wait_for(lambda: len(reader.read_batches) == 4)
        time.sleep(0.05)
        assert len(reader.read_batches) == 4


def test_the_depth_is_at_least_the_number_of_lanes() -> None:
    reader = Model(from_files(["x"]), lanes=3)
    with prefetcher(reader, 1) as ahead:
        ahead.get(0)
        wait_for(lambda: len(reader.read_batches) == 4 and not reader.under_way)
        reader.go.clear()
        for index in (1, 2, 3):
            ahead.get(index)
        wait_for(lambda: len(reader.under_way) == 3)


def test_an_error_is_raised_with_its_batch_and_not_before() -> None:
    reader = Model(from_files(["x"]))
    reader.broken = {2 * BATCH + 1}
    with prefetcher(reader, 5) as ahead:
        assert [ahead.get(0), ahead.get(1)] == [expected(0), expected(1)]
        for _ in range(3):
            with pytest.raises(FileNotFoundError) as caught:
                ahead.get(2)
            assert caught.value.filename == f"path/{2 * BATCH + 1}"
        assert ahead.get(3) == expected(3)
        reader.broken = set()
        assert ahead.get(2) == expected(2)


def test_a_size_that_changed_once_is_read_again() -> None:
    reader = Model(from_files(["x"]))
    reader.growths = {5: 1}
    with prefetcher(reader) as ahead:
        assert [ahead.get(0), ahead.get(1)] == [expected(0), expected(1)]


def test_a_size_that_keeps_changing_is_refused_by_name() -> None:
    reader = Model(from_files(["x"]))
    reader.growths = {5: 2}
    with prefetcher(reader) as ahead:
        assert ahead.get(0) == expected(0)
        with pytest.raises(SampleChangedError) as caught:
            ahead.get(1)
        assert caught.value.filename == "path/5"
        assert ahead.get(1) == expected(1)


def test_there_are_as_many_buffers_as_batches_in_flight_or_held() -> None:
    reader = Model(from_files(["x"]), lanes=2)
    catalog = from_files(["x"] * SAMPLES)
    order = Order(SAMPLES, BATCH, OrderOptions())
    held: list[LoadedBatch] = []
    ahead = Prefetcher(catalog, reader, order, 3)
    for index in range(200):
        held.append(ahead.get(index))
        del held[:-2]
    ahead.close()
    assert reader.allocated <= 3 + 1 + 2


def test_a_batch_that_is_held_is_never_overwritten() -> None:
    catalog = from_files(["x"] * SAMPLES)
    order = Order(SAMPLES, BATCH, OrderOptions())
    ahead = Prefetcher(catalog, Model(catalog), order, 2)
    held = {index: ahead.get(index).contents for index in range(60)}
    for index, contents in held.items():
        assert [content.tobytes() for content in contents] == expected(index)
    ahead.close()


def test_closing_ends_the_threads_and_closes_the_reader() -> None:
    before = threads()
    reader = Model(from_files(["x"]), lanes=4)
    with prefetcher(reader, 8) as ahead:
        ahead.get(0)
        assert threads() - before
    assert threads() <= before
    ahead.close()
    assert reader.closed


def begin_a_read(ahead: Stream, reader: Model) -> None:
    """Have a read under way that ends when `reader.go` is set."""
    ahead.get(0)
    wait_for(lambda: len(reader.read_batches) == 3 and not reader.under_way)
    reader.go.clear()
    ahead.get(1)
    wait_for(lambda: reader.under_way)


def test_closing_waits_for_running_reads() -> None:
    reader = Model(from_files(["x"]))
    with prefetcher(reader) as ahead:
        begin_a_read(ahead, reader)
        threading.Timer(0.05, reader.go.set).start()
        ahead.close()
        assert not reader.under_way


def test_ctrl_c_while_closing_closes_nothing_under_a_running_read(ctrl_c: CtrlC) -> None:
    reader = Model(from_files(["x"]))
    with prefetcher(reader) as ahead:
        begin_a_read(ahead, reader)
        ctrl_c(0.1)
        with pytest.raises(KeyboardInterrupt):
            ahead.close()
        assert (bool(reader.under_way), reader.closed) == (True, 0)
        threading.Timer(0.1, reader.go.set).start()
        ahead.close()
        assert (bool(reader.under_way), reader.closed) == (False, 1)


def test_closing_from_a_lane_does_not_wait_for_itself() -> None:
    catalog = from_files(["x"] * SAMPLES)

    class Closing(Model):
        def fill(self, batch: Batch) -> None:
            super().fill(batch)
            ahead.close()

    reader = Closing(catalog)
    ahead = Prefetcher(catalog, reader, Order(SAMPLES, BATCH, OrderOptions()), 1)
    assert len(ahead.get(0).samples) == BATCH
    wait_for(lambda: reader.closed)


@pytest.mark.parametrize(
    ("cooperative", "copying_lanes", "at_once"),
    [(False, 1, 3), (True, 1, 1), (True, 2, 2), (True, 9, 3)],
)
def test_lanes_of_a_cooperative_reader_that_have_not_yielded_are_limited(
    cooperative: bool, copying_lanes: int, at_once: int
) -> None:
    reader = Model(from_files(["x"]), lanes=3)
    reader.cooperative, reader.copying_lanes = cooperative, copying_lanes
    reader.go.clear()
    with prefetcher(reader, depth=5) as ahead:
        threading.Timer(0.2, reader.go.set).start()
        assert ahead.get(0) == expected(0)
    assert reader.most_at_once == at_once


@pytest.mark.parametrize(("dali_threads", "at_once"), [(0, 3), (2, 2), (3, 1), (64, 1)])
def test_lanes_of_a_cooperative_reader_take_the_processors_that_dali_leaves_over(
    dali_threads: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dali_storage.reading.lanes.processors", lambda: 4)
    reader = Model(from_files(["x"]), lanes=3)
    reader.cooperative = True
    reader.go.clear()
    order = Order(SAMPLES, BATCH, OrderOptions())
    ahead = Prefetcher(from_files(["x"] * SAMPLES), reader, order, 5, dali_threads=dali_threads)
    threading.Timer(0.2, reader.go.set).start()
    ahead.get(0)
    ahead.close()
    assert reader.most_at_once == at_once


def test_the_next_lane_starts_when_one_yields() -> None:
    class Waiting(Model):
        cooperative, copying_lanes = True, 1

        def fill(self, batch: Batch) -> None:
            self.yield_turn()
            self.yield_turn()  # twice is once
            self.go.wait()
            super().fill(batch)

        def read(self, batch: Batch, lane: int) -> None:
            self.under_way.add(lane)
            self.most_at_once = max(self.most_at_once, len(self.under_way))
            self.fill(batch)
            self.under_way.remove(lane)

    reader = Waiting(from_files(["x"]), lanes=3)
    reader.go.clear()
    with prefetcher(reader) as ahead:
        threading.Timer(0.2, reader.go.set).start()
        assert [ahead.get(index) for index in range(9)] == [expected(index) for index in range(9)]
    assert reader.most_at_once == 3


def test_a_cooperative_reader_that_never_yields_stays_in_one_thread() -> None:
    threads: set[int] = set()

    class Hot(Model):
        cooperative, copying_lanes = True, 1

        def fill(self, batch: Batch) -> None:
            threads.add(threading.get_ident())
            super().fill(batch)

    with prefetcher(Hot(from_files(["x"]), lanes=8)) as ahead:
        for index in range(50):
            assert ahead.get(index) == expected(index)
    assert len(threads) == 1


def test_ctrl_c_while_waiting_loses_nothing(ctrl_c: CtrlC) -> None:
    reader = Model(from_files(["x"]))
    with prefetcher(reader) as ahead:
        reader.go.clear()
        ctrl_c(0.1)
        with pytest.raises(KeyboardInterrupt):
            ahead.get(0)
        reader.go.set()
        assert [ahead.get(0), ahead.get(1)] == [expected(0), expected(1)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in finalizers
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("start", [0, 5])
def test_ctrl_c_at_any_point_locks_nothing_up(lanes: int, start: int) -> None:
    ends = KeyboardInterrupt, RuntimeError  # Thread.start() may turn one into the other
    for point in range(80):
        with prefetcher(Model(from_files(["x"]), lanes=lanes)) as ahead:
            if start:
                ahead.get(0)
            with contextlib.suppress(*ends), interrupted(Prefetcher.get, point):
                ahead.get(start)
            seen: list[list[bytes]] = []

            def go_on(ahead: Stream = ahead, seen: list[list[bytes]] = seen) -> None:
                seen += [ahead.get(index) for index in range(start, start + 5)]
                ahead.close()

            thread = threading.Thread(target=go_on, daemon=True)
            thread.start()
            thread.join(30)
            assert not thread.is_alive(), point
            assert seen == [expected(index) for index in range(start, start + 5)]
    threading._limbo.clear()  # type: ignore[attr-defined]  # Python counts interrupted starts


# --- statistics ---


def wait_until_ready(reader: Model, batches: int) -> None:
    wait_for(lambda: len(reader.read_batches) == batches and not reader.under_way)
    time.sleep(0.05)


@pytest.mark.parametrize(("lanes", "depth"), [(1, 1), (2, 5), (4, 2)])
def test_what_was_given_is_counted(lanes: int, depth: int) -> None:
    with prefetcher(Model(from_files(["x"]), lanes=lanes), depth) as ahead:
        assert ahead.ahead.statistics == ReaderStatistics(depth=max(lanes, depth))
        for batches, index in enumerate((0, 1, 2, 9, 9), 1):
            ahead.get(index)
            assert ahead.ahead.statistics.batches == batches
        counted = ahead.ahead.statistics
    nbytes = sum(len(sample) for index in (0, 1, 2, 9, 9) for sample in expected(index))
    assert (counted.bytes, counted.depth) == (nbytes, max(lanes, depth))
    assert ahead.ahead.statistics == counted  # also when it is closed


def test_a_slow_reader_is_waited_for() -> None:
    reader = Model(from_files(["x"]), lanes=1)
    reader.seconds = 0.05
    with prefetcher(reader, 3) as ahead:
        begin = time.perf_counter()
        for index in range(8):
            ahead.get(index)
        seconds = time.perf_counter() - begin
        counted = ahead.ahead.statistics
    assert seconds >= 8 * 0.05
    assert 0.8 * seconds < counted.wait_seconds <= seconds
    assert counted.ready < 1


def test_a_slow_caller_finds_everything_ready() -> None:
    reader = Model(from_files(["x"]), lanes=2)
    with prefetcher(reader, 3) as ahead:
        ahead.get(0)
        first = ahead.ahead.statistics
        assert first.ready == 0
        for index in range(1, 6):
            wait_until_ready(reader, index + 3)
            ahead.get(index)
        counted = ahead.ahead.statistics
    assert counted.ready == pytest.approx(3 * 5 / 6)
    assert counted.wait_seconds - first.wait_seconds < 0.1  # not the 0.25 s in between


def test_what_a_seek_drops_was_not_ready() -> None:
    reader = Model(from_files(["x"]), lanes=2)
    with prefetcher(reader, 3) as ahead:
        ahead.get(0)
        wait_until_ready(reader, 4)
        ahead.get(2)  # 2 and 3 are ready
        wait_until_ready(reader, 6)
        ahead.get(50)
        assert ahead.ahead.statistics.ready == pytest.approx(2 / 3)


def test_a_batch_that_fails_is_waited_for_and_not_counted() -> None:
    reader = Model(from_files(["x"]), lanes=1)
    reader.seconds, reader.broken = 0.05, {BATCH}
    with prefetcher(reader) as ahead:
        ahead.get(0)
        before = ahead.ahead.statistics
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                ahead.get(1)
        after = ahead.ahead.statistics
    assert (after.batches, after.bytes) == (before.batches, before.bytes)
    assert after.wait_seconds - before.wait_seconds > 3 * 0.04


# --- the layout of a batch ---


@given(
    sizes=st.lists(st.integers(0, 1 << 40), max_size=50),
    alignment=st.sampled_from([1, 16, 512, 4096]),
)
def test_the_layout_gives_every_sample_an_aligned_range_of_its_own(
    sizes: list[int], alignment: int
) -> None:
    offsets, nbytes = layout(np.array(sizes, np.int64), alignment)
    end = 0
    for offset, size in zip(offsets.tolist(), sizes, strict=True):
        assert offset % alignment == 0
        assert offset >= end
        end = offset + -(-size // alignment) * alignment
    assert nbytes == end


@given(
    sizes=st.one_of(
        st.lists(st.integers(0, 50), min_size=1, max_size=20),
        st.builds(lambda size, n: [size] * n, st.integers(0, 50), st.integers(1, 20)),
    ),
    alignment=st.sampled_from([1, 4, 16]),
)
def test_samples_of_one_size_side_by_side_are_rows_of_one_array(
    sizes: list[int], alignment: int
) -> None:
    offsets, nbytes = layout(np.array(sizes, np.int64), alignment)
    arena = np.random.default_rng(1).integers(0, 256, nbytes + 5, np.uint8)
    pool = BufferPool(lambda nbytes: arena)
    lease = pool.lease(nbytes)
    contents = slices(lease, offsets, np.array(sizes))
    assert [content.tobytes() for content in contents] == [
        arena[start : start + size].tobytes()
        for start, size in zip(offsets.tolist(), sizes, strict=True)
    ]
    together = len(set(sizes)) == 1 and (len(sizes) == 1 or sizes[0] % alignment == 0)
    assert isinstance(contents, np.ndarray) == together
    lease_alive = weakref.ref(lease)
    del lease
    assert lease_alive() is not None, "the contents keep it"
    if isinstance(contents, np.ndarray):
        assert contents.shape == (len(sizes), sizes[0])
        assert contents.base is lease_alive()
    part = contents[-1:][0][:0]
    del contents
    assert lease_alive() is not None, "a part of a sample keeps it, too"
    del part
    assert lease_alive() is None


def test_closed_prefetchers_leave_no_files_and_threads() -> None:
    before = open_files(), threads()
    for _ in range(20):
        with prefetcher(Model(from_files(["x"]))) as ahead:
            ahead.get(0)
    assert open_files() <= before[0]
    assert threads() <= before[1]


def test_a_thread_that_cannot_be_started_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader = Model(from_files(["x"]))
    with prefetcher(reader) as ahead:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="start new thread"):
                    ahead.get(0)
        assert [ahead.get(0), ahead.get(1)] == [expected(0), expected(1)]
    assert reader.closed


def test_a_single_lane_does_when_no_more_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_one(self: threading.Thread) -> None:
        if self.name != "dali_storage-0":
            raise RuntimeError("can't start new thread")
        start(self)

    class Waiting(Model):
        cooperative = True

        def fill(self, batch: Batch) -> None:
            self.yield_turn()
            super().fill(batch)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    catalog = from_files(["x"] * SAMPLES)
    ahead = Prefetcher(catalog, Waiting(catalog), Order(SAMPLES, BATCH, OrderOptions()), 1)
    seen = 0
    for _ in range(200):  # some calls fail while the only lane is busy; none hangs
        try:
            ahead.get(seen)
            seen += 1
        except RuntimeError:
            time.sleep(0.001)
    assert seen > 20
    ahead.close()


def test_batches_that_fail_keep_no_buffers() -> None:
    gc.collect()
    gc.disable()
    try:
        reader = Model(from_files(["x"]))
        reader.broken = {1}
        with prefetcher(reader) as ahead:
            for _ in range(50):
                with pytest.raises(FileNotFoundError):
                    ahead.get(0)
            assert reader.allocated <= 5
    finally:
        gc.enable()


class Picky(Format):
    """Refuses every batch, after a look at its first sample."""

    def decode(self, catalog: Catalog, delivered: IntArray, contents: Contents) -> NoReturn:
        try:
            int(bytes(look(contents[0])))
        except ValueError as error:
            raise RecordError(b"path", f"no number: {error}") from None


def look(first: Buffer) -> Buffer:
    if first.nbytes:
        raise ValueError("bytes")
    return first


def test_batches_that_are_refused_keep_no_buffers() -> None:
    """Not even while their errors are kept, which refer to those that caused them."""
    gc.collect()
    gc.disable()
    try:
        reader, errors = Model(from_files(["x"])), []
        with prefetcher(reader, fmt=Picky()) as ahead:
            for _ in range(50):
                with pytest.raises(RecordError) as caught:
                    ahead.get(0)
                errors.append(caught.value)
            assert reader.allocated <= 5
    finally:
        gc.enable()


def test_a_closed_prefetcher_keeps_no_buffers() -> None:
    buffers: list[weakref.ref[Buffer]] = []

    class Watched(Model):
        def allocate(self, nbytes: int) -> Buffer:
            buffer = super().allocate(nbytes)
            buffers.append(weakref.ref(buffer))
            return buffer

    gc.collect()
    gc.disable()
    try:
        with prefetcher(Watched(from_files(["x"]))) as ahead:
            for index in range(10):
                ahead.get(index)
        assert buffers
        assert [buffer for buffer in buffers if buffer() is not None] == []
    finally:
        gc.enable()
