"""The stream of a reader's batches, without DALI: its position, opening and closing."""

import contextlib
import gc
import threading
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.memory import MemoryReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import MemoryIsShort
from dali_storage.contract.ranges import Ranges
from dali_storage.contract.reader import Reader
from dali_storage.observing.statistics import figures
from dali_storage.reading import prefetch
from dali_storage.reading.opening import Opening
from dali_storage.reading.source import BatchStream
from dali_storage.runtime import machine
from dali_storage.saving import positions
from tests.kit.interrupts import interrupted
from tests.kit.process import SECONDS, lanes, status_of_fork, wait_until, without_collector
from tests.kit.stand_ins import content

SETTINGS: dict[str, Any] = {"device_id": None}


def take(source, number, pending=0):
    """The samples of the next batches."""
    batches = []
    for _ in range(number):
        batches.append(source.batch().samples.tolist())
        source.position.advance(pending)()
    return batches


def in_list_order(*positions):
    """The samples of batches at these positions."""
    return [[(4 * position + slot) % 10 for slot in range(4)] for position in positions]


def test_a_batch_is_returned_until_it_is_taken(opener):
    source = opener.start()
    seen = []
    for position in range(6):
        for _ in range(1 + position % 3):
            batch = source.batch()
        seen.append(batch.samples.tolist())
        assert source.labels(batch).tolist() == [int(sample >= 5) for sample in batch.samples]
        assert source.labels(batch).dtype == np.int32
        source.position.advance(0)()
    assert seen == in_list_order(*range(6))


def test_a_source_opens_once_and_not_before_it_must(opener):
    source = opener.make()
    source.position.seek(3)
    assert opener.searches == 0
    assert source.meta["epoch_size"] == 10
    source.open()
    source.start(**SETTINGS)
    assert (opener.searches, opener.opened) == (1, 1)


def test_an_opening_that_fails_is_tried_again(opener):
    opener.fails, source = True, opener.make()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            source.start(**SETTINGS)
    opener.fails = False
    source.start(**SETTINGS)
    assert [bytes(it) for it in source.batch().outputs[0]] == list(map(content, range(4)))


@pytest.mark.parametrize(
    ("method", "error", "words"),
    [
        (
            "allocate",
            partial(Reader.allocate, None, 1 << 50),
            "of 1,125,899,906,842,624 bytes",
        ),
        ("allocate", MemoryError, "no memory"),
        ("sizes", partial(MemoryError, "Unable to allocate 8 GiB"), "Unable to allocate 8 GiB"),
        ("read", partial(MemoryError, "GPU 0 is full"), "GPU 0 is full"),
    ],
)
def test_the_batch_without_memory_is_named_and_tried_again(method, error, words, opener):
    def change(reader):
        whole = getattr(reader, method)
        setattr(reader, method, lambda *given: fail() if failing else whole(*given))

    def fail():
        raise error()

    failing, opener.change = [True], change
    source = opener.start()
    with pytest.raises(MemoryError, match=rf"file.name='R'.: batch 0 of 4 samples: .*{words}"):
        source.batch()
    failing.clear()
    assert take(source, 1) == in_list_order(0)


def test_the_seed_of_the_pipeline_replaces_that_of_the_reader(opener):
    def samples(seed, of_pipeline):
        order = {"random_shuffle": True, "initial_fill": 9, "seed": seed}
        return take(opener.start(pipeline_seed=of_pipeline, **order), 5)

    assert samples(7, None) == samples(1, 7) != samples(1, None)


def test_after_a_seek_its_batch_is_the_next(opener):
    source = opener.make()
    source.position.seek(3)  # also before it is opened
    source.start(**SETTINGS)
    seen, wanted = [], list[int]()
    for target in (3, 0, 7, 8, 8, 100_000, 0):
        source.position.seek(target)
        assert source.position.next == target
        source.batch()  # asking does not move on
        seen += take(source, 3)
        wanted += [target, target + 1, target + 2]
    assert seen == in_list_order(*wanted)


@pytest.mark.parametrize(("position", "error"), [(-1, ValueError), (1.5, TypeError)])
def test_a_seek_to_no_position_is_refused(opener, position, error):
    source = opener.make()
    source.position.seek(2)
    with pytest.raises(error):
        source.position.seek(position)
    assert source.position.next == 2


