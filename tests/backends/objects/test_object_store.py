"""The backend of objects, over a server that fails on demand. Containers: test_containers.py."""

import gc
import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from dali_storage import readers
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects import pool as requests
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import ObjectReplacedError
from dali_storage.contract.ranges import Ranges
from dali_storage.testing import ObjectTests, RangeTests, read
from tests.kit.dali import build
from tests.kit.interrupts import is_interrupted
from tests.kit.objects.client import FOR_EVER
from tests.kit.objects.fault_server import ERRORS, FAULTS
from tests.kit.paths import ROOT
from tests.kit.tiers import by_tier


class TestObjects(RangeTests, ObjectTests):
    """Objects that are not listed: asked for their sizes and versions at first use."""

    batches = 300

    @pytest.fixture(autouse=True)
    def bucket(self, server, directory):
        self.server, self.directory_served = server, directory
        server.serve("data", directory)

    def open(self, catalog):
        return ObjectStoreReader(catalog)

    def published(self, catalog):
        return replace(catalog, root=b"s3://data")

    def file(self, catalog, sample):
        return self.directory_served / os.fsdecode(catalog.name(sample))


CONTENTS = [
    np.random.default_rng(number).bytes(size)
    for number, size in enumerate([100_000, 1, 0, 4096, 70_001, 5, 65_536, 99, 30_000, 12_345] * 2)
]
BAD = 3  # the sample that fails in these tests
ALL = np.arange(len(CONTENTS))


def put_all(server, contents=CONTENTS):
    """Objects, and the catalog that a listing would give."""
    for number, content in enumerate(contents):
        put(server, number, content)
    names = [b"%02d.jpg" % number for number in range(len(contents))]
    etags = [b'"%s"' % hashlib.md5(content).hexdigest().encode() for content in contents]
    sizes = np.array([len(content) for content in contents], np.int64)
    catalog = Catalog.from_names(names, range(len(names)), b"s3://data")
    return replace(catalog, sizes=sizes, versions=np.array(etags))


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


def unlisted(catalog):
    return replace(catalog, sizes=None, versions=None)


@pytest.mark.parametrize(
    ("mode", "arg"),
    [("503", None), ("cut", None), ("short", None), ("longer", None), ("stall", 60), ("slow", 60)],
)
def test_a_request_whose_failure_may_pass_is_made_again(server, catalog, mode, arg):
    with ObjectStoreReader(catalog, timeout=0.5 if arg else 60) as reader:
        server.fail(mode, 2, arg, key="data/00.jpg")
        assert read(reader, ALL, catalog) == CONTENTS
    tries = asked(server, 0)
    assert [entry.fault for entry in tries][:3] == [mode, mode, ""]
    assert len({entry.headers["if-match"] for entry in tries}) == 1


@pytest.mark.parametrize(
    ("mode", "error", "says", "tries"),
    [
        ("403", PermissionError, "access is denied", 1),
        ("412", ObjectReplacedError, "was replaced", 1),
        ("foreign-etag", ObjectReplacedError, "was replaced", 1),
        ("no-etag", ObjectReplacedError, "was replaced", 1),
        ("cut-swap", ObjectReplacedError, "was replaced", 2),
    ],
)
def test_an_error_that_stays_names_the_object_and_the_others_can_be_read(
    server, catalog, mode, error, says, tries
):
    with ObjectStoreReader(catalog) as reader:
        server.fail(mode, key=f"data/{BAD:02d}.jpg")
        with pytest.raises(error, match=says) as caught:
            read(reader, ALL, catalog)
        assert caught.value.filename == url()
        assert len(asked(server)) == tries
        put(server, BAD, CONTENTS[BAD])
        assert read(reader, ALL, catalog) == CONTENTS


def test_the_option_retry_ends_the_tries(server, catalog):
    server.fail("500", FOR_EVER, key=f"data/{BAD:02d}.jpg")
    with ObjectStoreReader(catalog, retry=0) as reader, pytest.raises(OSError, match="500") as it:
        read(reader, ALL, catalog)
    assert it.value.filename == url()
    assert len(asked(server)) == 1


