"""Listing objects in many requests at a time; the server's own keys and log are the oracle."""

import contextlib
import gc
import hashlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from random import Random
from unittest.mock import patch

import numpy as np
import obstore
import pytest
from PIL import Image

from dali_storage import Catalog, readers
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects import listing as listing_module
from dali_storage.backends.objects import store, threads
from dali_storage.loaders import image_folder
from tests.kit.objects.client import FOR_EVER
from tests.kit.parity import build, take
from tests.kit.process import without_collector
from tests.kit.tiers import by_tier


def listing(root, choose=list, **options):
    remote = ObjectStoreReader.remote(**options)
    assert remote is not None
    return remote.listing(root.encode(), choose)


def names_of(found):
    bounds = zip(found.offsets.tolist(), found.offsets[1:].tolist(), strict=False)
    return [found.names[start:stop].decode() for start, stop in bounds]


def fill(server, keys):
    for key in keys:
        empty = key.endswith(("/", ".empty"))
        server.put(f"data/train/{key}", b"" if empty else key.encode() * 2)


def assert_lists(found, keys):
    """Exactly these objects, in the order of their keys' bytes."""
    assert names_of(found) == sorted(keys, key=str.encode)
    contents = [b"" if name.endswith(".empty") else name.encode() * 2 for name in names_of(found)]
    assert found.sizes.tolist() == [*map(len, contents)]
    versions = [f'"{hashlib.md5(content).hexdigest()}"'.encode() for content in contents]
    assert found.versions.tolist() == versions


@pytest.mark.parametrize("root", ["s3://data/train", "s3://data/train/"])
def test_objects_below_a_root_and_its_classes_are_listed(server, threads_end, root):
    wanted = ["a/1", "a/2.empty", "a-b/1", "a.b/x?y#z %41.jpg", "top", "b/é\U0001f600", "a/deep"]
    others = ["", "a/", "c/", "a/deep/", "a/deep/1", "d/deep/1", "b/deep-/1", "b/deep/"]
    fill(server, [*wanted, *others])
    server.put("data/train-x/a", b"")
    server.put("data/train", b"")
    found = listing(root)
    assert found.root == root.encode()
    assert_lists(found, wanted)
    bucket = root.replace("train", "").replace("data//", "data/")
    assert names_of(listing(bucket)) == ["train", "train-x/a", "train/top"]
    nothing = listing("s3://data/other")
    assert (nothing.names, nothing.offsets.tolist()) == (b"", [0])
    assert (len(nothing.sizes), len(nothing.versions)) == (0, 0)


def test_classes_that_are_not_chosen_are_not_listed(server):
    keys = [f"{name}/{number}" for name in ("a", "a-b", "b", "c") for number in range(3)]
    fill(server, [*keys, "top"])
    asked = []

    def choose(names):
        asked.extend(names)
        return [name for name in names if name in (b"a", b"c")]

    found = listing("s3://data/train", choose)
    assert sorted(asked) == [b"a", b"a-b", b"b", b"c"]
    assert_lists(found, [key for key in keys if key[:2] in ("a/", "c/")] + ["top"])
    prefixes = {request.key for request in server.log()}
    assert prefixes == {"data/train/", "data/train/a/", "data/train/c/"}
    assert names_of(listing("s3://data/train", lambda names: [])) == ["top"]


def some_tree(random):
    """Classes of which one name starts with another, empty objects, deeper ones and markers."""
    letters = "ab-.!0~é"
    classes = ["".join(random.choices(letters, k=random.randint(1, 3))) for _ in range(200)]
    classes = [name for name in classes if name.strip(".")][: random.choice([1, 3, 20, 200])]
    names = [
        f"{n:0{random.randint(1, 4)}}" for n in random.sample(range(500), random.randint(1, 40))
    ]
    keys = [f"{name}/{file}" for name in classes for file in names if random.random() < 0.7]
    keys += [*random.choices(names, k=3), f"{random.choice(classes)}/x.empty"]
    keys += [f"{random.choice(classes)}/{random.choice(names)}/deep" for _ in range(5)]
    keys += [f"{key.rpartition('/')[0]}/" for key in random.sample(keys, 2) if "/" in key]
    return sorted({*keys})


