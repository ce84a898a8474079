from __future__ import annotations

import errno
import gc
import hashlib
import mmap
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage import readers
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects import pool as requests
from dali_storage.backends.objects.errors import ShortBodyError
from dali_storage.contract._types import IntArray
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import ObjectReplacedError
from dali_storage.contract.ranges import Ranges
from dali_storage.contract.reader import Reader
from dali_storage.testing import ObjectTests, RangeTests, read
from tests.kit.dali import build
from tests.kit.interrupts import is_interrupted
from tests.kit.objects.client import FaultServer
from tests.kit.objects.fault_server import ERRORS, FAULTS, Request
from tests.kit.objects.swift_client import Swift
from tests.kit.process import started


class TestObjects(RangeTests, ObjectTests):
    """Objects that are not listed: asked for their sizes and versions at first use."""

    batches = 300

    @pytest.fixture(autouse=True)
    def bucket(self, server: FaultServer, directory: Path) -> None:
        self.server, self.directory_served = server, directory
        server.serve("data", directory)

    def open(self, catalog: Catalog) -> Reader:
        return ObjectStoreReader(catalog)

    def published(self, catalog: Catalog) -> Catalog:
        return replace(catalog, root=b"s3://data")

    def file(self, catalog: Catalog, sample: int) -> Path:
        return self.directory_served / os.fsdecode(catalog.name(sample))


CONTENTS = [
    np.random.default_rng(number).bytes(size)
    for number, size in enumerate([100_000, 1, 0, 4096, 70_001, 5, 65_536, 99, 30_000, 12_345] * 2)
]
BAD = 3  # the sample that fails in these tests
ALL = np.arange(len(CONTENTS))


def put_all(server: FaultServer | Swift, contents: list[bytes] = CONTENTS) -> Catalog:
    """Objects, and the catalog that a listing would give."""
    for number, content in enumerate(contents):
        put(server, number, content)
    names = [b"%02d.jpg" % number for number in range(len(contents))]
    etags = [b'"%s"' % hashlib.md5(content).hexdigest().encode() for content in contents]
    sizes = np.array([len(content) for content in contents], np.int64)
    catalog = Catalog.from_names(names, range(len(names)), b"s3://data")
    return replace(catalog, sizes=sizes, versions=np.array(etags))


def put(server: FaultServer | Swift, number: int, content: bytes) -> None:
    if isinstance(server, Swift):
        server.fill("data", {b"%02d.jpg" % number: content})
    else:
        server.put(f"data/{number:02d}.jpg", content)


def asked(server: FaultServer, number: int = BAD) -> list[Request]:
    """The requests for an object since the last call of `server.log(True)`."""
    return [entry for entry in server.log() if entry.key == f"data/{number:02d}.jpg"]


def url(number: int = BAD) -> str:
    return f"s3://data/{number:02d}.jpg"


@pytest.mark.parametrize(
    ("mode", "arg"),
    [(str(status), None) for status in (408, 425, 429, 500, 502, 503, 504)]
    + [("cut", None), ("short", None), ("longer", None), ("reset", None)]
    + [("stall", 5), ("slow", 5)],
)
def test_what_may_pass_is_asked_for_again(server: FaultServer, mode: str, arg: Any) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog, timeout=0.3) as reader:
        read(reader, ALL[5:], catalog)
        server.fail(mode, 2, arg, key="data/00.jpg")
        assert read(reader, ALL, catalog) == CONTENTS
        tries = asked(server, 0)
        assert [entry.fault for entry in tries] == [mode, mode, ""]
        assert 0.05 <= tries[1].time - tries[0].time < 0.6  # a pause of 0.1 s, less a random part
        assert all(entry.headers["if-match"] == tries[0].headers["if-match"] for entry in tries)


