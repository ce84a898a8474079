"""The backend of objects, over a server that fails on demand. Containers: test_containers.py."""

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects import threads
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import ObjectReplacedError
from dali_storage.contract.ranges import Ranges
from dali_storage.testing import ObjectTests, RangeTests, read
from tests.kit.objects.client import CONTENTS, FOR_EVER, Served, publish, unlisted
from tests.kit.objects.fault_server import ERRORS, FAULTS
from tests.kit.paths import ROOT
from tests.kit.process import alone, resident
from tests.kit.tiers import by_tier


class TestObjects(Served, RangeTests, ObjectTests):
    """Objects that are not listed: asked for their sizes and versions at first use."""

    batches = 300

    def open(self, catalog):
        return ObjectStoreReader(catalog)


both_transports = pytest.mark.usefixtures("transport")
BAD = 3  # the sample that fails in these tests
ALL = np.arange(len(CONTENTS))


def put_all(server, contents=CONTENTS):
    """Objects, and the catalog that a listing would give."""
    names = [b"%02d.jpg" % number for number in range(len(contents))]
    return publish(server.put, Catalog.from_names(names, range(len(names)), b"s3://data"), contents)


def put(server, number, content):
    server.put(f"data/{number:02d}.jpg", content)


def asked(server, number=BAD):
    """The requests for an object since the last call of `server.log(True)`."""
    return [entry for entry in server.log() if entry.key == f"data/{number:02d}.jpg"]


def url(number=BAD):
    return f"s3://data/{number:02d}.jpg"


@pytest.fixture
def catalog(server):
    """Of CONTENTS, which the server has, with sizes and versions."""
    return put_all(server)


def put_container(server, contents, gap):
    """A catalog of ranges of one object, `gap` bytes apart."""
    catalog = unlisted(put_all(server, [b"".join(bytes(gap) + each for each in contents)]))
    sizes = np.array([len(content) for content in contents], np.int64)
    starts = np.cumsum(sizes + gap) - sizes
    return replace(catalog, ranges=Ranges.of_columns(np.zeros_like(starts), starts, sizes))


REPLACED = ObjectReplacedError, "was replaced"
FULL = [content for content in CONTENTS if content]
KINDS = {  # how they are put, and the samples that are read while one fails
    "objects": (put_all, CONTENTS, ALL),
    "ranges": (partial(put_container, gap=100_000), FULL, ALL[:1]),
}


def faults(server):
    """Of the tries to get the first object, which all have asked for the same."""
    tries = [entry for entry in asked(server, 0) if entry.kind == "GET"]
    assert len({(each.headers["if-match"], each.headers.get("range")) for each in tries}) == 1
    return [each.fault for each in tries]


MODES = "503", "cut", "short", "longer", "stall", pytest.param("slow", marks=pytest.mark.long)


@both_transports
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_failure_that_may_pass_is_made_good(server, kind, mode):
    make, contents, samples = KINDS[kind]
    catalog, waits = make(server, contents), mode in ("stall", "slow")
    tries = 1 if waits else 2
    server.fail(mode, tries, 60 if waits else None, key="data/00.jpg")
    if mode in ("503", "cut"):
        server.fail(mode, 2, on="HEAD")
    with ObjectStoreReader(catalog, timeout=0.5 if waits else 60) as reader:
        assert read(reader, samples, catalog) == contents[: len(samples)]
        assert faults(server)[: tries + 1] == [mode] * tries + [""]
        assert read(reader, np.arange(len(contents)), catalog) == contents


UNSIZED = "sent no Content-Length; turn off compression in the server or proxy, and chunked"
MOVED = f"proxy Content-Range: bytes 0-99999/{sum(map(len, FULL)) + 100_000 * len(FULL)}"
FINAL = [
    *((mode, 60, *REPLACED) for mode in ("412", "foreign-etag", "no-etag", "cut-swap")),
    ("403", 60, PermissionError, "access is denied"),
    ("500", 0, OSError, "500"),
    ("cut", 0, ConnectionResetError, "limits of size and time in the server and its proxies"),
    ("longer", 0, OSError, "instead of .*; check the server and its proxies"),
    ('proxy gzip; ETag: W/"other"', 60, OSError, "Encoding: gzip.* turn off.*'gzip'"),
    ("proxy chunked", 60, OSError, UNSIZED),
    ("proxy unsized; cut", 60, OSError, UNSIZED),
]