@pytest.mark.parametrize("seed", range(by_tier(3, 20)))
def test_random_trees_are_listed(server, seed, monkeypatch):
    """Ranges are divided as soon as they have more than a page of a few keys."""
    random = Random(seed)
    page = random.choice([1, 2, 10])
    monkeypatch.setattr(listing_module, "_PAGE", page)
    monkeypatch.setattr(listing_module, "_LONG", 1)
    server.set(page=page)
    keys = some_tree(random)
    fill(server, keys)
    wanted = [key for key in keys if key.count("/") < 2 and not key.endswith("/")]
    assert_lists(listing("s3://data/train"), wanted)


def held(server, count, ask, **options):
    """What `ask` returns. Some of its requests are answered when as many are under way."""
    server.log(clear=True)
    server.fail("slow", count, 600, **options)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        server.until(lambda log: sum(request.fault == "slow" for request in log) == count)
        server.heal()
        return asked.result()


@pytest.mark.parametrize(
    ("classes", "files"), [(100, 20), pytest.param(20, 100, marks=pytest.mark.long), (1, 2000)]
)
def test_2000_objects_are_listed_in_few_requests_at_once(server, monkeypatch, classes, files):
    """In pages of 20, of which a single chain of requests would need 100."""
    monkeypatch.setattr(listing_module, "_PAGE", 20)
    keys = [f"n{label:03}/IMG_{n:05}.jpg" for label in range(classes) for n in range(files)]
    for key in keys:
        server.put(f"data/train/{key}", b"x")
    server.set(page=20)
    server.fail("503", 5, on="LIST", chance=0.1)
    found = held(server, 8, lambda: listing("s3://data/train"), on="LIST", skip=12)
    assert names_of(found) == keys
    log = server.log()
    assert len(log) < 180
    assert all("delimiter" not in request.query for request in log[6:])
    assert max(request.under_way for request in log) <= 32


def test_a_listing_goes_on_at_the_page_that_failed(server):
    keys = [f"a/{number:04}" for number in range(2100)]
    for key in keys:
        server.put(f"data/train/{key}", b"x")
    server.fail("503", 1, on="LIST", key="data/train/a/", skip=1)
    assert names_of(listing("s3://data/train")) == keys
    starts = [request.query for request in server.log() if request.key == "data/train/a/"]
    assert [request.get("start-after", "") for request in starts[:3]] == ["", "", "train/a/0999"]
    assert "continuation-token" in starts[1]
    server.fail("cut", 2, on="LIST", key="data/train/a/", skip=1)
    assert names_of(listing("s3://data/train")) == keys

    server.fail("403", FOR_EVER, on="LIST", key="data/train/a/", skip=1)
    with pytest.raises(PermissionError, match="access is denied") as caught:
        listing("s3://data/train")
    assert caught.value.filename == "s3://data/train"


@pytest.mark.parametrize("how", ["backwards", "pages backwards", "last key again"])
def test_a_store_without_an_order_is_listed_class_by_class(server, monkeypatch, how):
    """As S3 Express One Zone; then every class is listed as a whole."""
    real = obstore.list

    def backwards(*arguments, **options):
        pages = [*real(*arguments, **options)]
        if how == "last key again":
            return iter([[*before[-1:], *page] for before, page in pairwise([[], *pages])])
        return iter([page[::-1] for page in pages] if how == "backwards" else pages[::-1])

    monkeypatch.setattr(listing_module, "_PAGE", 2)
    monkeypatch.setattr(listing_module.obstore, "list", backwards)
    keys = [f"{name}/{number}" for name in ("a", "a-b", "b") for number in range(3)]
    fill(server, keys)
    assert_lists(listing("s3://data/train"), keys)
    server.log(clear=True)
    server.put("data--x-s3/a/1", b"")
    assert names_of(listing("s3://data--x-s3")) == ["a/1"]
    assert all(request.query["delimiter"] == "/" for request in server.log())


def test_ranges_are_divided_at_names_that_a_client_takes(server, monkeypatch):
    """Past "-" come "." and "/", which are no names."""
    monkeypatch.setattr(listing_module, "_PAGE", 2)
    keys = [f"{name}/{mark}{n}.jpg" for name in "ab" for mark in "-,.+" for n in range(1, 8)]
    fill(server, keys)
    server.set(page=2)
    assert_lists(listing("s3://data/train"), keys)


