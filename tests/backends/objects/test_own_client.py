"""The client of our own: what it reads, what it takes, and what it leaves to obstore."""

import asyncio
import socket
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects.calls import Call
from dali_storage.backends.objects.http import requests
from dali_storage.backends.objects.http.answers import Refused, check
from dali_storage.backends.objects.http.connections import Connection, Job, Server
from dali_storage.backends.objects.http.signatures import quoted
from dali_storage.backends.objects.versions import ObjectPart
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.testing import read
from tests.kit.objects.client import FOR_EVER, FaultServer, publish
from tests.kit.objects.odd_server import odd

SIZES = 1, 5, 4095, 4096, 4097, 65_536, 70_001, 300_000, 1_200_000
CONTENTS = [np.random.default_rng(size).bytes(size) for size in SIZES]


def catalog_of(count, root=b"s3://data"):
    return Catalog.from_names([b"%02d" % number for number in range(count)], range(count), root)


@pytest.fixture
def catalog(server):
    return publish(server.put, catalog_of(len(SIZES)), CONTENTS)


def by_own(server):
    """The keys of the client's requests."""
    return sorted(it.key for it in server.log() if it.headers["user-agent"] == "dali_storage")


def test_bodies_of_all_sizes_are_right_and_requests_are_signed(server, catalog):
    with ObjectStoreReader(catalog, transport="own") as reader:
        for _ in range(3):
            order = np.random.default_rng(0).permutation(len(SIZES))
            assert read(reader, order, catalog) == [CONTENTS[sample] for sample in order]
        assert repr(reader) == "<object-store: by its own client>"
        # The longest is read in two parts, so there are 30 requests: connections are used again.
        assert len(server.connections()) < 2 * (len(SIZES) + 1)
    assert len(by_own(server)) == len(server.log())
    for request in server.log():
        assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID")
        assert not request.query


def test_a_connection_that_the_server_closes_after_an_answer_is_not_used_again(server, catalog):
    server.fail("proxy", FOR_EVER, "Connection: close")
    with ObjectStoreReader(catalog, transport="own") as reader:
        for sample in range(len(SIZES)):
            assert read(reader, np.array([sample]), catalog) == [CONTENTS[sample]]
    assert len(by_own(server)) == len(server.log()) == len(SIZES) + 1


class Twice(BaseHTTPRequestHandler):
    """Answers each request twice."""

    protocol_version = "HTTP/1.1"
    log_message = lambda *_: None  # noqa: E731

    def do_GET(self):
        body = self.path.encode() * 1000
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.wfile.write(head if self.command == "HEAD" else (head + body) * 2)

    do_HEAD = do_GET  # noqa: N815


def test_what_follows_an_answer_is_not_taken_for_the_next_one():
    with ThreadingHTTPServer(("127.0.0.1", 0), Twice) as twice:
        threading.Thread(target=twice.serve_forever, args=[0.01]).start()
        catalog = catalog_of(9, b"http://127.0.0.1:%d" % twice.server_port)
        with ObjectStoreReader(catalog, requests=1, check=False) as reader:
            found = read(reader, np.arange(9), catalog)
        twice.shutdown()
    assert found == [b"/%02d" % number * 1000 for number in range(9)]


@pytest.mark.parametrize("required", [False, True])
def test_a_bucket_that_redirects_is_left_to_obstore_for_good_unless_that_is_forbidden(
    server, catalog, required
):
    server.put("other/03", CONTENTS[3])
    both = Catalog.from_names([b"s3://data/03", b"s3://other/03"], range(2))
    both = replace(both, sizes=catalog.sizes[[3, 3]], versions=catalog.versions[[3, 3]])
    with ObjectStoreReader(both, transport="own" if required else "auto") as reader:
        server.fail("redirect", 1, f"{server.url}/data/03", key="data/03")
        for _ in range(3):
            assert read(reader, np.array([0, 1]), both) == [CONTENTS[3]] * 2
        left = ", and obstore for s3://data (the server redirects)" * (not required)
        assert repr(reader) == f"<object-store: by its own client{left}>"
    assert by_own(server) == ["data/03"] * (3 if required else 1) + ["other/03"] * 3


