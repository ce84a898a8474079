"""dali_storage.reading.source: position, opening and closing, without DALI."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.memory import MemoryReader
from dali_storage.contract._types import Buffer, address_of
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable, NotPageLocked
from dali_storage.contract.ranges import Ranges
from dali_storage.contract.reader import Batch, Reader
from dali_storage.order import OrderOptions
from dali_storage.reading.opening import Opening
from dali_storage.reading.source import BatchStream
from dali_storage.samples.discovery import from_directory
from tests.kit.fake_cuda import Cuda, put_on_gpu
from tests.kit.interrupts import interrupted
from tests.kit.process import threads
from tests.kit.trees import Tree

SETTINGS: dict[str, Any] = {"num_threads": 1, "device_id": None}


class Opener:
    """Opens a reader of a directory's files and counts how often."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.change: Callable[[Reader], object] = lambda reader: None
        self.device = "cpu"
        self.opened = 0
        self.closed = 0

    def opening(self, **settings: Any) -> Opening:
        class Counted(MemoryReader):
            def __init__(reader, catalog: Catalog) -> None:  # noqa: N805
                super().__init__(catalog)
                self.change(reader)

            def close(reader) -> None:  # noqa: N805
                self.closed += 1
                super().close()

        return Opening(find=self._find, reader=Counted, device=self.device, **settings)

    def _find(self, tree: object, remote: object) -> Catalog:
        self.opened += 1
        return from_directory(self.root)


@pytest.fixture
def opener(tree: Tree) -> Opener:
    return Opener(tree(10, classes=2))


def make(
    opener: Opener,
    pinned: bool | None = None,
    **order: int,
) -> BatchStream:
    source = BatchStream("R", opener.opening(order=OrderOptions(**order), pinned=pinned))
    source.configure(batch_size=4, seed=None, checkpointing=False)
    return source


def test_a_batch_is_returned_until_it_is_taken(opener: Opener) -> None:
    source = make(opener)
    source.start(**SETTINGS)
    seen = []
    for position in range(6):
        for _ in range(1 + position % 3):
            batch = source.batch()
        seen += batch.samples.tolist()
        assert source.labels(batch).tolist() == [int(sample >= 5) for sample in batch.samples]
        assert source.labels(batch).dtype == np.int32
        source.position.advance(0)()
    assert seen == [sample % 10 for sample in range(24)]


def test_it_opens_once_and_not_before_it_must(opener: Opener) -> None:
    source = make(opener)
    assert opener.opened == 0
    assert source.meta["epoch_size"] == 10
    source.open()
    source.start(**SETTINGS)
    assert opener.opened == 1


def test_an_opening_that_fails_is_tried_again(opener: Opener) -> None:
    opener.root = opener.root / "later"
    source = make(opener)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            source.start(**SETTINGS)
    (opener.root / "class").mkdir(parents=True)
    (opener.root / "class" / "a.jpg").write_bytes(b"a")
    source.start(**SETTINGS)
    assert [bytes(content) for content in source.batch().contents] == [b"a"] * 4


def test_the_seed_of_the_pipeline_replaces_that_of_the_reader(opener: Opener) -> None:
    def samples(seed: int, of_pipeline: int | None) -> list[int]:
        order = OrderOptions(random_shuffle=True, initial_fill=9, seed=seed)
        source = BatchStream("R", opener.opening(order=order))
        source.configure(batch_size=10, seed=of_pipeline, checkpointing=False)
        source.start(**SETTINGS)
        return source.batch().samples.tolist()

    assert samples(7, None) == samples(1, 7) != samples(1, None)


def take(source: BatchStream, number: int, pending: int = 0) -> list[list[int]]:
    """The samples of the next batches."""
    batches = []
    for _ in range(number):
        batches.append(source.batch().samples.tolist())
        source.position.advance(pending)()
    return batches


def batch_of_list(position: int) -> list[int]:
    return [sample % 10 for sample in range(4 * position, 4 * position + 4)]


def test_after_a_seek_its_batch_is_the_next(opener: Opener) -> None:
    source = make(opener)
    source.position.seek(3)  # also before it is opened
    assert opener.opened == 0
    source.start(**SETTINGS)
    seen, wanted = [], list[int]()
    for target in (3, 0, 7, 8, 8, 100_000, 0):
        source.position.seek(target)
        assert source.position.next == target
        source.batch()  # asking does not move on
        seen += take(source, 3)
        wanted += [target, target + 1, target + 2]
    assert seen == list(map(batch_of_list, wanted))