@both_transports
@pytest.mark.parametrize(
    ("kind", "mode", "retry", "error", "says"),
    [
        *((kind, *each) for kind in KINDS for each in FINAL),
        ("ranges", "wrong-size", 60, *REPLACED),
        ("ranges", "no-range", 60, OSError, "ignores Range"),
        ("ranges", MOVED, 60, OSError, "a different byte range"),
    ],
)
def test_a_failure_that_stays_names_the_object(server, kind, mode, retry, error, says, transport):
    make, contents, samples = KINDS[kind]
    catalog = make(server, contents)
    mode, _, changes = mode.partition(" ")
    tries = 2 if transport == "own" and mode != "cut-swap" else 1  # obstore's is the last
    server.fail(mode, tries, changes or None, key="data/00.jpg")
    with ObjectStoreReader(catalog, retry=retry) as reader:
        with pytest.raises(error, match=says) as caught:
            read(reader, samples, catalog)
        assert caught.value.filename == url(0)
        assert faults(server) == [mode] * tries + [""] * (mode == "cut-swap")
        make(server, contents)
        assert read(reader, np.arange(len(contents)), catalog) == contents


@both_transports
@pytest.mark.parametrize(
    ("changes", "kinds", "asked"),
    [
        ("chunked", ["HEAD"], "identity"),
        ("unsized", ["HEAD"], "identity"),
        ("Content-Length: 0", ["HEAD"], "identity"),
        ("Content-Encoding: identity", ["HEAD", "GET"], "identity"),
        ("Content-Encoding: aws-chunked", ["HEAD", "GET"], "identity"),
        ("Content-Encoding: gzip", ["HEAD", "GET"], "gzip"),
        ("Content-Encoding: aws-chunked, x-gzip", ["HEAD", "GET"], "zstd, gzip;q=0.5"),
    ],
)
def test_a_head_without_a_size_and_an_encoding_that_was_asked_for_are_no_errors(
    server, catalog, changes, kinds, asked
):
    options = {"default_headers": {"Accept-Encoding": asked}}
    for each in (catalog, unlisted(catalog)):
        for kind in kinds:
            server.fail("proxy", FOR_EVER, changes, on=kind)
        with ObjectStoreReader(each, client_options=options) as reader:
            assert read(reader, ALL, catalog) == CONTENTS
            server.heal()
            server.fail("proxy", FOR_EVER, "br")
            with pytest.raises(OSError, match="Content-Encoding: br"):
                read(reader, ALL[:1], catalog)
        server.heal()


@both_transports
@pytest.mark.parametrize(("gap", "requests"), [(32 << 10, 1), ((32 << 10) + 1, 3)])
def test_ranges_that_lie_close_together_are_one_request(server, gap, requests):
    contents = [b"first" * 1000, b"second", b"third" * 100]
    catalog = put_container(server, contents, gap)
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, np.array([2, 0, 1]), catalog) == [contents[2], contents[0], contents[1]]
    assert [entry.kind for entry in server.log()] == ["HEAD"] + ["GET"] * requests


@both_transports
def test_a_long_object_is_asked_for_in_parts_at_once(server):
    contents = [np.random.default_rng(0).bytes((6 << 20) + 5), b"small"]
    catalog = put_all(server, contents)
    with ObjectStoreReader(catalog, requests=3, lanes=1) as reader:
        server.fail("cut", key="data/00.jpg", skip=1)
        assert read(reader, np.array([0, 1, 0]), catalog) == [contents[0], contents[1], contents[0]]
        parts = [entry for entry in asked(server, 0) if not entry.fault]
        sizes = [1 - eval(entry.headers["range"].removeprefix("bytes=")) for entry in parts]
        assert sum(sizes) == 2 * len(contents[0])
        assert max(sizes) <= 4 << 20
        assert max(entry.under_way for entry in server.log()) <= 3
    with ObjectStoreReader(catalog, requests=64, lanes=1) as reader:
        server.log(True)
        assert read(reader, np.array([0]), catalog) == contents[:1]
        assert len(server.log()) == 7  # a MiB each


@both_transports
@pytest.mark.parametrize("requests", [pytest.param(1, marks=pytest.mark.long), 64])
def test_the_parts_of_an_object_that_is_replaced_meanwhile_are_never_mixed(server, requests):
    catalog = put_all(server, [bytes(9 << 20)])
    with ObjectStoreReader(catalog, lanes=1, requests=requests) as reader:
        server.fail("replace")  # after the first part
        with pytest.raises(ObjectReplacedError):
            read(reader, np.array([0]), catalog)
        put(server, 0, bytes(9 << 20))
        assert read(reader, np.array([0]), catalog) == [bytes(9 << 20)]