def put_container(server, contents, gap):
    """A catalog of ranges of one object, `gap` bytes apart."""
    catalog = unlisted(put_all(server, [b"".join(bytes(gap) + each for each in contents)]))
    sizes = np.array([len(content) for content in contents], np.int64)
    starts = np.cumsum(sizes + gap) - sizes
    return replace(catalog, ranges=Ranges.of_columns(np.zeros_like(starts), starts, sizes))


@pytest.mark.parametrize(
    ("mode", "error", "says"),
    [
        ("wrong-size", ObjectReplacedError, "was replaced"),
        ("foreign-etag", ObjectReplacedError, "was replaced"),
        ("no-range", OSError, "ignores Range"),
        ("short", None, ""),
        ("longer", None, ""),
        ("cut", None, ""),
    ],
)
def test_an_answer_to_a_range_is_checked(server, mode, error, says):
    contents = [content for content in CONTENTS if content]
    catalog = put_container(server, contents, 100_000)
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, np.array([1]), catalog) == [contents[1]]
        server.log(True)
        server.fail(mode)
        if error is None:
            assert read(reader, np.array([0]), catalog) == [contents[0]]
            assert len({entry.headers["range"] for entry in asked(server, 0)}) == 1
            assert len(asked(server, 0)) == 2
        else:
            with pytest.raises(error, match=says) as caught:
                read(reader, np.array([0]), catalog)
            assert caught.value.filename == url(0)


@pytest.mark.parametrize(("gap", "requests"), [(32 << 10, 1), ((32 << 10) + 1, 3)])
def test_ranges_that_lie_close_together_are_one_request(server, gap, requests):
    contents = [b"first" * 1000, b"second", b"third" * 100]
    catalog = put_container(server, contents, gap)
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, np.array([2, 0, 1]), catalog) == [contents[2], contents[0], contents[1]]
    assert [entry.kind for entry in server.log()] == ["HEAD"] + ["GET"] * requests


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


@pytest.mark.parametrize("requests", [1, 64])
def test_the_parts_of_an_object_that_is_replaced_meanwhile_are_never_mixed(server, requests):
    catalog = put_all(server, [bytes(9 << 20)])
    with ObjectStoreReader(catalog, lanes=1, requests=requests) as reader:
        server.fail("replace")  # after the first part
        with pytest.raises(ObjectReplacedError):
            read(reader, np.array([0]), catalog)
        put(server, 0, bytes(9 << 20))
        assert read(reader, np.array([0]), catalog) == [bytes(9 << 20)]


@pytest.mark.parametrize("cached", [False, True])
def test_random_faults_lead_to_no_wrong_byte(server, tmp_path, cached):
    """Random faults, three lanes, hedging; then all is read again."""
    chance = random.Random(13)
    catalog = put_all(server, CONTENTS * 5)
    modes = [*ERRORS, *(mode for mode in FAULTS if mode not in ("cut-swap", "replace"))]
    options = {"hedge": 0.03, "timeout": 0.3, "retry": 0.5}
    options |= {"cache": tmp_path / "cache"} if cached else {}
    right, failed = [], []

    def check(samples, lane):
        assert read(reader, samples, catalog, lane=lane) == [CONTENTS[i % 20] for i in samples]
        right.append(lane)

    def run(lane):
        numbers = np.random.default_rng(lane)
        for _ in range(by_tier(30, 300)):
            try:
                check(numbers.integers(0, len(catalog), 12), lane)
            except OSError as error:
                failed.append(error)

    with ObjectStoreReader(catalog, **options) as reader, ThreadPoolExecutor(3) as threads:
        server.fail("403")
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
    for each, heads in ((catalog, 2), (unlisted(catalog), len(CONTENTS) + 2)):  # two are empty
        server.log(True)
        with ObjectStoreReader(each) as reader:
            for expected in (heads, 2):
                assert read(reader, ALL, each) == CONTENTS
                kinds = [entry.kind for entry in server.log(True)]
                assert kinds.count("HEAD") == expected


