"""Containers that are objects: their catalogs, and the readers beside DALI's own.

A catalog is compared with that of the same files on disk, made without objects.
"""

import hashlib
import re
import shutil
import tarfile
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import Mock

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.cli import index as make_index
from dali_storage.contract.errors import ContainerChangedError
from dali_storage.formats import plain, recordio
from dali_storage.formats.files import Files
from dali_storage.formats.lmdb.index import find as find_values
from dali_storage.formats.npy import archive, header
from dali_storage.formats.tar import webdataset
from dali_storage.formats.tar.components import Selection
from dali_storage.formats.tfrecord import index as tfrecord_index
from tests.kit.containers import (
    index_by_wds2idx,
    write_numbered_recordios,
    write_numbered_tars,
    write_numbered_tfrecords,
    write_tar,
)
from tests.kit.databases import write_numbered
from tests.kit.parity import build, compare, of_containers, seeds, some_order
from tests.kit.tiers import by_tier

COUNTS = (3, 1, 4)


@pytest.fixture
def remote(server):
    """What a store knows; its calls are noted."""
    return Mock(wraps=ObjectStoreReader.remote())


def counts(method):
    """Of how many objects, or parts of them, each call has asked."""
    return [len(call.args[0]) for call in method.call_args_list]


def put(server, paths):
    """Put files where URLs name them, which are returned."""
    for path in paths:
        server.put(f"data/c/{Path(path).name}", Path(path).read_bytes())
    return [f"s3://data/c/{Path(path).name}" for path in paths]


def encoded(paths):
    return [path.encode() for path in paths]


def find_tars(paths, indexes, files):
    selection = Selection([b"n"], [np.dtype(np.int64)])
    given = None if indexes is None else encoded(indexes)
    return webdataset.find(encoded(paths), given, selection, may_be_missing=False, files=files)


def find_tfrecords(paths, indexes, files):
    return tfrecord_index.find(encoded(paths), encoded(indexes), files)


def find_recordios(paths, indexes, files):
    return recordio.find(encoded(paths), encoded(indexes)[0], files)


def find_records(paths, indexes, files):
    return plain.find(encoded(paths), [0, 8, 3, 1], [1, 2, 3, 4], [0, 1, 2, 2], None, files)


FORMATS = [
    (find_tars, write_numbered_tars),
    (find_tfrecords, write_numbered_tfrecords),
    (find_recordios, write_numbered_recordios),
    (find_records, write_numbered_tfrecords),
]


@pytest.mark.parametrize("remote_indexes", [False, True])
@pytest.mark.parametrize(("find", "write"), FORMATS)
def test_a_catalog_of_containers_has_the_sizes_and_versions_of_the_objects(
    find, write, server, remote, tmp_path, remote_indexes
):
    paths, indexes = write(tmp_path, COUNTS)
    expected = find(paths, indexes, Files())
    urls = put(server, paths)
    found = find(urls, put(server, indexes) if remote_indexes else indexes, Files(remote))
    assert expected.sizes is None
    assert expected.versions is None
    samples = np.arange(len(expected))
    for catalog in (expected, found):
        assert catalog.ranges is not None
    assert found.files(samples).tolist() == expected.files(samples).tolist()
    for column in ("starts", "sizes"):
        ours, its = (getattr(each.ranges, column) for each in (found, expected))
        assert ours.tolist() == its.tolist()
    assert found.file_paths(np.arange(3)) == encoded(urls)
    assert found.pieces == expected.pieces
    assert (found.containers is None) == (expected.containers is None)
    assert found.sizes is not None
    assert found.versions is not None
    contents = [Path(path).read_bytes() for path in paths]
    assert found.sizes.tolist() == [*map(len, contents)]
    etags = [f'"{hashlib.md5(content).hexdigest()}"'.encode() for content in contents]
    assert found.versions.tolist() == etags
    assert counts(remote.heads) == [3]  # all at once
    reads = [len(indexes)] * (remote_indexes and find is not find_records)
    assert counts(remote.contents) == reads + [5] * (find is find_tars)  # headers: first and last