@both_transports
@pytest.mark.parametrize("cached", [False, True])
def test_random_faults_lead_to_no_wrong_byte(server, tmp_path, cached):
    """Random faults, three lanes, hedging, buffers used again; then all is read again."""
    chance = random.Random(13)
    catalog = put_all(server, CONTENTS * 5)
    modes = [*ERRORS, *(mode for mode in FAULTS if mode not in ("cut-swap", "replace"))]
    options = {"hedge": 0.03, "timeout": 0.3, "retry": 0.5}
    options |= {"cache": tmp_path / "cache"} if cached else {}
    right, failed = [], []

    def check(samples, lane):
        found = read(reader, samples, catalog, lane=lane, buffer=buffers[lane])
        assert found == [CONTENTS[i % 20] for i in samples]
        right.append(lane)

    def run(lane):
        numbers = np.random.default_rng(lane)
        for _ in range(by_tier(30, 300)):
            try:
                check(numbers.integers(0, len(catalog), 12), lane)
            except OSError as error:
                failed.append(error)

    with ObjectStoreReader(catalog, **options) as reader, ThreadPoolExecutor(3) as threads:
        buffers = [reader.allocate(4 << 20) for _ in range(3)]
        server.fail("403", 100)  # both transports are refused in the first reads of all lanes
        runs = [threads.submit(run, lane) for lane in range(3)]
        while not all(each.done() for each in runs):
            server.fail(chance.choice(modes), chance.choice([1, 5]), 0.1, chance=0.2)
            with suppress(TimeoutError):
                runs[0].result(0.02)
        for each in runs:
            each.result()
        server.heal()
        right.clear()
        for part in np.array_split(np.arange(len(catalog)), 50):
            while len(right) < 50:
                try:
                    check(part, 0)
                    break
                except TimeoutError:  # on a busy machine, 0.3 seconds may be too few
                    pass
    assert failed
    assert all(str(error.filename).startswith("s3://data/") for error in failed)


def test_the_version_that_one_lane_has_seen_first_counts_for_all(server, catalog):
    known, sample = unlisted(catalog), np.array([BAD])
    with ObjectStoreReader(known) as reader, ThreadPoolExecutor(1) as threads:
        server.fail("slow", 1, 600, on="HEAD")
        slow = threads.submit(read, reader, sample, known, lane=1)
        server.until(lambda log: log)
        assert read(reader, sample, known) == [CONTENTS[BAD]]
        put(server, BAD, CONTENTS[BAD][::-1])  # the answer to the slow one
        server.heal()
        with pytest.raises(ObjectReplacedError):
            slow.result()
        with pytest.raises(ObjectReplacedError):
            read(reader, sample, known)


def test_listed_objects_are_asked_for_once_and_others_twice(server, catalog):
    server.fail("no-range", FOR_EVER)  # a GET of a whole object must not depend on Range
    for each, heads in ((catalog, 0), (unlisted(catalog), len(CONTENTS))):
        server.log(True)
        with ObjectStoreReader(each) as reader:
            for expected in (heads, 0):
                assert read(reader, ALL, each) == CONTENTS
                kinds = [entry.kind for entry in server.log(True)]
                assert kinds.count("HEAD") == expected


@both_transports
@pytest.mark.parametrize(("requests", "lanes"), [(1, 3), (5, 1), (5, 3), (40, 3)])
def test_as_many_requests_are_under_way_as_allowed_and_no_more(
    server, catalog, request_threads, requests, lanes, transport
):
    server.set(latency=0.02)  # a slow store gets more than 16
    with (
        ObjectStoreReader(catalog, requests=requests, lanes=lanes) as reader,
        ThreadPoolExecutor(lanes) as pool,
    ):
        some = ALL[: 4 * requests]
        reads = [pool.submit(read, reader, some, catalog, lane=lane) for lane in range(lanes)]
        assert all(each.result() == CONTENTS[: len(some)] for each in reads)
        if transport == "obstore":
            assert min(requests, 17) <= len(request_threads()) <= requests
    assert max(entry.under_way for entry in server.log()) <= requests