@pytest.mark.parametrize(("requests", "lanes"), [(1, 3), (5, 1), (5, 3), (40, 3)])
def test_as_many_requests_are_under_way_as_allowed_and_no_more(
    server, catalog, request_threads, requests, lanes
):
    server.set(latency=0.02)  # a slow store gets more than 16
    with (
        ObjectStoreReader(catalog, requests=requests, lanes=lanes) as reader,
        ThreadPoolExecutor(lanes) as pool,
    ):
        reads = [pool.submit(read, reader, ALL, catalog, lane=lane) for lane in range(lanes)]
        assert all(each.result() == CONTENTS for each in reads)
        assert min(requests, 17) <= len(request_threads()) <= requests
    assert max(entry.under_way for entry in server.log()) <= requests


def test_the_lane_that_came_first_is_served_first(server, catalog):
    with ObjectStoreReader(catalog, requests=2) as reader, ThreadPoolExecutor(2) as pool:
        server.fail("slow", 2, 600)
        first = pool.submit(read, reader, ALL[:10], catalog, lane=0)
        server.until(lambda log: len(log) == 2)
        second = pool.submit(read, reader, ALL[10:], catalog, lane=1)
        server.heal()
        assert first.result() + second.result() == CONTENTS
        order = [int(entry.key[5:7]) for entry in server.log()]
        assert max(order[:9]) < 10  # of two requests under way, the later one may be logged first


def test_the_option_hedge_makes_a_slow_request_once_more(server, catalog):
    server.fail("slow", 1, 600, key=f"data/{BAD:02d}.jpg")
    with ObjectStoreReader(catalog, hedge=0.05) as reader:
        assert read(reader, ALL[BAD : BAD + 1], catalog) == [CONTENTS[BAD]]
        assert [entry.fault for entry in asked(server)] == ["slow", ""]
        server.heal()


def test_closing_gives_up_a_request_that_hangs(server, catalog, threads_end, monkeypatch):
    monkeypatch.setattr(requests, "_CLOSING", 0.1)
    reader = ObjectStoreReader(catalog, hedge=0.05, timeout=600)
    server.fail("slow", 1, 600, key=f"data/{BAD:02d}.jpg")
    assert read(reader, ALL[BAD : BAD + 1], catalog) == [CONTENTS[BAD]]
    reader.close()
    reader.close()
    server.heal()  # the last thread ends with its request


def test_a_pipeline_does_not_wait_for_a_store_that_hangs(server, catalog, threads_end, monkeypatch):
    monkeypatch.setattr(requests, "_CLOSING", 0.1)
    pipeline = build(
        readers.file,
        files=[url(number) for number in range(len(CONTENTS))],
        backend_options={"timeout": 600},
    )
    server.fail("slow", FOR_EVER, 600)
    assert is_interrupted(pipeline.run, 0.2)
    del pipeline
    gc.collect()
    server.heal()


def test_a_reader_that_is_closed_while_it_reads_says_so(server, catalog, monkeypatch):
    monkeypatch.setattr(requests, "_CLOSING", 0.1)
    with ObjectStoreReader(catalog, retry=600) as reader, ThreadPoolExecutor(2) as threads:
        server.fail("503", FOR_EVER, key="data/00.jpg")  # it pauses
        server.fail("slow", 1, 600, key=f"data/{BAD:02d}.jpg")  # it waits for an answer
        reads = [
            threads.submit(read, reader, samples, catalog, lane=lane)
            for lane, samples in enumerate([ALL[:1], ALL[BAD:]])
        ]
        server.until(lambda log: {"503", "slow"} <= {entry.fault for entry in log})
        reader.close()
        for each in reads:
            with pytest.raises(OSError, match="the reader was closed"):
                each.result()
        server.heal()


PROGRAM = """
import sys
from nvidia.dali import Pipeline
from dali_storage import readers
from dali_storage.contract._types import IntArray

pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None)
with pipeline:
    pipeline.set_outputs(*readers.file(files=sys.argv[1:], labels=[0] * len(sys.argv[1:])))
data, _ = pipeline.run()
print(len(data))
"""