def test_only_the_first_and_the_last_header_of_a_tar_are_read(server, remote, tmp_path):
    members = [(f"{n}.{e}", b"x" * 5000) for n in range(5) for e in ("j", "n")]
    tar = write_tar(tmp_path / "a.tar", members)
    index = index_by_wds2idx(tar)
    (url,) = put(server, [str(tar)])
    server.log(clear=True)
    find_tars([url], [str(index)], Files(remote))
    gets = [request.headers["range"] for request in server.log() if request.kind == "GET"]
    # 512 bytes of header and 5,120 of data each, and what a long name would take
    assert sorted(gets) == [f"bytes={n * 5632 + 512 - 4096}-{n * 5632 + 511}" for n in (1, 9)]


EIGHT = b"12345678"
LONG = "l" * 96  # only with the longer extension it does not fit into a header
TARS = {
    "another": (["1.n", "2.n"], bytes, ["1.n", "2.jpg", "2.n"], "line 3: 8 bytes at 1,536, but"),
    "longer": (["1.n", "2.n"], lambda data: data[:1540], ["1.n", "2.n"], "the tar has 1,540"),
    "long name": (
        *(["1.n", f"{LONG}.long", f"{LONG}.n", "3.n"], bytes),
        *(["1.n", f"{LONG}.long", f"{LONG}.n", "3.n"], "of type 'L', not of a file"),
    ),
}


@pytest.mark.parametrize(("indexed", "change", "put_there", "says"), TARS.values(), ids=[*TARS])
def test_an_index_of_another_tar_is_refused(
    server, remote, tmp_path, indexed, change, put_there, says
):
    members = [(name, EIGHT) for name in indexed]
    tar = write_tar(tmp_path / "a.tar", members, tarfile.GNU_FORMAT)
    index = index_by_wds2idx(tar)  # of a long name it has the place of the header
    write_tar(tar, [(name, EIGHT) for name in put_there], tarfile.GNU_FORMAT)
    tar.write_bytes(change(tar.read_bytes()))
    (url,) = put(server, [str(tar)])
    with pytest.raises(ContainerChangedError, match=says) as info:
        find_tars([url], [str(index)], Files(remote))
    assert info.value.filename == url


def test_a_range_beyond_its_object_is_refused(server, remote, tmp_path):
    server.put("data/a", b"12345")
    files = Files(remote)
    with pytest.raises(ValueError, match="'s3://data/a' has 5 bytes"):
        plain.find([b"s3://data/a"], [0, 3], [2, 3], None, None, files)
    (tmp_path / "a.idx").write_text("0 4\n2 4\n")
    with pytest.raises(ValueError, match="line 2: 4 bytes at 2 of 's3://data/a', which has 5"):
        find_tfrecords(["s3://data/a"], [str(tmp_path / "a.idx")], files)
    (tmp_path / "a.idx").write_text("0 0\n1 6\n")
    with pytest.raises(ValueError, match="begins at 6, but the files have 5 bytes"):
        find_recordios(["s3://data/a"], [str(tmp_path / "a.idx")], files)


def test_an_index_that_is_an_object_needs_containers_that_are(tmp_path):
    paths, _ = write_numbered_tars(tmp_path, COUNTS)
    with pytest.raises(
        ValueError, match=r"'s3://data/0.idx' is an object, and this backend reads only"
    ):
        find_tars(paths, ["s3://data/0.idx"] * 3, Files())


def test_of_several_wrong_indexes_the_first_is_named(server, remote, tmp_path):
    paths, indexes = write_numbered_tars(tmp_path, [1] * 40)
    for number in (39, 3, 4):
        Path(indexes[number]).write_text("damaged\n")
    urls = put(server, paths)
    for _ in range(3):
        with pytest.raises(ValueError, match=re.escape(f"index '{indexes[3]}', line 1")):
            find_tars(urls, indexes, Files(remote))


# --- the readers, beside DALI's -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["webdataset", "tfrecord", "mxnet"])
def test_containers_in_a_store_are_delivered_as_dali_does(name, server, tmp_path):
    random, found = Random(name), Counter[str]()
    for _ in seeds(by_tier(5, 30)):
        counts = [random.randint(1, 12) for _ in range(random.randint(1, 4))]
        if name == "mxnet":  # DALI asks the file before for the one record of a last file
            counts[-1] = max(counts[-1], 2)
        arguments = of_containers(name, tmp_path, counts)
        for each in ("path", "paths", "index_path", "index_paths"):
            if each in arguments and (each[0] == "p" or random.random() < 0.5):
                arguments[each] = put(server, arguments[each])
        arguments |= some_order(random, sum(counts), by_container=True)
        real, ours = (getattr(module, name) for module in (fn.readers, readers))
        found[compare(random, real, ours, arguments)] += 1
    assert found["equal"] + found["restored"] > 1, found