def test_a_successor_that_fails_loses_no_batch(opener):
    def fails(position):
        raise ArithmeticError(position)

    source = opener.start()
    take(source, 2)
    before, source.position.successor = source.position.successor, fails
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            take(source, 1)
    source.position.successor = before
    assert take(source, 2) == in_list_order(2, 3)


@pytest.mark.parametrize("pending", [0, 1, 2])
def test_a_checkpoint_is_of_the_first_batch_not_delivered_also_after_seeks(opener, pending):
    source, restored = opener.start(), opener.make()
    source.position.successor = lambda position: position + 10
    taken = []
    for target in (5, 40, 2):
        source.position.seek(target)
        for _ in range(2):
            taken.append(source.position.next)
            take(source, 1, pending)
    expected = [*taken, source.position.next][-1 - pending]
    checkpoint = positions.checkpoint(source, pending)
    assert checkpoint["batches"] == expected
    positions.restore(restored, checkpoint)
    restored.start(**SETTINGS)
    assert take(restored, 1) == in_list_order(expected)


def test_positions_are_forgotten_when_their_batches_are_delivered(opener):
    source = opener.start()
    take(source, 100, pending=2)
    assert positions.checkpoint(source, pending=3)["batches"] == 97
    with pytest.raises(IndexError):
        positions.checkpoint(source, pending=70)


@pytest.mark.parametrize(
    "order",
    [
        {"random_shuffle": True, "initial_fill": 5, "seed": 3},
        {"shuffle_after_epoch": True},
        {"num_shards": 3, "shard_id": 1, "pad_last_batch": True},
    ],
    ids=str,
)
def test_the_samples_of_any_batch_are_known(opener, order):
    source = opener.make(**order)
    with pytest.raises(RuntimeError, match=r"'R'.*batches are unknown until"):
        source.samples(0)
    source.start(**SETTINGS)
    batches = take(source, 12)
    for position in (11, 0, 4):
        samples = source.samples(position)
        assert samples.dtype == np.int64
        assert samples.tolist() == batches[position]
    assert source.position.next == 12


@pytest.mark.parametrize("batches", [None, 0, 3])
def test_a_closed_source_reads_no_more(opener, batches):
    before, source = lanes(), opener.make()
    source.open()
    if batches is not None:
        source.start(**SETTINGS)
        take(source, batches)
    for _ in range(2):
        source.close()
        assert opener.closed == 1
        assert lanes() <= before
        with pytest.raises(RuntimeError, match=r"'R'\) is closed; build a new pipeline"):
            source.start(**SETTINGS) if batches is None else source.batch()
    assert source.meta["epoch_size"] == 10
    assert figures(source.observer).batches == (batches or 0)
    del source
    gc.collect()
    assert opener.closed == 1


@pytest.mark.parametrize(("held", "batches"), [(3, 6), (20, 41)])
def test_where_memory_is_short_one_batch_is_read_at_a_time_with_a_warning(
    held, batches, opener, monkeypatch
):
    """Also if the queue is so long that an eighth of the memory has room for several batches."""
    monkeypatch.setattr(machine, "cache_memory", lambda: 4 * 16 * batches)
    source = opener.make()
    source.opening = replace(source.opening, depth=4)
    source.start(device_id=None, held=held)
    with pytest.warns(
        MemoryIsShort, match="are free: none is read ahead; give a smaller batch_size"
    ):
        assert take(source, 2) == in_list_order(0, 1)
    source.recent.append("an output")
    assert take(source, 4) == in_list_order(*range(2, 6))  # without another warning
    assert [*source.recent] == []
    assert opener.readers[0].read_batches == in_list_order(*range(6))
    assert opener.readers[0].most_at_once == 1
    why = f"0 (batches may need {(2 + 2 * held) * 64:,} bytes, and {64 * batches:,} are free)"
    assert figures(source.observer).choices["depth"] == why


