"""The backend of objects on OpenStack Swift, a real implementation of S3."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from dali_storage import readers
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects.store import Stores
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import ObjectReplacedError
from dali_storage.contract.ranges import Ranges
from dali_storage.testing import read
from tests.backends.objects.test_parity import compare
from tests.backends.objects.test_store import get
from tests.kit import parity
from tests.kit.dali import build, take
from tests.kit.objects.client import CONTENTS, publish
from tests.kit.objects.swift_client import SwiftClient

pytestmark = pytest.mark.long

CONTENTS = CONTENTS[:10]
ALL = np.arange(len(CONTENTS))


@pytest.mark.parametrize("listed", [True, False])
def test_an_object_that_was_replaced_or_is_missing_is_named(swift, listed):
    names = Catalog.from_names([b"%02d.jpg" % number for number in ALL], ALL, b"s3://data")
    catalog = publish(swift.put, names, CONTENTS)
    known = catalog if listed else names
    with ObjectStoreReader(known) as reader:
        assert read(reader, ALL, known) == CONTENTS
        # One of the same size, and one of another.
        swift.put("data/03.jpg", CONTENTS[3][::-1])
        swift.put("data/04.jpg", b"shorter")
        for order, named in ((ALL[::-1], "s3://data/04.jpg"), (ALL, "s3://data/03.jpg")):
            with pytest.raises(ObjectReplacedError) as caught:
                read(reader, order, known)
            assert caught.value.filename == named
        others = np.setdiff1d(ALL, [3, 4])
        assert read(reader, others, known) == [CONTENTS[sample] for sample in others]
    missing = replace(known, names=known.names.replace(b"01.jpg", b"no.jpg"))
    with ObjectStoreReader(missing) as reader:
        with pytest.raises(FileNotFoundError) as caught:
            read(reader, ALL[:3], missing)
        assert caught.value.filename == "s3://data/no.jpg"
        assert read(reader, ALL[:1], missing) == CONTENTS[:1]


def test_ranges_and_long_objects_are_read_in_parts(swift):
    long = np.random.default_rng(0).bytes((2 << 20) + 5)
    starts, sizes = np.array([0, 100, 1 << 20, 0]), np.array([5, 100_000, 70_000, len(long)])
    ranges = Ranges.of_columns(np.zeros(4, np.int64), starts, sizes)
    catalog = replace(Catalog.from_names([b"long"], [0] * 4, b"s3://data"), ranges=ranges)
    swift.put("data/long", long)
    columns = zip(starts, sizes, strict=True)
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, ALL[:4], catalog) == [long[at : at + size] for at, size in columns]
        swift.put("data/long", long + b"more")
        with pytest.raises(ObjectReplacedError):
            read(reader, ALL[:4], catalog)


def test_an_error_says_what_to_do(swift, monkeypatch):
    key = "a b/é ?#%41.jpg"
    for name, data in ((key, b"yes"), ("train/a/1.jpg", b"one"), ("train/b/2.jpg", b"two")):
        swift.put(f"bad/{name}", data)
    assert get(f"s3://bad/{key}") == b"yes"
    pipeline = build(readers.file, 2, file_root="s3://bad/train")
    assert take(pipeline, 1) == [(b"one", 0), (b"two", 1)]
    with pytest.raises(ValueError, match="no files"):
        build(readers.file, file_root="s3://bad/none")
    for url, says in (("s3://bad/none", "no such object"), ("s3://not-there/x", "no such bucket")):
        with pytest.raises(FileNotFoundError, match=says):
            get(url)
    with pytest.raises(OSError, match=r"in the region us-east-1; set region"):
        get(f"s3://bad/{key}", Stores(region="eu-central-1"))
    with pytest.raises(OSError):
        get(f"s3://bad/{key}", Stores(anonymous=True))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(PermissionError, match="the secret does not match the access key"):
        get(f"s3://bad/{key}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(PermissionError):
        get(f"s3://bad/{key}")


def _compare(url, seeds, directory):
    """Compare configurations in this process, where DALI makes another client of S3."""
    os.chdir(directory)
    return [compare(SwiftClient(url).put, seed) for seed in seeds]


def test_random_objects_are_delivered_as_dali_does(swift, tmp_path):
    seeds = range(1000, 1002 + parity.RUNS // 10)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        done = pool.submit(_compare, swift.url, seeds, str(tmp_path)).result()
    assert len(done) == len(seeds)
    assert {"equal", "restored"} & {*done}