@pytest.mark.parametrize(
    ("mode", "error", "says"),
    [
        ("400", OSError, "refuses the request"),
        ("401", PermissionError, "asks for credentials"),
        ("403", PermissionError, "access is denied"),
        ("404", FileNotFoundError, "no such object"),
        ("409", OSError, "409"),
        ("501", OSError, "501"),
        ("expired", PermissionError, "credentials have expired"),
        ("412", ObjectReplacedError, "was replaced"),
        ("foreign-etag", ObjectReplacedError, "was replaced"),
        ("no-etag", ObjectReplacedError, "was replaced"),
    ],
)
def test_what_will_not_pass_is_raised_at_once(
    server: FaultServer, mode: str, error: type[OSError], says: str
) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog) as reader:
        server.fail(mode, key=f"data/{BAD:02d}.jpg")
        with pytest.raises(error, match=says) as caught:
            read(reader, ALL, catalog)
        assert caught.value.filename == url()
        assert len(asked(server)) == 1
        assert read(reader, ALL, catalog) == CONTENTS  # it goes on


@pytest.mark.parametrize("retry", [0, 0.4])
def test_the_last_error_is_raised_when_the_time_is_over(server: FaultServer, retry: float) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog, retry=retry) as reader:
        read(reader, ALL[5:], catalog)
        server.fail("500", 1, key=f"data/{BAD:02d}.jpg")
        server.fail("503", 10_000, key=f"data/{BAD:02d}.jpg")
        start = time.monotonic()
        with pytest.raises(OSError, match="503" if retry else "500") as caught:
            read(reader, ALL, catalog)
        assert time.monotonic() - start < retry + 1
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, url())
        assert len(asked(server)) in (range(3, 6) if retry else [1])


def test_an_object_that_is_swapped_after_its_body_was_cut_is_refused(server: FaultServer) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog) as reader:
        server.fail("cut-swap", key="data/00.jpg")
        with pytest.raises(ObjectReplacedError) as caught:
            read(reader, ALL, catalog)
        assert caught.value.filename == url(0)


def in_one_container(contents: list[bytes], gap: int, catalog: Catalog) -> tuple[Catalog, bytes]:
    """A catalog of ranges of its first object, `gap` bytes apart."""
    sizes = np.array([len(content) for content in contents], np.int64)
    starts = np.cumsum(sizes + gap) - sizes
    whole = b"".join(bytes(gap) + content for content in contents)
    ranges = Ranges.of_columns(np.zeros_like(starts), starts, sizes)
    return replace(catalog, ranges=ranges), whole


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
def test_answers_to_ranges_are_checked(
    server: FaultServer, mode: str, error: type[OSError] | None, says: str
) -> None:
    contents = [content for content in CONTENTS if content]
    catalog, whole = in_one_container(contents, 100_000, put_all(server, [b""]))
    server.put("data/00.jpg", whole)
    catalog = replace(catalog, sizes=None, versions=None)
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
def test_near_ranges_are_one_request(server: FaultServer, gap: int, requests: int) -> None:
    contents = [b"first" * 1000, b"second", b"third" * 100]
    catalog, whole = in_one_container(contents, gap, put_all(server, [b""]))
    server.put("data/00.jpg", whole)
    catalog = replace(catalog, sizes=None, versions=None)
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, np.array([2, 0, 1]), catalog) == [contents[2], contents[0], contents[1]]
    assert [entry.kind for entry in server.log()] == ["HEAD"] + ["GET"] * requests


def test_long_objects_are_asked_for_in_parts_at_once(server: FaultServer) -> None:
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


def test_versions_are_never_mixed(server: FaultServer) -> None:
    """Somebody replaces an object all the time; its parts are read in many requests."""
    versions = [bytes([number]) * (3 << 20) for number in range(2)]
    catalog = put_all(server, versions[:1])
    ended, right, refused = threading.Event(), 0, 0

    def replace_it() -> None:
        while not ended.wait(0.002):
            for version in versions:
                server.put("data/00.jpg", version)

    thread = threading.Thread(target=replace_it)
    thread.start()
    try:
        with ObjectStoreReader(catalog, lanes=1) as reader:
            until = time.monotonic() + 10
            while (right < 3 or refused < 3) and time.monotonic() < until:
                try:
                    assert read(reader, np.array([0]), catalog) == versions[:1]
                    right += 1
                except ObjectReplacedError:
                    refused += 1
    finally:
        ended.set()
        thread.join()
    assert right
    assert refused