def test_a_program_that_ends_while_requests_are_under_way_exits_with_0(server, catalog):
    server.set(latency=0.01)
    command = [sys.executable, "-c", PROGRAM, *(url(number) for number in range(len(CONTENTS)))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr


MEMORY = """
import mmap, sys
from pathlib import Path
import numpy as np
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.contract.catalog import Catalog
from dali_storage.testing import read

batches = int(sys.argv[1])
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
catalog = Catalog.from_names([b"%02d.jpg" % i for i in range(20)], range(20), b"s3://data")
with ObjectStoreReader(catalog, hedge=0.05) as reader:
    buffer = reader.allocate(1 << 20)
    for number in range(batches):
        if number == 50:
            before = resident()
        read(reader, np.arange(20), catalog, buffer=buffer)
    print(resident() - before)
"""


def test_the_memory_of_a_reader_does_not_grow(server, catalog):
    command = [sys.executable, "-c", MEMORY, str(by_tier(100, 400))]
    grown = int(subprocess.check_output(command, cwd=ROOT))
    assert grown < 8 << 20  # a batch has 0.8 MB


class WebServer(BaseHTTPRequestHandler):
    """Files without ETag, by a server that knows no ranges."""

    protocol_version = "HTTP/1.1"
    asked: Any = None
    body, modified, tag = b"a body", "Thu, 01 Jan 2026 00:00:00 GMT", ""

    def do_HEAD(self):
        time.sleep(0.01 * int(self.path[1:]) if self.path[1:].isdigit() else 0)
        type(self).asked = self.headers
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        if self.modified:
            self.send_header("Last-Modified", self.modified)
        if self.tag:
            self.send_header("ETag", self.tag)
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    handler = type("Handler", (WebServer,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
        thread.start()
        root = f"http://127.0.0.1:{listener.server_port}"
        yield handler, Catalog.from_names([b"file"], [0], root.encode())
        listener.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("modified", WebServer.modified, "Thu, 01 Jan 2026 00:00:01 GMT"),
        ("body", WebServer.body, b"written within the same second"),
        ("tag", 'W/"1"', 'W/"2"'),
    ],
)
def test_without_a_strong_etag_time_size_and_weak_etag_are_compared(web, name, before, after):
    handler, catalog = web
    setattr(handler, name, before)
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, np.array([0])) == [b"a body"]
        assert "If-Match" not in handler.asked
        setattr(handler, name, after)
        with pytest.raises(ObjectReplacedError):
            read(reader, np.array([0]))


def test_the_first_object_of_a_batch_that_has_no_version_is_named(web):
    handler, catalog = web
    handler.modified = ""
    names = [b"%02d" % number for number in range(10)]  # the last one takes longest
    catalog = Catalog.from_names(names, range(10), catalog.root)
    with ObjectStoreReader(catalog) as reader, pytest.raises(OSError, match="neither ETag") as it:
        read(reader, np.arange(10)[::-1])
    assert it.value.filename == os.fsdecode(catalog.path(9))


def test_without_a_version_an_object_is_refused_unless_it_is_not_to_be_checked(web):
    handler, catalog = web
    handler.modified = ""
    with ObjectStoreReader(catalog) as reader, pytest.raises(OSError, match="check=False") as it:
        read(reader, np.array([0]))
    assert it.value.filename == os.fsdecode(catalog.path(0))
    with ObjectStoreReader(catalog, check=False) as reader:
        assert read(reader, np.array([0])) == [b"a body"]
        handler.body = b"o body"
        assert read(reader, np.array([0])) == [b"o body"]
        handler.body = b"longer body"
        with pytest.raises(ObjectReplacedError):
            read(reader, np.array([0]))


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        *(("requests", 0), ("requests", 1025), ("lanes", 65), ("timeout", 0), ("timeout", "1")),
        *(("retry", -1), ("retry", True), ("hedge", 0), ("hedge", "99"), ("hedge", "p95")),
        *(("check", 1), ("anonymous", "no"), ("endpoint", b"http://host"), ("region", 5)),
        *(("client_options", "proxy_url"), ("client_options", [1]), ("region", "a b\n")),
    ],
)
def test_a_wrong_option_is_refused_by_name(option, wrong):
    opens = [partial(ObjectStoreReader, Catalog.from_names([b"x"], [0], b"s3://data"))]
    if option not in ("requests", "lanes", "hedge"):  # before anything is listed
        opens.append(ObjectStoreReader.remote)
    for open_ in opens:
        with pytest.raises((TypeError, ValueError), match=f"object-store: {option} must be"):
            open_(**{option: wrong})
