"""Servers and environments as few are: bytes as by obstore, at hardly more requests."""

import hashlib
import hmac
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from obstore.store import HTTPStore

import dali_storage
from dali_storage import readers
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects.http.answers import Refused
from dali_storage.backends.objects.http.standing import Standing
from dali_storage.backends.objects.proxies import proxy_of
from dali_storage.contract.catalog import Catalog
from dali_storage.testing import read
from tests.kit.dali import pipeline_of
from tests.kit.objects.client import SECRET, FaultServer, environment
from tests.kit.objects.odd_server import odd
from tests.kit.process import status_of_fork

COUNT, BATCH = 48, 8
CONTENTS = {f"/{n:02d}": np.random.default_rng(n).bytes(1000 + n) for n in range(COUNT)}
OWN, LEFT = "its own client", "obstore (the server "


@contextmanager
def reading(url, names=CONTENTS, **options):
    """Opens a reader of a server; returns what reads batches."""
    catalog = Catalog.from_names([it[1:].encode() for it in names], range(len(names)), url.encode())

    def batch(first=0, count=BATCH):
        return read(reader, np.arange(first, first + count), catalog)

    # A request that waits for its timeout fails the test by its never ending.
    options = {"requests": 4, "timeout": 3600, "client_options": {"allow_http": True}} | options
    with ObjectStoreReader(catalog, **options) as reader:
        batch.reader = reader
        yield batch


def instead(*pairs):
    """Changes the heads of answers to GET."""

    def change(request, answer):
        head, end, body = answer.partition(b"\r\n\r\n")
        for old, new in pairs * request.startswith(b"GET"):
            head = head.replace(old, new)
        return head + end + body

    return change