@pytest.mark.parametrize("cached", [False, True])
def test_whatever_happens_no_wrong_byte_is_delivered(
    server: FaultServer, tmp_path: Path, cached: bool
) -> None:
    """Random faults, three lanes, hedging; then all is read again."""
    chance = random.Random(13)
    catalog = put_all(server, CONTENTS * 5)
    modes = [*ERRORS, *(mode for mode in FAULTS if mode not in ("cut-swap", "replace"))]
    options: dict[str, Any] = {"hedge": 0.03, "timeout": 0.3, "retry": 0.5}
    options |= {"cache": tmp_path / "cache"} if cached else {}
    right, failed = [], []

    def check(samples: IntArray, lane: int) -> None:
        assert read(reader, samples, catalog, lane=lane) == [CONTENTS[i % 20] for i in samples]
        right.append(lane)

    def run(lane: int) -> None:
        numbers = np.random.default_rng(lane)
        while time.monotonic() < until:
            try:
                check(numbers.integers(0, len(catalog), 12), lane)
            except OSError as error:
                failed.append(error)

    with ObjectStoreReader(catalog, **options) as reader, ThreadPoolExecutor(3) as threads:
        until = time.monotonic() + 1
        runs = [threads.submit(run, lane) for lane in range(3)]
        while time.monotonic() < until:
            server.fail(chance.choice(modes), chance.choice([1, 5]), 0.1, chance=0.2)
            time.sleep(0.02)
        for each in runs:
            each.result()
        server.heal()
        right_before = len(right)
        for part in np.array_split(np.arange(len(catalog)), 10):
            check(part, 0)
    assert right_before
    assert failed
    assert all(str(error.filename).startswith("s3://data/") for error in failed)


def test_what_a_lane_has_seen_first_counts_for_all(server: FaultServer) -> None:
    catalog = replace(put_all(server), sizes=None, versions=None)
    sample = np.array([BAD])
    with ObjectStoreReader(catalog) as reader, ThreadPoolExecutor(1) as threads:
        server.fail("slow", 1, 0.4, on="HEAD")
        slow = threads.submit(read, reader, sample, catalog, lane=1)
        time.sleep(0.1)
        assert read(reader, sample, catalog) == [CONTENTS[BAD]]
        put(server, BAD, CONTENTS[BAD][::-1])  # the answer to the slow one
        with pytest.raises(ObjectReplacedError):
            slow.result()
        with pytest.raises(ObjectReplacedError):
            read(reader, sample, catalog)


def test_listed_objects_are_asked_for_once_and_others_twice(server: FaultServer) -> None:
    catalog = put_all(server)
    unlisted = replace(catalog, sizes=None, versions=None)
    for each, heads in ((catalog, 2), (unlisted, len(CONTENTS) + 2)):  # two objects are empty
        server.log(True)
        with ObjectStoreReader(each) as reader:
            assert read(reader, ALL, each) == CONTENTS
            assert [entry.kind for entry in server.log()].count("HEAD") == heads
            server.log(True)
            assert read(reader, ALL, each) == CONTENTS
            assert [entry.kind for entry in server.log()].count("HEAD") == 2


@pytest.mark.parametrize(("requests", "lanes"), [(1, 3), (5, 1), (5, 3), (40, 3)])
def test_no_more_requests_are_under_way_than_allowed(
    server: FaultServer, requests: int, lanes: int
) -> None:
    catalog = put_all(server)
    server.set(latency=0.015 if requests > 1 else 0.003)
    with (
        ObjectStoreReader(catalog, requests=requests, lanes=lanes) as reader,
        ThreadPoolExecutor(lanes) as pool,
    ):
        for _ in range(2):
            reads = [pool.submit(read, reader, ALL, catalog, lane=lane) for lane in range(lanes)]
            assert all(each.result() == CONTENTS for each in reads)
    most = max(entry.under_way for entry in server.log())
    assert requests // 2 < most <= requests