def test_a_key_that_a_store_repeats_is_listed_once(server, monkeypatch):
    """As one without an order may that changes meanwhile; no object is a sample twice."""
    real = obstore.list_with_delimiter

    def twice(*arguments):
        found = real(*arguments)
        return {name: [*each, *reversed(each)] for name, each in found.items()}

    monkeypatch.setattr(listing_module.obstore, "list_with_delimiter", twice)
    for key in ("a/1", "a/2", "b/1", "top"):
        server.put(f"data--x-s3/{key}", key.encode())
    assert names_of(listing("s3://data--x-s3")) == ["a/1", "a/2", "b/1", "top"]


def test_objects_that_stay_are_listed_once_while_others_come(server, monkeypatch):
    """Those that are there all the time are listed once each."""
    monkeypatch.setattr(listing_module, "_PAGE", 3)
    keys = [f"{name}/{n:02}" for name in ("a", "a-b", "b") for n in range(40)]
    for key in keys:
        server.put(f"data/train/{key}", b"x")
    server.set(page=3)
    real, random = obstore.list, Random(0)

    def changing(*arguments, **options):
        for page in real(*arguments, **options):
            name = f"data/train/{random.choice(['a', 'a-b', 'b', 'new'])}/{random.randrange(40):02}"
            server.put(f"{name}.new", b"x")
            yield page

    monkeypatch.setattr(listing_module.obstore, "list", changing)
    found = names_of(listing("s3://data/train"))
    assert [name for name in found if not name.endswith(".new")] == sorted(keys)
    assert found == sorted({*found})


ODD = {
    "a//x": "a//",
    "a/./x": "a/./",
    "a/../x": "a/../",
    "a/tab\tx": "a/tab\tx",
    "a/line\nx": "a/line\nx",
    "..": "..",
    "/x": "/",
}


@pytest.mark.parametrize("key", ODD)
def test_keys_that_obstore_cannot_read_are_named(server, key):
    fill(server, ["a/1", key])
    with pytest.raises(
        ValueError, match=r"has an empty, .* or control characters; rename"
    ) as caught:
        listing("s3://data/train")
    assert repr(f"s3://data/train/{ODD[key]}") in str(caught.value)


@pytest.mark.parametrize("key", ["a/deep//x", "a/deep/../x", "b/deep/./x"])
def test_odd_keys_that_lie_deeper_do_no_harm(server, key):
    fill(server, ["a/1", "a/2", "b/1", key])
    assert names_of(listing("s3://data/train")) == ["a/1", "a/2", "b/1"]
    many = [f"c{number:03}/1" for number in range(100)]
    fill(server, many)
    assert names_of(listing("s3://data/train")) == ["a/1", "a/2", "b/1", *many]


def test_a_class_that_is_a_deep_tree_is_passed_by(server, monkeypatch):
    """DALI lists all of it."""
    monkeypatch.setattr(listing_module, "_PAGE", 10)
    server.set(page=10)
    fill(server, [f"a/deep/{number:03}" for number in range(300)])
    fill(server, ["a/1", "a/z", "b/1"])
    assert_lists(listing("s3://data/train"), ["a/1", "a/z", "b/1"])
    assert len(server.log()) < 10


def test_only_the_classes_with_odd_objects_are_listed_with_a_delimiter(server):
    """A marker, which looks like an empty object; and deeper objects, among many classes."""
    keys = sorted([*(f"c{number:03}/1" for number in range(100)), "c020/marker-1"])
    fill(server, [*keys, "c020/marker/", "c050/deep/1", "c050/deep/2"])
    assert_lists(listing("s3://data/train"), keys)
    exact = {each.key for each in server.log() if "delimiter" in each.query}
    assert exact == {"data/train/", "data/train/c020/", "data/train/c050/"}


def contents(*keys):
    remote = ObjectStoreReader.remote()
    assert remote is not None
    return remote.contents([(f"s3://data/train/{key}".encode(), 0, None) for key in keys])