def by_lone_lf(request, answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.replace(b"\r\n", b"\n") + b"\n\n" + body


def with_interim(request, answer):
    return b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer


def strict(request, answer, status=b"400"):
    """Refuses whoever sends no Accept; obstore does."""
    accepts = b"\r\naccept:" in request.lower()
    return answer if accepts else b"HTTP/1.1 %s X\r\nContent-Length: 0\r\n\r\n" % status


CLOSE = (b"\r\nETag", b"\r\nConnection: close\r\nETag")


@pytest.mark.parametrize(
    ("server", "by"),
    [
        pytest.param({"change": by_lone_lf}, OWN, id="lines end by LF alone"),
        pytest.param({"at_once": 1, "idle": 2}, LEFT + "does not answer", id="one connection"),
        pytest.param({"change": instead((b'"', b""))}, OWN, id="ETags without quotes"),
        pytest.param({"change": instead((b'ETag: "', b'ETag: W/"'))}, OWN, id="weak in GET only"),
        pytest.param({"change": strict}, LEFT + "answers 400", id="strict about fields"),
        pytest.param({"change": instead((b"Content-L", b"content-l"))}, OWN, id="lower case"),
        pytest.param({"change": instead(CLOSE)}, OWN, id="closes after each answer"),
        pytest.param({"idle": 0.001}, OWN, id="closes idle connections at once"),
        pytest.param({"change": with_interim}, LEFT + "sends odd statuses", id="interim answers"),
        pytest.param(
            {"change": instead((b"P/1.1", b"P/1.0"), CLOSE)}, LEFT + "does not speak", id="HTTP/1.0"
        ),
    ],
)
def test_odd_servers_are_read_as_by_obstore_at_hardly_more_requests(server, by):
    counts = {}
    for transport in ("obstore", "auto"):
        options = {"transport": transport, "requests": min(server.get("at_once", 4), 4)}
        with odd(CONTENTS, **server) as its, reading(its.url, **options) as batch:
            found = [body for first in range(0, COUNT, BATCH) for body in batch(first)]
            assert found == [*CONTENTS.values()]
            assert batch.reader.transport.startswith(by if transport == "auto" else "obstore")
            counts[transport] = len(its.log)
    assert counts["auto"] <= 1.2 * counts["obstore"]


def test_a_request_to_a_connection_that_ends_is_sent_again_by_the_client_itself():
    with odd(CONTENTS, each=1) as its, reading(its.url, requests=1) as batch:
        assert batch(0, COUNT) == [*CONTENTS.values()]
    gets = [dict(fields)["user-agent"] for method, _, fields in its.log if method == "GET"]
    assert gets == ["dali_storage"] * COUNT


def test_a_server_that_is_always_busy_for_the_client_alone_is_left_to_obstore_later():
    gets = []
    with odd(CONTENTS, change=lambda *it: strict(*it, b"500")) as its, reading(its.url) as batch:
        for _ in range(4):
            gets.append(-len(its.log))
            found = [body for first in range(0, COUNT, BATCH) for body in batch(first)]
            assert found == [*CONTENTS.values()]
            gets[-1] += len(its.log)
        assert batch.reader.transport.startswith(LEFT + "answers 500")
    assert gets[1:] == [COUNT + 6, COUNT, COUNT]  # a trial in each of twelve batches


def test_hedging_does_not_hide_that_a_server_never_answers():
    def mute(request, answer):
        return answer if b"\r\naccept:" in request.lower() else b""

    with odd(CONTENTS, change=mute) as its, reading(its.url, hedge=0.01) as batch:
        found = [body for first in range(0, COUNT, BATCH) for body in batch(first)]
        assert found == [*CONTENTS.values()]
        assert batch.reader.transport.startswith(LEFT + "does not answer")


def test_a_body_that_stalls_keeps_no_other_request_waiting():
    stalled = []

    def stall(request, answer):
        if request.startswith(b"GET") and not stalled:
            stalled.append(time.monotonic())
            return answer[:-500]
        if request.startswith(b"GET"):
            others.append(time.monotonic())
        return answer

    others = []
    with odd(CONTENTS, change=stall) as its, reading(its.url, timeout=3) as batch:
        assert batch() == [*CONTENTS.values()][:BATCH]
    assert others[0] < stalled[0] + 2


def test_a_burst_of_failures_counts_once_and_an_answer_or_an_error_of_obstore_ends_the_row():
    standing = Standing(required=False)
    jobs = [SimpleNamespace(began=time.monotonic() + at) for at in range(9)]

    def fail(number, good=True):
        standing.fails(jobs[number], ConnectionResetError())
        standing.finished(jobs[number], good)

    standing.fits()
    burst = [SimpleNamespace(began=time.monotonic()) for _ in range(9)]
    for job in burst:  # all began before obstore had answered the first
        standing.fails(job, TimeoutError())
        standing.finished(job, True)
    fail(1)
    assert not standing.aside
    fail(2, good=False)
    busy = Refused(status="503")
    for number in (3, 4):
        fail(number)
        standing.fails(jobs[8], busy)
        standing.finished(jobs[8], True)
    standing.fits()
    for number in (5, 6, 7):
        assert not standing.aside
        fail(number)
    assert standing.aside


def test_the_report_and_the_statistics_say_which_server_obstore_reads_and_why():
    with odd(CONTENTS, change=strict) as its:
        names = [its.url + name for name in CONTENTS]
        pipeline = pipeline_of(lambda: readers.file(files=names, name="R"), batch_size=4)
        for _ in range(12):
            pipeline.run()
        why = "the server answers 400, but answered obstore, three or more times in a row"
        line = f"obstore ({why})"
        assert dali_storage.statistics(pipeline, "R").choices["transport"] == line
        assert f"  transport: {line}\n" in dali_storage.report()
        del pipeline


def test_the_users_headers_are_sent_once_and_their_host_is_signed(monkeypatch):
    given = {
        "Host": "other.example",
        "HOST": "o.example",
        "x-a": "1",
        "X-A": "2",
        "USER-AGENT": "U",
    }
    given |= {"Authorization": "Basic x", "x-amz-date": "then"}
    with odd({"/data/00": b"12345"}) as its:
        for name, value in environment(its.url).items():
            monkeypatch.setenv(name, value)
        options = {"default_headers": given, "user_agent": "agent"}
        with reading("s3://data", ["/00"], client_options=options, check=False) as batch:
            assert batch(0, 1) == [b"12345"]
    names, fields = [name for name, _ in its.log[-1][2]], dict(its.log[-1][2])
    assert sorted({*names}) == sorted(names)
    assert (fields["host"], fields["x-a"], fields["user-agent"]) == ("o.example", "2", "U")
    scope, signed, signature = (it.partition("=")[2] for it in fields["authorization"].split(", "))
    lines = [f"{name}:{fields[name]}" for name in signed.split(";")]
    text = "\n".join(["GET", "/data/00", "", *lines, "", signed, "UNSIGNED-PAYLOAD"])
    scope = scope.partition("/")[2]
    key = f"AWS4{SECRET}".encode()
    for part in (*scope.split("/"),):
        key = hmac.digest(key, part.encode(), "sha256")
    digest = hashlib.sha256(text.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", fields["x-amz-date"], scope, digest])
    assert hmac.new(key, text.encode(), "sha256").hexdigest() == signature


@pytest.mark.parametrize("transport", ["auto", "obstore"])
def test_a_fork_of_a_process_that_has_read_is_refused_before_it_hangs(transport):
    with odd(CONTENTS) as its, reading(its.url, transport=transport) as batch:
        batch()
        assert status_of_fork(lambda: batch(BATCH)) == 17


# --- names, waits, proxies, certificates ----------------------------------------------------------


@pytest.mark.parametrize(("name", "says"), [("/a%2Fb", "%2F"), ("/%E9", "not UTF-8")])
def test_names_that_obstore_would_change_are_refused(name, says):
    refused = pytest.raises(ValueError, match=f"{name}.*{says}")
    with reading("http://127.0.0.1:1", [name]) as batch, refused:
        batch(0, 1)


@pytest.mark.parametrize("header", ["Retry-After: 1", 'RateLimit: "resolvers";r=0;t=0'])
def test_all_wait_as_long_as_a_busy_store_tells_one(header):
    told, answered = [], f"HTTP/1.1 429 X\r\n{header}\r\nContent-Length: 0\r\n\r\n".encode()

    def busy(request, answer):
        if request.startswith(b"GET /1") and (not told or time.monotonic() < told[0] + 1):
            told.append(time.monotonic())
            return answered
        return answer

    with odd(CONTENTS, change=busy) as its, reading(its.url) as batch:
        assert batch(0, COUNT) == [*CONTENTS.values()]
        assert batch.reader.transport == OWN
        assert len(its.log) == 2 * COUNT + len(told)
        assert batch.reader.times.merged()["paused"].total >= 1e9
    assert len(told) <= 4  # those under way


def test_nobody_waits_longer_than_for_retries():
    answer = b"HTTP/1.1 503 X\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"
    with odd(CONTENTS, change=lambda request, head: answer if request[:1] == b"G" else head) as its:
        refused = pytest.raises(OSError, match=r"throttles requests.*\(503\)")
        with reading(its.url, retry=0.1) as batch, refused:
            batch()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize(
    "variables",
    [
        {"HTTP_PROXY": "1", "http_proxy": ""},
        {"HTTP_PROXY": "", "http_proxy": "1"},
        {"all_proxy": "1"},
        {"HTTP_PROXY": "", "ALL_PROXY": "1"},
        {"http_proxy": "1", "NO_PROXY": "*"},
        {"http_proxy": "1", "NO_PROXY": "127.0.0.1:9, localhost:9"},
        {"http_proxy": "1", "NO_PROXY": "127.0.0.0/8, .localhost"},
        {"http_proxy": "1", "NO_PROXY": "", "no_proxy": "*"},
        {"https_proxy": "1"},
    ],
)
def test_an_error_names_the_proxy_that_obstore_has_asked(monkeypatch, host, variables):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, "http://user:secret@127.0.0.1:1" if value == "1" else value)
    url, name = f"http://{host}:9", [name for name, value in variables.items() if value == "1"]
    with pytest.raises(Exception, match="Debug source") as seen:
        HTTPStore(url, client_options={"allow_http": True}, retry_config={"max_retries": 0}).get(
            "k"
        )
    asked = "127.0.0.1:1," in str(seen.value)
    assert bool(proxy_of(url)) is asked
    with pytest.raises(ConnectionRefusedError) as caught, reading(url, retry=0) as batch:
        batch(0, 1)
    assert (f"by the proxy 127.0.0.1:1 of {name[0]}" in str(caught.value)) is asked
    assert "secret" not in str(caught.value)


def test_a_certificate_for_another_host_is_not_called_unknown(certificate):
    given = {"root_certificate": certificate[0].read_bytes()}
    with FaultServer(certificate) as tls:
        url = tls.url.replace("127.0.0.1", "localhost") + "/data"
        other = pytest.raises(OSError, match="for another host name")
        with reading(url, client_options=given) as batch, other as caught:
            batch(0, 1)
    assert "CA" not in str(caught.value)