@pytest.mark.parametrize(("position", "error"), [(-1, ValueError), (1.5, TypeError)])
def test_a_seek_to_no_position_is_refused(
    opener: Opener, position: Any, error: type[Exception]
) -> None:
    source = make(opener)
    source.position.seek(2)
    with pytest.raises(error):
        source.position.seek(position)
    assert source.position.next == 2


def test_batches_that_are_left_out_are_not_read(opener: Opener) -> None:
    """Epochs of five batches, of which the last two are left out."""
    read: list[list[int]] = []

    def change(reader: Reader) -> None:
        original = reader.read

        def recorded(batch: Batch, lane: int) -> None:
            read.append(batch.samples.tolist())
            original(batch, lane)

        reader.read = recorded  # type: ignore[method-assign]

    opener.change = change
    source = make(opener)
    source.start(**SETTINGS)
    source.position.successor = lambda position: position + 3 if position % 5 == 2 else position + 1
    assert take(source, 5) == list(map(batch_of_list, (0, 1, 2, 5, 6)))
    source.position.seek(22)
    assert take(source, 3) == list(map(batch_of_list, (22, 25, 26)))
    source.close()
    left_out = [batch_of_list(position) for position in (3, 4)]
    assert len(read) >= 8
    assert not [batch for batch in read if batch in left_out]


def test_a_successor_that_fails_loses_no_batch(opener: Opener) -> None:
    def fails(position: int) -> int:
        raise ArithmeticError(position)

    source = make(opener)
    source.start(**SETTINGS)
    take(source, 2)
    before, source.position.successor = source.position.successor, fails
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            take(source, 1)
    source.position.successor = before
    assert take(source, 2) == list(map(batch_of_list, (2, 3)))


@pytest.mark.parametrize("pending", [0, 1, 2])
def test_a_state_is_of_the_first_batch_not_delivered_also_after_seeks(
    opener: Opener, pending: int
) -> None:
    source = make(opener)
    source.start(**SETTINGS)
    source.position.successor = lambda position: position + 10
    taken = []
    for target in (5, 40, 2):
        source.position.seek(target)
        for _ in range(2):
            taken.append(source.position.next)
            take(source, 1, pending)
    expected = [*taken, source.position.next][-1 - pending]
    assert source.checkpoint(pending)["batches"] == expected


def test_positions_are_forgotten_when_their_batches_are_delivered(opener: Opener) -> None:
    source = make(opener)
    source.start(**SETTINGS)
    for _ in range(100):
        take(source, 1, pending=2)
    assert source.checkpoint(pending=3)["batches"] == 97
    with pytest.raises(IndexError):
        source.checkpoint(pending=6)


@pytest.mark.parametrize(
    "order",
    [
        {"random_shuffle": True, "initial_fill": 5, "seed": 3},
        {"shuffle_after_epoch": True},
        {"num_shards": 3, "shard_id": 1, "pad_last_batch": True},
    ],
    ids=str,
)
def test_the_samples_of_any_batch(opener: Opener, order: dict[str, int]) -> None:
    source = make(opener, **order)
    with pytest.raises(RuntimeError, match=r"'R'.*batches are known when"):
        source.samples(0)
    source.start(**SETTINGS)
    batches = take(source, 12)
    for position in (11, 0, 4):
        samples = source.samples(position)
        assert samples.dtype == np.int64
        assert samples.tolist() == batches[position]
    assert source.position.next == 12


@pytest.mark.parametrize("batches", [None, 0, 3])
def test_a_closed_source_reads_no_more(opener: Opener, batches: int | None) -> None:
    before, source = threads(), make(opener)
    source.open()
    if batches is not None:
        source.start(**SETTINGS)
        take(source, batches)
    for _ in range(2):
        source.close()
        assert opener.closed == 1
        assert threads() <= before
        with pytest.raises(RuntimeError, match=r"'R'\) is closed; make the pipeline anew"):
            source.start(**SETTINGS) if batches is None else source.batch()
    assert source.meta["epoch_size"] == 10
    assert source.statistics.batches == (batches or 0)
    del source
    gc.collect()
    assert opener.closed == 1