def test_a_refused_connection_is_named_by_obstore(server, catalog, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    refused = pytest.raises(ConnectionRefusedError)
    with ObjectStoreReader(catalog, transport="own", retry=0) as reader, refused:
        read(reader, np.array([3]), catalog)


def test_stores_that_were_opened_again_are_not_mistaken_for_others(server):
    contents = [b"1" * 5000, b"2" * 5000]
    both = Catalog.from_names([b"s3://aaa/k", b"s3://bbb/k"], range(2))
    both = publish(server.put, both, contents)
    remote = ObjectStoreReader.remote()
    with ObjectStoreReader.open(both, remote, transport="own", check=False) as reader:
        for order in np.random.default_rng(0).integers(0, 2, (30, 1)):
            ObjectStoreReader.open(both, remote, transport="obstore").close()
            assert read(reader, order, both) == [contents[order[0]]]


@pytest.mark.parametrize("trust", ["the authority", "everyone", "nobody else"])
def test_certificates_are_verified(certificate, trust, monkeypatch):
    with FaultServer(certificate) as tls:
        for name, value in tls.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("DALI_S3_NO_VERIFY_SSL", str(int(trust == "everyone")))
        catalog = publish(tls.put, catalog_of(len(SIZES)), CONTENTS)
        bundle = "# Főtanúsítvány\n".encode() + certificate[0].read_bytes()
        given = {"root_certificate": bundle} if "authority" in trust else {}
        with ObjectStoreReader(catalog, client_options=given) as reader:
            refused = pytest.raises(OSError, match="cannot be verified")
            with refused if trust == "nobody else" else nullcontext():
                for _ in range(3):
                    assert read(reader, np.arange(len(SIZES)), catalog) == CONTENTS
            assert ("a certificate that is not trusted" in repr(reader)) is (trust == "nobody else")
        assert len(by_own(tls)) == len(tls.log())


def test_a_slow_handshake_is_no_reason_for_obstore_if_a_host_has_many_addresses(
    certificate, monkeypatch
):
    async def slow(self, secure, shake_hands=Connection._shake_hands):
        await asyncio.sleep(0.5)
        await shake_hands(self, secure)

    addresses = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *it, **more: addresses(*it, **more) * 50)
    monkeypatch.setattr(Connection, "_shake_hands", slow)
    with FaultServer(certificate) as tls:
        for name, value in tls.environment.items():
            monkeypatch.setenv(name, value)
        catalog = publish(tls.put, catalog_of(1), CONTENTS[:1])
        given = {"root_certificate": certificate[0].read_bytes()}
        with ObjectStoreReader(catalog, client_options=given) as reader:
            assert read(reader, np.array([0]), catalog) == CONTENTS[:1]
        assert by_own(tls) == ["data/00"] == [it.key for it in tls.log()]


def test_a_connection_that_ends_just_when_it_is_used_again_is_replaced_once():
    """The loop learns of the end when a request is sent: it is told twice."""
    part, ended = ObjectPart(b"http://x/0", (None, "0"), b"", 3, 0, 3), []
    call = Call(None, [part])

    async def work():
        loop, place = asyncio.get_running_loop(), memoryview(bytearray(3))
        server = Server("127.0.0.1", its.socket.getsockname()[1], None, 9.0, 9.0)
        connection = Connection(server, lambda _, job, error: ended.append(error))
        for number in range(2):
            if number:
                time.sleep(0.05)  # the loop does not look
            request = b"GET /0 HTTP/1.1\r\n\r\n"
            loop.call_soon(connection.send, Job(call, 0, server, request, place))
            while len(ended) == number:
                await asyncio.sleep(0)
        connection.close()

    with odd({"/0": b"abc"}, idle=0.001) as its:
        asyncio.run(work())
    assert ended == [None, None]


def test_requests_are_not_printed():
    server, request = Server("h", 1, None, 1.0, 1.0), b"Authorization: canary"
    job = Job(Call(None, []), 0, server, request, memoryview(b""))
    bucket = requests.Bucket(list, {"authorization": "canary"}, server, None, None)
    assert "canary" not in f"{job!r} {bucket!r}"


WHOLE = {"ETag": '"T"', "Content-Length": "1000"}
PART = {"ETag": '"T"', "Content-Length": "100", "Content-Range": "bytes 100-199/1000"}