@pytest.mark.parametrize(
    "ask", [partial(listing, "s3://data/train"), partial(contents, *["a/1", "b/1"] * 20)]
)
def test_an_interrupt_ends_a_wait_for_answers(server, monkeypatch, ask):
    monkeypatch.setattr(threads, "_CLOSING", 0.1)
    fill(server, ["a/1", "b/1"])
    for kind in ("LIST", "GET"):
        server.fail("slow", FOR_EVER, 600, on=kind, skip=1)

    def interrupt():
        server.until(lambda log: any(request.fault for request in log))
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as other:
        other.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask()
        server.heal()


def test_an_error_of_a_request_is_freed_without_the_garbage_collector(server):
    with without_collector():
        with contextlib.suppress(FileNotFoundError):
            contents("no")
        assert not [each for each in gc.get_objects() if type(each) is FileNotFoundError]


class OneLane(ObjectStoreReader):
    """A backend of somebody else, made of ours, with an option that has the name of a parameter."""

    def __init__(self, catalog: Catalog, *, remote: str = "") -> None:
        super().__init__(catalog, lanes=1)

    @classmethod
    def remote(cls, **options):
        return ObjectStoreReader.remote()


@pytest.mark.parametrize("files", [None, ["s3://data/train/a/1.jpg"]])
@pytest.mark.parametrize("backend", ["object-store", OneLane])
def test_credentials_are_looked_up_once_for_a_reader(server, files, backend):
    fill(server, ["a/1.jpg", "b/1.jpg"])
    root = None if files else "s3://data/train"
    options = {"remote": "here"} if backend is OneLane else {}
    arguments = {"files": files, "file_root": root, "backend": backend, "backend_options": options}
    with patch.object(store, "signing", wraps=store.signing) as looked_up:
        take(build(readers.file, 2, {}, **arguments), 1)
    assert looked_up.call_count == 1


def test_sizes_and_parts_of_many_objects_are_asked_for_at_once(server):
    remote = ObjectStoreReader.remote()
    assert remote is not None
    urls = []
    for number in range(100):
        server.put(f"data/{number}", b"x" * number)
        urls.append(b"s3://data/%d" % number)
    sizes, versions = held(server, 16, lambda: remote.heads(urls), on="HEAD")
    assert sizes.tolist() == [*range(100)]
    hashes = [f'"{hashlib.md5(b"x" * number).hexdigest()}"'.encode() for number in range(100)]
    assert versions.tolist() == hashes
    assert max(request.under_way for request in server.log(clear=True)) <= 32
    found = held(server, 16, lambda: remote.contents([(url, 0, None) for url in urls]), on="GET")
    assert found == [b"x" * n for n in range(100)]
    assert max(request.under_way for request in server.log()) <= 32
    server.put("data/index", b"0123456789")
    parts = [(0, None), (3, None), (3, 4), (0, 4), (8, 40)]
    assert remote.contents([(b"s3://data/index", *part) for part in parts]) == [
        *(b"0123456789", b"3456789", b"3456", b"0123", b"89")
    ]
    for ask in (
        lambda: remote.heads([urls[0], b"s3://data/no"]),
        lambda: remote.contents([(url, 0, None) for url in (urls[0], b"s3://data/no")]),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            ask()
        assert caught.value.filename == "s3://data/no"


def test_an_image_folder_may_be_a_url(server, tmp_path):
    server.serve("data", tmp_path)
    for name in ("train/cat/1.png", "train/cat-b/2.png", "train/dog/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), len(name), np.uint8)).save(tmp_path / name)
    options = {"train": False, "batch_size": 3, "device": "cpu", "num_threads": 1}
    options["backend_options"] = {"requests": 8}
    with image_folder("s3://data/train", **options) as loader:
        assert next(iter(loader))[1].tolist() == [0, 1, 2]
        assert loader.classes == ("cat-b", "cat", "dog")
    with image_folder("s3://data/train", classes=["cat", "dog"], **options) as loader:
        for use in (len, lambda loader: loader.classes):
            with pytest.raises(ValueError, match="not expected: 'cat-b'"):
                use(loader)
    with pytest.raises(ValueError, match="backend 'python-file' cannot read 's3://data/train'"):
        image_folder("s3://data/train", **options | {"backend": "python-file"})
    (tmp_path / "train" / "stray.png").write_bytes(b"")
    with (
        image_folder("s3://data/train", **options) as loader,
        pytest.raises(
            ValueError, match=r"'stray.png' directly in 's3://data/train': not in a class"
        ),
    ):
        len(loader)