def test_a_source_that_is_closed_first_opens_nothing(opener: Opener) -> None:
    source = make(opener)
    source.close()
    for use in (source.open, lambda: source.start(**SETTINGS), lambda: source.meta):
        with pytest.raises(RuntimeError, match="is closed"):
            use()
    assert opener.opened == 0


# Python only reports what is raised in a finalizer: here of the lease of a batch that nobody took.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("point", range(30))
def test_ctrl_c_in_close_leaves_something_to_close(opener: Opener, point: int) -> None:
    before, source = threads(), make(opener)
    source.start(**SETTINGS)
    take(source, 2)
    with contextlib.suppress(KeyboardInterrupt), interrupted(BatchStream.close, point):
        source.close()
    source.close()
    assert opener.closed
    assert threads() <= before


@pytest.mark.parametrize("started", [False, True])
def test_it_is_closed_when_it_is_dropped(opener: Opener, started: bool) -> None:
    gc.disable()
    try:
        before = threads()
        source = make(opener)
        source.open()
        if started:
            source.start(**SETTINGS)
            source.batch()
        del source
        assert opener.closed == 1
        assert threads() <= before
    finally:
        gc.enable()


@pytest.mark.parametrize(("taken", "pending"), [(0, 0), (5, 0), (5, 2)])
def test_a_restored_source_goes_on_with_the_first_batch_not_delivered(
    opener: Opener, taken: int, pending: int
) -> None:
    first, second = make(opener), make(opener)
    first.start(**SETTINGS)
    batches = []
    for _ in range(taken + 1):
        batches.append(first.batch().samples.tolist())
        first.position.advance(pending)()
    second.restore(first.checkpoint(1 + pending))
    second.start(**SETTINGS)
    assert second.batch().samples.tolist() == batches[taken - pending]