def test_a_lane_that_came_first_is_served_first(server: FaultServer) -> None:
    catalog = put_all(server)
    server.set(latency=0.05)
    with ObjectStoreReader(catalog, requests=2) as reader, ThreadPoolExecutor(2) as pool:
        first = pool.submit(read, reader, ALL[:10], catalog, lane=0)
        time.sleep(0.02)
        second = pool.submit(read, reader, ALL[10:], catalog, lane=1)
        assert first.result() + second.result() == CONTENTS
        order = [int(entry.key[5:7]) for entry in server.log()]
        assert max(order[:10]) < 10 <= min(order[10:])


def test_a_slow_request_is_made_once_more(server: FaultServer) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog, hedge=0.05) as reader:
        for _ in range(10):
            assert read(reader, ALL, catalog) == CONTENTS
        made = reader._requests.hedged
        server.log(True)
        server.fail("slow", 1, 0.9, key=f"data/{BAD:02d}.jpg")
        start = time.monotonic()
        assert read(reader, ALL, catalog) == CONTENTS
        assert time.monotonic() - start < 0.8
        assert [entry.fault for entry in asked(server)] == ["slow", ""]
        assert reader._requests.hedged > made
        start = time.monotonic()
    assert time.monotonic() - start < 3  # the slow one is waited for when the reader is closed


def test_without_hedging_a_slow_request_is_waited_for(server: FaultServer) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog) as reader:
        server.fail("slow", 1, 0.4, key=f"data/{BAD:02d}.jpg")
        start = time.monotonic()
        assert read(reader, ALL, catalog) == CONTENTS
        assert time.monotonic() - start > 0.4
        assert len(asked(server)) == 1


def test_hedging_adds_a_twentieth_at_most(server: FaultServer) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog, requests=20, hedge=0.005) as reader:
        server.set(latency=0.04)  # everything is slow
        for _ in range(10):
            assert read(reader, ALL, catalog) == CONTENTS
        log = server.log()
        assert 200 < len(log) <= 211
        assert max(entry.under_way for entry in log) <= 21


def test_nothing_is_hedged_while_errors_are_retried(server: FaultServer) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog, hedge=0.1) as reader:
        read(reader, ALL, catalog)
        server.log(True)
        server.fail("503", 3, key="data/00.jpg")
        server.fail("slow", 1, 0.25, key=f"data/{BAD:02d}.jpg")
        made = reader._requests.hedged
        assert read(reader, ALL, catalog) == CONTENTS
        assert [entry.fault for entry in asked(server, 0)] == ["503", "503", "503", ""]
        assert [entry.fault for entry in asked(server)] == ["slow"]
        assert reader._requests.hedged == made
        server.fail("slow", 1, 0.9, key=f"data/{BAD:02d}.jpg")  # but afterwards
        assert read(reader, ALL, catalog) == CONTENTS
        assert reader._requests.hedged > made


def test_what_is_not_needed_any_more_is_not_asked_for(server: FaultServer) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog, requests=1) as reader:
        server.fail("403", key="data/00.jpg")
        with pytest.raises(PermissionError):
            read(reader, ALL, catalog)
        time.sleep(0.05)
        assert len(server.log()) <= 2


