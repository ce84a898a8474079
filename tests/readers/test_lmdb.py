"""readers.lmdb: what py-lmdb wrote."""

import os
from random import Random

import lmdb
import pytest

from dali_storage import readers
from dali_storage.backends.memory import MemoryReader
from dali_storage.contract.errors import ContainerChangedError
from dali_storage.formats.lmdb.index import find
from tests.kit.databases import write_lmdb, write_numbered
from tests.kit.parity import BACKENDS, build, take


def values(count, seed=1):
    random = Random(seed)
    return [random.randbytes(random.choice([0, 3, 900, 2500, 9000])) for _ in range(count)]


def outputs(batch_size=4, batches=1, **arguments):
    """The bytes of data and labels of some batches, by output."""
    pipeline = build(readers.lmdb, batch_size, {}, **arguments)
    found = take(pipeline, batches)
    return [[it[2] for batch in found for it in batch[output]] for output in range(len(found[0]))]


def numbers(labels):
    return [int.from_bytes(it, "little", signed=True) for it in labels]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_values_are_delivered_in_the_order_of_their_keys(backend, options, indexed, tmp_path):
    one, two = values(30), values(7, seed=2)
    paths = [write_lmdb(tmp_path / "a", one), write_lmdb(tmp_path / "b", two) / "data.mdb"]
    indexes = None
    if indexed:
        indexes = [tmp_path / "a" / "data.idx", tmp_path / "b" / "data.idx"]
        from dali_storage.cli import index

        for path in indexes:
            assert index.main([str(path.with_suffix(".mdb"))]) == 0
    data, labels = outputs(
        37, path=paths, index_path=indexes, backend=backend, backend_options=options
    )
    assert data == one + two
    assert numbers(labels) == [*range(37)]


def test_labels_are_a_column(tmp_path):
    path = write_lmdb(tmp_path / "a", values(4))
    assert numbers(outputs(path=path, labels=[5, -1, 2**31, 0])[1]) == [5, -1, -(2**31), 0]


def test_a_database_without_values_counts_for_nothing_unless_it_is_the_only_one(tmp_path):
    empty, one = write_lmdb(tmp_path / "empty", []), write_lmdb(tmp_path / "one", [b"x"])
    assert outputs(1, path=[empty, one])[0] == [b"x"]
    with pytest.raises(ValueError, match=r"path '.*empty/data.mdb', ... has no values"):
        outputs(path=[empty, empty])


WRITERS = [{}, {"writemap": True}, {"writemap": True, "map_async": True}]
WRITERS.append({"writemap": True, "sync": False})  # leaves the file's time as it is


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("first", [False, True], ids=["before it is read", "while it is read"])
@pytest.mark.parametrize("writer", WRITERS, ids=str)
def test_a_database_that_is_written_is_refused_by_name(writer, first, indexed, direct, tmp_path):
    """DALI delivers other records without an error."""

    def write(content):
        with base.begin(write=True) as transaction:
            for number in range(40):
                transaction.put(b"%08d" % number, content)

    path, options = tmp_path / "db", {"prefetch_queue_depth": 1}
    with lmdb.open(str(path), map_size=1 << 24, **writer) as base:
        for _ in range(8):  # later ones write to pages that these have written
            write(b"old" * 2000)
        if indexed:
            from dali_storage.cli import index

            assert index.main([str(path)]) == 0
        given = {"index_path": path / "data.idx"} if indexed else {}
        given |= {"backend": "python-file", "backend_options": {"direct": direct}}
        pipeline = build(readers.lmdb, 2, options, path=path, lazy_init=False, **given)
        if first:
            assert {it[2] for it in take(pipeline, 1)[0][0]} == {b"old" * 2000}
        write(b"new" * 2000)
        with pytest.raises(ContainerChangedError, match="was written or replaced") as info:
            take(pipeline, 20)
        assert info.value.filename == str(path / "data.mdb")


@pytest.mark.parametrize("writer", WRITERS, ids=str)
def test_a_database_that_is_written_before_it_is_loaded_is_refused(writer, tmp_path):
    with lmdb.open(str(tmp_path), map_size=1 << 20, **writer) as base:
        for content in (b"old", b"older"):
            with base.begin(write=True) as transaction:
                transaction.put(b"key", content)
        catalog = find([os.fsencode(tmp_path)], None)
        with base.begin(write=True) as transaction:
            transaction.put(b"key", b"new")
        with pytest.raises(ContainerChangedError, match="written or replaced") as info:
            MemoryReader(catalog)
    assert info.value.filename == str(tmp_path / "data.mdb")


def test_a_checkpoint_of_another_database_is_refused(tmp_path):
    """Its values are at the same places, and its meta pages are the same."""
    options = {"enable_checkpointing": True, "prefetch_queue_depth": 1}
    path = write_lmdb(tmp_path / "db", [b"a1", b"a2", b"a3"])
    pipeline = build(readers.lmdb, 1, options, path=path)
    take(pipeline, 1)
    saved = {**options, "checkpoint": pipeline.checkpoint()}
    assert take(build(readers.lmdb, 1, saved, path=path), 1)[0][0][0][2] == b"a2"
    os.rename(path, tmp_path / "other")
    write_lmdb(path, [b"b1", b"b2", b"b3"])
    with pytest.raises(ValueError, match="resume with the same data set"):
        take(build(readers.lmdb, 1, saved, path=path), 1)


def test_a_missing_database_and_a_missing_index_are_named(tmp_path):
    with pytest.raises(FileNotFoundError) as info:
        outputs(path=tmp_path / "none")
    assert info.value.filename == str(tmp_path / "none")
    with pytest.raises(FileNotFoundError) as info:
        outputs(path=write_lmdb(tmp_path / "a", [b"x"]), index_path=tmp_path / "none.idx")
    assert info.value.filename == str(tmp_path / "none.idx")


def test_the_records_of_caffe_are_raw_here(tmp_path):
    (path,) = write_numbered("caffe", tmp_path, [3])["path"]
    expected = [bytes(value) for _, value in lmdb.open(path, readonly=True).begin().cursor()]
    assert outputs(3, path=path)[0] == expected