@both_transports
def test_the_lane_that_came_first_is_served_first(server, catalog):
    with ObjectStoreReader(catalog, requests=2) as reader, ThreadPoolExecutor(2) as pool:
        server.fail("slow", 2, 600)
        first = pool.submit(read, reader, ALL[:10], catalog, lane=0)
        server.until(lambda log: [entry.fault for entry in log].count("slow") == 2)
        second = pool.submit(read, reader, ALL[10:], catalog, lane=1)
        server.heal()
        assert first.result() + second.result() == CONTENTS
        order = [at for it in server.log() if CONTENTS[at := int(it.key[5:7])]]  # not by threads
        assert max(order[:8]) < 10  # of two requests under way, the later one may be logged first


@both_transports
def test_closing_gives_up_a_request_that_hangs(server, catalog, threads_end, monkeypatch):
    monkeypatch.setattr(threads, "_CLOSING", 0.1)
    reader = ObjectStoreReader(catalog, hedge=0.05, timeout=600)
    server.fail("slow", 1, 600, key=f"data/{BAD:02d}.jpg")
    assert read(reader, ALL[BAD : BAD + 1], catalog) == [CONTENTS[BAD]]
    assert [entry.fault for entry in asked(server)] == ["slow", ""]
    reader.close()
    reader.close()
    server.heal()  # the last thread ends with its request


PROGRAM = """
import sys
from dali_storage import readers
from tests.kit.dali import build
print(len(build(readers.file, files=sys.argv[1:]).run()[0]))
"""


@pytest.mark.long
def test_a_program_that_ends_while_requests_are_under_way_exits_with_0(server, catalog):
    server.set(latency=0.01)
    command = [sys.executable, "-c", PROGRAM, *(url(number) for number in range(len(CONTENTS)))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr


@pytest.mark.long
@alone
def test_the_memory_of_a_reader_does_not_grow(server, catalog):
    with ObjectStoreReader(catalog, hedge=0.05) as reader:
        buffer = reader.allocate(1 << 20)
        for number in range(by_tier(100, 400)):
            if number == 50:
                before = resident()
            read(reader, ALL, catalog, buffer=buffer)
        assert resident() - before < 8 << 20  # a batch has 0.8 MB


@pytest.fixture
def web(server):
    """A file of a web server without ETags, and its catalog."""
    server.put("data/file", b"a body")
    give_tag(server, None)
    return Catalog.from_names([b"file"], [0], f"{server.url}/data".encode())


def give_tag(server, tag):
    """All answers have this ETag, or none."""
    server.heal()
    for method in ("HEAD", "GET"):
        server.fail("foreign-etag" if tag else "no-etag", FOR_EVER, tag, on=method)


@pytest.mark.parametrize(
    ("tag", "change"),
    [
        (None, lambda server: server.set(modified="Thu, 01 Jan 2026 00:00:01 GMT")),
        (None, lambda server: server.put("data/file", b"written within the same second")),
        ('W/"1"', lambda server: give_tag(server, 'W/"2"')),
    ],
)
def test_without_a_strong_etag_time_size_and_weak_etag_are_compared(server, web, tag, change):
    give_tag(server, tag)
    with ObjectStoreReader(web) as reader:
        assert read(reader, np.array([0])) == [b"a body"]
        assert not any("if-match" in request.headers for request in server.log())
        change(server)
        with pytest.raises(ObjectReplacedError):
            read(reader, np.array([0]))


def test_the_first_object_of_a_batch_that_has_no_version_is_named(server, web):
    server.set(modified="")
    for number in range(10):
        server.put(f"data/{number}", b"a body")
    server.heal()
    server.fail("no-etag", 1, 0.2, on="HEAD", key="data/9")  # its answer is the last one
    server.fail("no-etag", FOR_EVER, on="HEAD")
    catalog = Catalog.from_names([b"%d" % number for number in range(10)], range(10), web.root)
    with ObjectStoreReader(catalog) as reader, pytest.raises(OSError, match="neither ETag") as it:
        read(reader, np.arange(10)[::-1])
    assert it.value.filename == os.fsdecode(catalog.path(9))


@both_transports
def test_without_a_version_an_object_is_refused_unless_it_is_not_to_be_checked(server, web):
    server.set(modified="")
    with ObjectStoreReader(web) as reader, pytest.raises(OSError, match="check=False") as it:
        read(reader, np.array([0]))
    assert it.value.filename == os.fsdecode(web.path(0))
    with ObjectStoreReader(web, check=False) as reader:
        for body in (b"a body", b"o body"):
            server.put("data/file", body)
            assert read(reader, np.array([0])) == [body]
        server.put("data/file", b"longer body")
        with pytest.raises(ObjectReplacedError):
            read(reader, np.array([0]))