@pytest.mark.parametrize("queued", [False, True])
def test_a_thread_that_waits_for_a_batch_has_an_error_when_the_source_is_closed(
    opener, queued, monkeypatch
):
    """Its batch is being read, and the read fails; or the batch waits for the only lane."""
    opener.change = lambda reader: setattr(reader, "lanes", 1)
    source, waits, take_one = opener.start(), threading.Event(), prefetch.take
    take(source, 1)
    reader = opener.readers[0]
    reader.go.clear()
    reader.broken, reader.cancel = {*range(10)}, reader.go.set
    source.position.seek(5)
    source.read_ahead()
    wait_until(lambda: reader.under_way)
    source.position.seek(5 + queued)
    monkeypatch.setattr(prefetch, "take", lambda queue: (waits.set(), take_one(queue)))
    raised = SimpleQueue[str]()

    def wait():
        with pytest.raises(RuntimeError) as error:
            source.batch()
        raised.put(str(error.value))

    threading.Thread(target=wait, daemon=True).start()  # a hang ends with the test
    assert waits.wait(SECONDS)
    source.close()
    assert "is closed; build a new pipeline" in raised.get(timeout=SECONDS)


def test_a_source_that_is_closed_while_it_opens_leaves_nothing_open(opener):
    source = opener.make()
    opener.change = lambda reader: source.close()
    with pytest.raises(RuntimeError, match="is closed; build a new pipeline"):
        source.start(**SETTINGS)
    assert opener.closed == opener.opened == 1


def test_a_batch_that_is_taken_while_its_source_is_closed_is_an_error(opener, monkeypatch):
    """Another thread's views would be parts of memory that is not there any more."""
    source = opener.start()
    get = source._prefetcher.get
    monkeypatch.setattr(source._prefetcher, "get", lambda *it: (get(*it), source.close())[0])
    with pytest.raises(RuntimeError, match="is closed; build a new pipeline"):
        source.batch()


def test_a_source_that_is_closed_first_opens_nothing(opener):
    source = opener.make()
    source.close()
    for use in (source.open, lambda: source.start(**SETTINGS), lambda: source.meta):
        with pytest.raises(RuntimeError, match="is closed"):
            use()
    assert opener.searches == 0


# Python only reports what is raised in a finalizer: here of the lease of a batch that nobody took.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("point", range(30))
def test_ctrl_c_in_close_leaves_something_to_close(opener, point):
    before, source = lanes(), opener.start()
    take(source, 2)
    with contextlib.suppress(KeyboardInterrupt), interrupted(BatchStream.close, point):
        source.close()
    source.close()
    assert opener.closed
    wait_until(lambda: lanes() <= before)  # Python lists a thread a moment longer than it runs


@pytest.mark.parametrize("started", [False, True])
def test_a_source_is_closed_when_it_is_dropped(opener, started):
    with without_collector():
        before, source = lanes(), opener.make()
        source.open()
        if started:
            source.start(**SETTINGS)
            source.batch()
        del source
        assert opener.closed == 1
        assert lanes() <= before


@pytest.mark.parametrize("started", [False, True])
def test_a_fork_neither_reads_nor_closes(opener, started):
    held = [opener.make()]
    held[0].open()
    if started:
        held[0].start(**SETTINGS)

    def child():
        with pytest.raises(RuntimeError, match="fork"):
            held[0].batch() if started else held[0].start(**SETTINGS)
        held.clear()
        gc.collect()
        return not opener.closed

    assert status_of_fork(child) == 0


def test_samples_of_several_pieces_are_counted_once():
    labels = np.array([7, 8, 9], np.int32)
    files = Catalog.from_names([b"a", b"b", b"c"], labels)
    pieces = Ranges.of_columns(np.arange(6) // 2, np.zeros(6, np.int64), np.ones(6, np.int64))
    catalog = Catalog(b"", files.names, files.offsets, labels, pieces, pieces=2)
    contents = [np.zeros(1, np.uint8)] * 3
    opening = Opening(
        find=lambda tree, remote: catalog, reader=MemoryReader, options={"contents": contents}
    )
    with contextlib.closing(BatchStream("R", opening)) as source:
        source.configure(batch_size=4, seed=None, checkpointing=False)
        source.start(**SETTINGS)
        assert positions.checkpoint(source, 0)["samples"] == 3
        assert source.meta["epoch_size"] == 3
        batch = source.batch()
        assert batch.samples.tolist() == [0, 1, 2, 0]
        assert len(batch.outputs[0]) == 8
        assert source.labels(batch).tolist() == [7, 8, 9, 7]