def databases(directory, counts):
    """Databases of Caffe: of DALI's reader, as files of their own, and their indexes."""
    paths = write_numbered("caffe", directory, counts)["path"]
    files = [directory / f"{number}.mdb" for number in range(len(paths))]
    for path, file in zip(paths, files, strict=True):
        shutil.copyfile(Path(path) / "data.mdb", file)
    assert make_index.main([*map(str, files)]) == 0
    return paths, files, [str(file.with_suffix(".idx")) for file in files]


def test_databases_in_a_store_are_delivered_as_dali_does_from_files(server, tmp_path):
    random, found = Random(5), Counter[str]()
    for seed in seeds(by_tier(3, 30)):
        (tmp_path / str(seed)).mkdir()
        counts = [random.randint(1, 12) for _ in range(random.randint(1, 4))]
        paths, files, indexes = databases(tmp_path / str(seed), counts)
        given = {"path": put(server, files)}
        given["index_path"] = put(server, indexes) if random.random() < 0.5 else indexes
        order = some_order(random, sum(counts), by_container=True, by_epoch=False)
        real, ours = partial(fn.readers.caffe, path=paths), partial(readers.caffe, **given)
        found[compare(random, real, ours, order)] += 1
    assert found["equal"] + found["restored"] > 1, found


def test_an_index_of_another_database_is_refused(server, remote, tmp_path):
    _, files, indexes = databases(tmp_path, [5, 9])
    urls = put(server, files)
    ours = find_values(encoded(urls), encoded(indexes), Files(remote))
    assert counts(remote.contents) == [8]  # the guards of both, at once
    theirs = find_values(encoded(map(str, files)), encoded(indexes))
    assert ours.ranges is not None
    assert theirs.ranges is not None
    assert ours.ranges.starts.tolist() == theirs.ranges.starts.tolist()
    with pytest.raises(ContainerChangedError, match=r"index '.*1.idx' is of another file") as info:
        find_values(encoded(urls[:1]), encoded(indexes[1:]), Files(remote))
    assert info.value.filename == urls[0]


def test_archives_in_a_store_are_read_by_their_directories(server, remote, tmp_path):
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", y=np.zeros(9_000), x=np.arange(3) + number)
    urls = put(server, sorted(tmp_path.glob("*.npz")))
    for given in ({"files": urls}, {"file_root": "s3://data/c"}):
        pipeline = build(readers.npz, 3, {}, members="x", verify=True, **given)
        assert pipeline.run()[0].as_array()[:, 0].tolist() == [0, 1, 2]
    catalog = header.find(None, None, encoded(urls), None, remote)
    archive.find(catalog, ["x", "y"], verify=False, files=Files(remote))
    assert (counts(remote.heads), counts(remote.contents)) == ([3], [3, 6])


def test_arrays_in_a_store_are_delivered_as_dali_does(server, tmp_path):
    random, found = Random(8), Counter[str]()
    for name in ("9", "b/1", "a-b/1", "a-b/2", "a/2", "a/1", "a/deep/1", "!/1", "10"):
        np.save(tmp_path / "array.npy", np.full((random.randint(1, 3), 2), random.random()))
        server.put(f"data/t/{name}.npy", (tmp_path / "array.npy").read_bytes())
    server.put("data/t/a/2.txt", b"no array")
    (tmp_path / "list").write_text("a/2.npy\na-b/1.npy\n")
    for where in (
        {"file_root": "s3://data/t"},
        {"file_root": "s3://data/t/", "file_filter": "[12]*"},
        {"files": ["s3://data/t/a/1.npy", "s3://data/t/9.npy"]},
        {"files": ["a/1.npy", "9.npy"], "file_root": "s3://data/t"},
        {"file_list": str(tmp_path / "list"), "file_root": "s3://data/t"},
    ):
        arguments = {**where, **some_order(random, 2, by_container=False)}
        found[compare(random, fn.readers.numpy, readers.numpy, arguments)] += 1
    assert found["equal"] + found["restored"] > 3, found