def test_samples_of_several_pieces_are_counted_once(tree: Tree) -> None:
    files = from_directory(tree(3, sizes=(9,)))
    sizes = np.ones(6, np.int64)
    ranges = Ranges.of_columns(np.arange(6) // 2, np.zeros(6, np.int64), sizes)
    catalog = replace(files, ranges=ranges, pieces=2)
    with contextlib.closing(
        BatchStream("R", Opening(find=lambda tree, remote: catalog, reader=MemoryReader))
    ) as source:
        source.configure(batch_size=4, seed=None, checkpointing=False)
        source.start(**SETTINGS)
        assert source.checkpoint(0)["samples"] == 3
        assert source.meta["epoch_size"] == 3
        batch = source.batch()
        assert batch.samples.tolist() == [0, 1, 2, 0]
        assert len(batch.contents) == 8
        assert source.labels(batch).tolist() == files.labels[[0, 1, 2, 0]].tolist()


def test_a_checkpoint_of_other_samples_is_refused(opener: Opener) -> None:
    checkpoint = make(opener).checkpoint(0)
    with pytest.raises(ValueError, match=r"'R'.*with 9 samples, and here it is 10 samples"):
        make(opener).restore(checkpoint | {"samples": 9})


@pytest.mark.parametrize("started", [False, True])
def test_a_fork_neither_reads_nor_closes(opener: Opener, started: bool) -> None:
    source = make(opener)
    source.open()
    if started:
        source.start(**SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads is the subject
        child = os.fork()
    if child == 0:
        try:
            source.batch() if started else source.start(**SETTINGS)
        except RuntimeError as error:
            refused = "fork" in str(error)
            del error, source
            os._exit(17 if refused and not opener.closed else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


# GPUs


def take_batches(source: BatchStream, number: int = 20) -> None:
    for _ in range(number):
        source.batch()
        source.position.advance(0)()


@pytest.mark.parametrize(("pinned", "device_id"), [(None, 0), (None, 1), (True, 0)])
def test_with_a_gpu_every_buffer_is_page_locked_once(
    opener: Opener, gpus: Cuda, pinned: bool | None, device_id: int
) -> None:
    source = make(opener, pinned)
    source.start(**SETTINGS | {"device_id": device_id})
    assert source.pinned
    assert source.stream is None
    contents = source.batch().contents
    memory: Any = contents[1]
    start = address_of(np.frombuffer(memory.obj, np.uint8))
    assert any(0 <= start - base < nbytes for base, nbytes in gpus.registered.items())
    del memory, contents
    take_batches(source)  # a second registration of a buffer would be refused
    buffers = dict(gpus.registered)
    take_batches(source)
    assert gpus.registered == buffers
    del source
    gc.collect()
    assert gpus.registered == {}


@pytest.mark.parametrize(("pinned", "device_id"), [(None, None), (False, None), (False, 0)])
def test_nothing_is_page_locked_without_a_gpu_or_with_false(
    opener: Opener, gpus: Cuda, pinned: bool | None, device_id: int | None
) -> None:
    source = make(opener, pinned)
    source.start(**SETTINGS | {"device_id": device_id})
    take_batches(source)
    assert not source.pinned
    assert gpus.registered == {}


def test_without_cuda_a_warning_says_what_it_costs_and_what_to_install(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    source = make(opener)
    with pytest.warns(NotPageLocked, match=r"DALI copies every sample.*pip install.*pinned=False"):
        source.start(**SETTINGS | {"device_id": 0})
    assert not source.pinned
    take_batches(source)


def test_the_warning_as_an_error_leaves_nothing_open(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    source = make(opener)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(NotPageLocked):
                source.start(**SETTINGS | {"device_id": 0})
        silent = make(opener, pinned=False)
        silent.start(**SETTINGS | {"device_id": 0})
    take_batches(silent)
    del source, silent
    gc.collect()
    assert opener.closed == opener.opened == 2


def test_what_must_be_page_locked_and_cannot_is_an_error(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match="pip install"):
        make(opener, pinned=True).start(**SETTINGS | {"device_id": 0})
    with pytest.raises(ValueError, match="pinned=True needs a pipeline with a GPU"):
        make(opener, pinned=True).start(**SETTINGS)


def test_memory_that_cuda_refuses_to_page_lock_is_known_from_the_start(
    opener: Opener, gpus: Cuda
) -> None:
    gpus.capacity = 0
    source = make(opener)
    with pytest.warns(NotPageLocked, match="cannot page-lock"):
        source.start(**SETTINGS | {"device_id": 0})
    assert not source.pinned
    take_batches(source)
    with pytest.raises(MemoryError, match="cannot page-lock"):
        make(opener, pinned=True).start(**SETTINGS | {"device_id": 0})


def test_a_buffer_that_cannot_be_page_locked_is_an_error_of_its_batch(
    opener: Opener, gpus: Cuda
) -> None:
    source = make(opener)
    source.start(**SETTINGS | {"device_id": 0})
    gpus.capacity = 1
    with pytest.raises(MemoryError, match="pinned=False"):
        source.batch()


@pytest.mark.parametrize("pinned", [None, True, False])
def test_a_reader_of_page_locked_memory_is_left_alone(
    opener: Opener, gpus: Cuda, pinned: bool | None
) -> None:
    def change(reader: Reader) -> None:
        reader.pinned, reader.gpu = True, 0

    opener.change = change
    source = make(opener, pinned)
    source.start(**SETTINGS | {"device_id": 0})
    take_batches(source)
    assert source.pinned
    assert gpus.registered == {}


def test_batches_in_gpu_memory_come_with_a_stream(opener: Opener, gpus: Cuda) -> None:
    opener.device, opener.change = "gpu", lambda reader: put_on_gpu(reader, 1)
    source = make(opener)
    source.start(**SETTINGS | {"device_id": 1})
    contents: list[Buffer] = [*source.batch().contents]
    expected = [Path(os.fsdecode(source.open()[0].path(i))).read_bytes() for i in range(4)]
    assert [content.tobytes() for content in contents] == expected
    assert {content.gpu for content in contents} == {1}  # type: ignore[attr-defined]
    assert source.stream is not None
    assert source.stream.gpu == 1
    assert not source.pinned
    with pytest.raises(ValueError, match="pinned=True is for host memory"):
        make(opener, pinned=True).start(**SETTINGS | {"device_id": 1})


@pytest.mark.parametrize(("device_id", "named"), [(0, "GPU 0"), (None, "no GPU")])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_another_gpu_than_that_of_the_pipeline_is_refused(
    opener: Opener, gpus: Cuda, device_id: int | None, named: str, on_gpu: bool
) -> None:
    opener.device = "gpu" if on_gpu else "cpu"
    opener.change = lambda reader: put_on_gpu(reader, 1) if on_gpu else setattr(reader, "gpu", 1)
    source = make(opener)
    with pytest.raises(ValueError, match=rf"'R'.*uses GPU 1.*has {named}.*device_id"):
        source.start(**SETTINGS | {"device_id": device_id})
    del source
    gc.collect()
    assert opener.closed == 1