def test_closing_ends_the_threads_and_gives_up_a_request_that_hangs(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_CLOSING", 0.3)
    catalog = put_all(server)
    reader = ObjectStoreReader(catalog, hedge=0.05, timeout=1.0)
    server.fail("slow", 1, 9.0, key=f"data/{BAD:02d}.jpg")
    assert read(reader, ALL, catalog) == CONTENTS
    start = time.monotonic()
    reader.close()
    reader.close()
    assert time.monotonic() - start < 0.8
    assert_threads_end()  # the last one by the timeout of its request


def test_a_pipeline_does_not_wait_for_a_store_that_hangs(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_CLOSING", 0.3)
    put_all(server)
    pipeline = build(readers.file, files=[url(number) for number in range(len(CONTENTS))])
    server.fail("slow", 100, 2.0)
    assert is_interrupted(pipeline.run, 0.2)
    start = time.monotonic()
    del pipeline
    gc.collect()
    assert time.monotonic() - start < 1.5
    assert_threads_end()


def assert_threads_end() -> None:
    until = time.monotonic() + 5
    while request_threads() and time.monotonic() < until:
        time.sleep(0.02)
    assert not request_threads()


def request_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("dali_storage-get")]


def answers(pool: requests.RequestPool, ask: Callable[[int], int], count: int = 1) -> list[int]:
    """What `ask` returns for the numbers below `count`; of an error, the position is noted."""
    got: dict[int, int] = {}

    def explain(position: int, error: BaseException) -> Exception:
        return RuntimeError(position, repr(error))

    pool.run(ask, range(count), got.__setitem__, explain)
    return [got[position] for position in range(count)]


@pytest.fixture
def pool() -> Iterator[requests.RequestPool]:
    with closing(requests.RequestPool(40, retry=30, hedge=None)) as pool:
        yield pool
    assert_threads_end()


def test_few_threads_are_enough_if_the_machine_has_no_more(
    pool: requests.RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, left = threading.Thread.start, 0

    def start_some(thread: threading.Thread) -> None:
        nonlocal left
        if left == 0:
            raise RuntimeError("can't start new thread")
        left -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(RuntimeError, match="can't start"):
        answers(pool, abs, 3)
    for left in (2, 14):  # noqa: B007 -  the others are missing at once, or when the store turns out to be slow
        assert answers(pool, slow, 60) == [*range(60)]
    monkeypatch.undo()
    answers(pool, slow, 99)
    assert len(request_threads()) > 18


def test_a_store_that_answers_at_once_gets_few_requests(pool: requests.RequestPool) -> None:
    for _ in range(10):
        assert answers(pool, abs, 60) == [*range(60)]
    assert len(request_threads()) <= 16


def slow(number: int) -> int:
    time.sleep(0.02)
    return number


def test_threads_that_fail_leave_no_lane_waiting(pool: requests.RequestPool) -> None:
    class Panic(BaseException):
        """As Rust's panics are: no Exception."""

    def ask(number: int) -> int:
        if number == 3:
            time.sleep(0.03)  # those behind it fail before
            raise Panic("of Rust")
        if number > 3:
            raise MemoryError
        return slow(number)

    for _ in range(30):  # as many as there are threads, and more
        with pytest.raises(RuntimeError, match=r"3, .*Panic.*of Rust"):
            answers(pool, ask, 9)
    assert answers(pool, abs, 50) == [*range(50)]


def test_what_cannot_be_taken_is_an_error_and_no_more(pool: requests.RequestPool) -> None:
    def take(position: int, answer: int) -> None:
        raise MemoryError

    asked: list[int] = []
    for _ in range(3):
        with pytest.raises(MemoryError):
            pool.run(lambda i: asked.append(slow(i)), range(200), take, lambda *_: RuntimeError())
    assert answers(pool, abs, 50) == [*range(50)]
    assert len(asked) < 450  # nobody asks for the rest
    assert len(request_threads()) > 16


def test_a_store_may_fail_for_hours(
    pool: requests.RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 1,024 doublings a number is none any more."""
    monkeypatch.setattr(requests, "_FIRST_PAUSE", 1e-6)
    monkeypatch.setattr(requests, "_LONGEST_PAUSE", 1e-5)
    tries = 0

    def ask(number: int) -> int:
        nonlocal tries
        if (tries := tries + 1) < 1100:
            raise ShortBodyError
        return number

    assert answers(pool, ask) == [0]


def test_an_endpoint_that_never_answered_is_a_mistake(pool: requests.RequestPool) -> None:
    tries = 0

    def ask(number: int) -> int:
        nonlocal tries
        if (tries := tries + 1) % 2:
            raise RuntimeError("HttpError {\n    kind: Connect")
        return number

    with pytest.raises(RuntimeError, match="Connect"):
        answers(pool, ask)
    assert tries == 1
    assert answers(pool, abs) == [0]
    tries = 0
    assert answers(pool, ask) == [0]
    assert tries == 2


def test_it_may_be_closed_in_any_thread_and_at_once(pool: requests.RequestPool) -> None:
    """By the garbage collector in one of its own threads, for example."""
    with pytest.raises(OSError, match="the reader was closed") as caught:
        answers(pool, lambda _: pool.close() or time.sleep(0.5) or 1, 30)
    assert caught.value.errno == errno.ECANCELED
    for each in (closers := [threading.Thread(target=pool.close) for _ in range(8)]):
        each.start()
    for each in closers:
        each.join(5)
        assert not each.is_alive()
    with pytest.raises(OSError, match="the reader was closed"):
        answers(pool, abs, 30)


def test_a_reader_that_is_closed_while_it_reads_says_so(server: FaultServer) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog, retry=60) as reader, ThreadPoolExecutor(2) as threads:
        server.fail("503", 10_000, key="data/00.jpg")  # it pauses
        server.fail("slow", 1, 0.4, key=f"data/{BAD:02d}.jpg")  # it waits for an answer
        reads = [
            threads.submit(read, reader, samples, catalog, lane=lane)
            for lane, samples in enumerate([ALL[:1], ALL[BAD:]])
        ]
        time.sleep(0.2)
        start = time.monotonic()
        reader.close()
        assert time.monotonic() - start < 2
        for each in reads:
            with pytest.raises(OSError, match="the reader was closed"):
                each.result()


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


def test_a_program_that_ends_while_requests_are_under_way_exits_with_0(server: FaultServer) -> None:
    put_all(server)
    server.set(latency=0.01)
    names = [url(number) for number in range(len(CONTENTS))]
    command = [sys.executable, "-c", PROGRAM, *names]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started(command, **pipes) as one, started(command, **pipes) as other:
        for each in (one, other):
            stdout, stderr = each.communicate(timeout=60)
            assert (each.returncode, stdout) == (0, "4\n"), stderr


def test_memory_does_not_grow(server: FaultServer) -> None:
    catalog = put_all(server)
    with ObjectStoreReader(catalog, hedge=0.05) as reader:
        buffer = reader.allocate(1 << 20)
        for number in range(200):
            if number == 50:
                before = resident()
            read(reader, ALL, catalog, buffer=buffer)
        assert resident() - before < 8 << 20  # a batch has 0.8 MB


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("listed", [True, False])
def test_swift_refuses_an_object_that_was_replaced(swift: Swift, listed: bool) -> None:
    catalog = put_all(swift)
    known = catalog if listed else replace(catalog, sizes=None, versions=None)
    with ObjectStoreReader(known) as reader:
        assert read(reader, ALL, known) == CONTENTS
        put(swift, BAD, CONTENTS[BAD][::-1])  # of the same size
        put(swift, BAD + 1, b"shorter")
        with pytest.raises(ObjectReplacedError) as caught:
            read(reader, ALL[::-1], known)
        assert caught.value.filename == url(BAD + 1)
        with pytest.raises(ObjectReplacedError) as caught:
            read(reader, ALL, known)
        assert caught.value.filename == url()
        others = np.setdiff1d(ALL, [BAD, BAD + 1])
        assert read(reader, others, known) == [CONTENTS[sample] for sample in others]


def test_swift_names_an_object_that_is_missing(swift: Swift) -> None:
    catalog = put_all(swift)
    names = Catalog.from_names([b"00.jpg", b"none.jpg", b"01.jpg"], range(3), b"s3://data")
    missing = replace(names, sizes=catalog.sizes[:3], versions=catalog.versions[:3])  # type: ignore[index]
    for each in (names, missing):
        with ObjectStoreReader(each) as reader:
            with pytest.raises(FileNotFoundError) as caught:
                read(reader, ALL[:3], each)
            assert caught.value.filename == "s3://data/none.jpg"
            assert read(reader, ALL[:1], each) == CONTENTS[:1]


def test_swift_sends_ranges_and_long_objects_in_parts(swift: Swift) -> None:
    contents = [np.random.default_rng(0).bytes((2 << 20) + 5)]
    catalog = put_all(swift, contents)
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, ALL[:1], catalog) == contents
    small = [content for content in CONTENTS if content]
    catalog, whole = in_one_container(small, 100_000, catalog)
    put(swift, 0, whole)
    catalog = replace(catalog, sizes=None, versions=None)
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, np.arange(len(small)), catalog) == small
        put(swift, 0, whole + b"more")
        with pytest.raises(ObjectReplacedError):
            read(reader, np.arange(len(small)), catalog)


class WebServer(BaseHTTPRequestHandler):
    """Files without ETag, by a server that knows no ranges."""

    protocol_version = "HTTP/1.1"
    asked: Any = None
    body, modified, tag = b"a body", "Thu, 01 Jan 2026 00:00:00 GMT", ""

    def do_HEAD(self) -> None:
        time.sleep(0.01 * int(self.path[1:]) if self.path[1:].isdigit() else 0)
        type(self).asked = self.headers
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        if self.modified:
            self.send_header("Last-Modified", self.modified)
        if self.tag:
            self.send_header("ETag", self.tag)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[WebServer], Catalog]]:
    handler = type("Handler", (WebServer,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
        thread.start()
        root = f"http://127.0.0.1:{listener.server_port}"
        yield handler, Catalog.from_names([b"file"], [0], root.encode())
        listener.shutdown()
        thread.join()


def test_without_etag_the_time_of_modification_is_compared(
    web: tuple[type[WebServer], Catalog],
) -> None:
    handler, catalog = web
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, np.array([0])) == [b"a body"]
        handler.modified = "Thu, 01 Jan 2026 00:00:01 GMT"
        with pytest.raises(ObjectReplacedError):
            read(reader, np.array([0]))


def test_an_object_of_another_size_was_replaced_even_if_its_time_is_the_same(
    web: tuple[type[WebServer], Catalog],
) -> None:
    handler, catalog = web
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, np.array([0])) == [b"a body"]
        handler.body = b"written within the same second"
        with pytest.raises(ObjectReplacedError):
            read(reader, np.array([0]))


def test_a_weak_etag_is_compared_but_not_sent(web: tuple[type[WebServer], Catalog]) -> None:
    handler, catalog = web
    handler.tag = 'W/"1"'
    with ObjectStoreReader(catalog) as reader:
        assert read(reader, np.array([0])) == [b"a body"]
        assert "If-Match" not in handler.asked
        handler.tag = 'W/"2"'
        with pytest.raises(ObjectReplacedError):
            read(reader, np.array([0]))


def test_the_first_object_of_a_batch_that_has_no_version_is_named(
    web: tuple[type[WebServer], Catalog],
) -> None:
    handler, catalog = web
    handler.modified = ""
    names = [b"%02d" % number for number in range(10)]  # the last one takes longest
    catalog = Catalog.from_names(names, range(10), catalog.root)
    with ObjectStoreReader(catalog) as reader, pytest.raises(OSError, match="neither ETag") as it:
        read(reader, np.arange(10)[::-1])
    assert it.value.filename == os.fsdecode(catalog.path(9))


def test_without_a_version_an_object_is_refused_unless_it_is_not_to_be_checked(
    web: tuple[type[WebServer], Catalog],
) -> None:
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
    ],
)
def test_a_wrong_option_is_refused_by_name(option: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"object-store: {option} must be"):
        ObjectStoreReader(Catalog.from_names([b"x"], [0], b"s3://data"), **{option: wrong})
    if option in ("timeout", "retry"):  # before anything is listed
        with pytest.raises(ValueError, match=f"object-store: {option} must be"):
            ObjectStoreReader.remote(**{option: wrong})


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        *(("check", 1), ("anonymous", "no"), ("endpoint", b"http://host"), ("region", 5)),
        *(("client_options", "proxy_url"), ("client_options", [1]), ("region", "a b\n")),
    ],
)
def test_a_wrong_kind_of_option_is_refused_by_name(option: str, wrong: Any) -> None:
    for open_ in (
        partial(ObjectStoreReader, Catalog.from_names([b"x"], [0], b"s3://data")),
        ObjectStoreReader.remote,
    ):
        with pytest.raises((TypeError, ValueError), match=f"object-store: {option} must be"):
            open_(**{option: wrong})