@pytest.mark.parametrize(
    ("status", "fields", "says"),
    [
        ("HTTP/1.1 206 X", PART, None),
        ("HTTP/1.1 206 X", PART | {"Content-Range": "bytes 0-99/1000"}, "^$"),
        ("HTTP/1.1 206 X", PART | {"Content-Range": "bytes 100-199/1001"}, "^$"),
        ("HTTP/1.1 206 X", PART | {"Content-Range": "bytes 100-199/*"}, "^$"),
        ("HTTP/1.1 206 X", WHOLE | {"Content-Length": "100"}, "odd ranges"),
        ("HTTP/1.1 200 X", PART, "odd statuses"),
        ("HTTP/1.1 200 X", WHOLE, None),
        ("HTTP/1.1 200 X", {"etag": '"T"', "x": "1", "CONTENT-LENGTH ": " 1000 "}, None),
        ("HTTP/1.1 206 X", WHOLE, "odd statuses"),
        ("HTTP/1.1 200 X", WHOLE | {"Content-Range": "bytes 0-999/1000"}, "odd ranges"),
        ("HTTP/1.1 302 X", WHOLE, "redirects"),
        ("HTTP/1.1 412 X", WHOLE, "^$"),
        ("HTTP/1.1 503 X", WHOLE, "^$"),
        ("HTTP/1.1 100 X", WHOLE, "odd statuses"),
        ("HTTP/1.0 200 X", WHOLE, "HTTP/1.1"),
        ("HTTP/1.1 200 X", WHOLE | {"ETag": '"t"'}, "^$"),
        ("HTTP/1.1 200 X", WHOLE | {"ETag": 'W/"T"'}, None),
        ("HTTP/1.1 200 X", WHOLE | {"ETag": "T"}, None),
        ("HTTP/1.1 200 X", WHOLE | {"Content-Length": "1000 ,1000"}, None),
        ("HTTP/1.1 200 X", WHOLE | {"Content-Length": "1000, 999"}, "^$"),
        ("HTTP/1.1 200 X", {"Content-Length": "1000"}, "^$"),
        ("HTTP/1.1 200 X", WHOLE | {"Content-Length": "999"}, "^$"),
        ("HTTP/1.1 200 X", {"ETag": '"T"'}, "Content-Length"),
        ("HTTP/1.1 200 X", WHOLE | {"Transfer-Encoding": "identity"}, "Content-Length"),
        ("HTTP/1.1 200 X", WHOLE | {"x": "y\nTransfer-Encoding : chunked"}, "Content-Length"),
        ("HTTP/1.1 200 X", WHOLE | {"Content-Encoding": "identity"}, "Content-Encoding"),
        ("HTTP/1.1 200 X", WHOLE | {"content-length": "1000"}, "ambiguous"),
        ("HTTP/1.1 200 X", WHOLE | {"etag": "", "": "", "x": "\r\n y"}, "ambiguous"),
    ],
)
def test_bytes_are_only_taken_from_an_answer_that_says_they_are_what_was_asked_for(
    status, fields, says
):
    whole = "206" not in status or fields is WHOLE
    whole = whole and fields is not PART
    piece = ObjectPart(
        b"s3://data/k", (None, "k"), b'"T"', 1000, *((0, 1000) if whole else (100, 100))
    )
    head = "\r\n".join([status, *(f"{name}: {fields[name]}" for name in fields), ""]).encode()
    with pytest.raises(Refused, match=says) if says else nullcontext():
        assert check(head, piece)


# --- what it leaves to obstore -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "variables", "says"),
    [
        ({"client_options": {"proxy_url": "http://127.0.0.1:1"}}, {}, r"\['proxy_url'\]"),
        ({"client_options": {"http2_only": True}}, {}, r"\['http2_only'\]"),
        ({"client_options": {"timeout": "30s"}}, {}, r"\['timeout'\]"),
        (
            {},
            {"http_proxy": "http://127.0.0.1:1", "no_proxy": ""},
            "the proxy 127.0.0.1:1 of http_proxy",
        ),
        ({}, {"AWS_REQUEST_PAYER": "true"}, "AWS_REQUEST_PAYER"),
        ({}, {"AWS_SERVER_SIDE_ENCRYPTION": "AES256"}, "AWS_SERVER_SIDE_ENCRYPTION"),
        ({}, {"AWS_TOKEN": "t"}, "AWS_TOKEN"),
        ({}, {"AWS_SKIP_SIGNATURE": "true"}, "AWS_SKIP_SIGNATURE"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name_or_left_to_obstore(
    server, catalog, monkeypatch, options, variables, says
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((BackendUnavailable, ValueError), match=says):  # noqa: SIM117
        with ObjectStoreReader(catalog, transport="own", **options) as reader:
            read(reader, np.array([3]), catalog)
    with ObjectStoreReader(catalog, transport="auto", **options) as reader, suppress(OSError):
        read(reader, np.array([3]), catalog)
    assert "by obstore" in repr(reader)


def test_variables_that_change_nothing_are_no_reason_for_obstore(server, catalog, monkeypatch):
    for name, value in {"SKIP_SIGNATURE": "false", "PAGER": "less", "TOKEN": ""}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with ObjectStoreReader(catalog, transport="own") as reader:
        assert read(reader, np.array([3]), catalog) == [CONTENTS[3]]


def test_keys_of_web_servers_are_quoted_as_obstore_does():
    """What is expected is what obstore has sent."""
    key = "".join(map(chr, range(32, 127))).replace("/", "").replace(".", "") + "ü"
    (raw,) = quoted("http://h/", requests._WEB)([key])
    assert raw == (
        "/%20!%22%23$%25&'()*+,-0123456789:;%3C=%3E%3F@ABCDEFGHIJKLMNOPQRSTUVWXYZ[%5C]^_"
        "%60abcdefghijklmnopqrstuvwxyz%7B|%7D~%C3%BC"
    )
