"""Bodies by libcurl: what it reads, where it is used, and what it needs."""

import errno
from contextlib import nullcontext, suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects.curl import libcurl, requests, transport
from dali_storage.backends.objects.versions import ObjectPart
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.testing import read
from tests.kit.objects.client import FaultServer, publish

pytestmark = pytest.mark.usefixtures("curl")


@pytest.fixture(autouse=True)
def _also_without_tls(monkeypatch):
    """The server has objects without TLS only."""
    monkeypatch.setattr(transport, "_FASTER", ("http",))


SIZES = 1, 5, 4095, 4096, 4097, 65_536, 70_001, 300_000, 1_200_000
CONTENTS = [np.random.default_rng(size).bytes(size) for size in SIZES]


def catalog_of(count, root=b"s3://data"):
    return Catalog.from_names([b"%02d" % number for number in range(count)], range(count), root)


@pytest.fixture
def catalog(server):
    return publish(server.put, catalog_of(len(SIZES)), CONTENTS)


def test_bodies_of_all_sizes_are_right_and_requests_are_signed(server, catalog):
    with ObjectStoreReader(catalog, transport="curl") as reader:
        for _ in range(3):
            order = np.random.default_rng(0).permutation(len(SIZES))
            assert read(reader, order, catalog) == [CONTENTS[sample] for sample in order]
        assert repr(reader).startswith("<object-store: by libcurl ")
    assert {request.kind for request in server.log()} == {"GET"}
    for request in server.log():
        assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID")
        assert not request.query


def test_a_bucket_that_redirects_is_left_to_obstore_for_good(server, catalog):
    server.put("other/03", CONTENTS[3])
    both = Catalog.from_names([b"s3://data/03", b"s3://other/03"], range(2))
    both = replace(both, sizes=catalog.sizes[[3, 3]], versions=catalog.versions[[3, 3]])
    with ObjectStoreReader(both) as reader:
        assert read(reader, np.array([0, 1]), both) == [CONTENTS[3]] * 2
        server.fail("redirect", 1, f"{server.url}/data/03", key="data/03")
        for _ in range(3):
            assert read(reader, np.array([0, 1]), both) == [CONTENTS[3]] * 2
        assert "obstore for s3://data (libcurl gets responses" in repr(reader)
    by_libcurl = [it.key for it in server.log() if "user-agent" not in it.headers]
    assert sorted(by_libcurl) == ["data/03"] * 2 + ["other/03"] * 4


def test_libcurl_that_is_required_refuses_redirects_but_survives_refused_connections(
    server, catalog, monkeypatch
):
    options = {"transport": "curl", "retry": 0}
    server.fail("redirect", 1, f"{server.url}/data/03")
    with ObjectStoreReader(catalog, **options) as reader:
        with pytest.raises(OSError, match="follow the endpoint's redirects; set") as caught:
            read(reader, np.array([3]), catalog)
        assert caught.value.errno == errno.EREMOTE
        assert read(reader, np.array([3]), catalog) == [CONTENTS[3]]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for given in ("auto", "curl"):
        with ObjectStoreReader(catalog, **options | {"transport": given}) as reader:
            with pytest.raises(ConnectionRefusedError):
                read(reader, np.array([3]), catalog)
            assert "by libcurl" in repr(reader)


def test_stores_that_were_opened_again_are_not_mistaken_for_others(server):
    contents = [b"1" * 5000, b"2" * 5000]
    both = Catalog.from_names([b"s3://aaa/k", b"s3://bbb/k"], range(2))
    both = publish(server.put, both, contents)
    remote = ObjectStoreReader.remote()
    with ObjectStoreReader.open(both, remote, transport="curl", check=False) as reader:
        for order in np.random.default_rng(0).integers(0, 2, (30, 1)):
            ObjectStoreReader.open(both, remote, transport="obstore").close()
            assert read(reader, order, both) == [contents[order[0]]]


@pytest.mark.parametrize("required", [False, True])
def test_a_store_that_is_far_away_is_left_to_obstore(server, catalog, required):
    server.set(latency=0.02)
    with ObjectStoreReader(catalog, transport="curl" if required else "auto") as reader:
        for _ in range(2):
            order = np.arange(500) % 5
            assert read(reader, order, catalog) == [CONTENTS[sample] for sample in order]
        assert ("far away" in repr(reader)) is not required


@pytest.mark.parametrize("required", [False, True])
def test_a_store_without_tls_is_left_to_obstore(server, catalog, monkeypatch, required):
    monkeypatch.undo()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with ObjectStoreReader(catalog, transport="curl" if required else "auto") as reader:
        assert read(reader, np.array([3]), catalog) == [CONTENTS[3]]
        assert ("obstore (libcurl is faster with TLS only)" in repr(reader)) is not required


@pytest.mark.parametrize("trusted", [True, False])
def test_certificates_are_verified(certificate, trusted, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    with FaultServer(certificate) as tls:
        for name, value in tls.environment.items():
            monkeypatch.setenv(name, value)
        # The server takes calls of tests without TLS only, so it has no objects.
        options = {"root_certificate": certificate[0].read_bytes()} if trusted else {}
        tags = np.array([b'"tag"'])
        listed = replace(catalog_of(1), sizes=np.array([9]), versions=tags)
        with ObjectStoreReader(listed, client_options=options, transport="curl") as reader:
            with pytest.raises(OSError) as caught:
                read(reader, np.array([0]), listed)
            assert caught.value.errno == (errno.ENOENT if trusted else errno.EPROTO)
            assert "by libcurl" in repr(reader)


@pytest.mark.parametrize(
    ("status", "range_", "length", "says"),
    [
        (206, "bytes 100-199/1000", 100, ""),
        (206, "bytes 0-99/1000", 100, "UnexpectedRange"),
        (206, "bytes 100-200/1000", 100, "UnexpectedRange"),
        (206, "bytes 100-199/*", 100, "NotPartial"),
        (206, "", 100, "NotPartial"),
        (200, "bytes 100-199/1000", 100, "NotPartial"),
        (206, "bytes 100-199/1001", 100, "replaced"),
        (200, "", 1000, ""),
        (200, "bytes 0-999/1000", 1000, "NotUnderstood"),
        (206, "bytes 0-999/1000", 1000, "NotUnderstood"),
        (206, "", 1000, "NotUnderstood"),
        (302, "", 1000, "Redirected"),
    ],
)
def test_bytes_are_only_taken_from_an_answer_that_says_they_are_what_was_asked_for(
    status, range_, length, says
):
    piece = ObjectPart(b"s3://data/k", (None, "k"), b'"t"', 1000, 100 * (length < 1000), length)
    head = f'HTTP/1.1 {status} X\r\nETag: "t"' + f"\r\nContent-Range: {range_}" * bool(range_)
    with pytest.raises(Exception, match=says) if says else nullcontext():
        requests.check(piece, 0, status, head.encode(), length, b"")


# --- what it does not do, and what is missing -----------------------------------------------------


@pytest.mark.parametrize(
    ("options", "variables", "says"),
    [
        ({"client_options": {"proxy_url": "http://127.0.0.1:1"}}, {}, r"\['proxy_url'\]"),
        ({"client_options": {"http2_only": True}}, {}, r"\['http2_only'\]"),
        ({"client_options": {"root_certificate": "-----no"}}, {}, r"root_certificate"),
        ({}, {"http_proxy": "http://127.0.0.1:1", "no_proxy": ""}, "the proxy of the environment"),
        ({}, {"AWS_REQUEST_PAYER": "true"}, "AWS_REQUEST_PAYER"),
        ({}, {"AWS_SERVER_SIDE_ENCRYPTION": "AES256"}, "AWS_SERVER_SIDE_ENCRYPTION"),
        ({}, {"AWS_TOKEN": "t"}, "AWS_TOKEN"),
        ({}, {"AWS_SKIP_SIGNATURE": "true"}, "AWS_SKIP_SIGNATURE"),
        ({}, {"DALI_S3_NO_VERIFY_SSL": "1"}, "DALI_S3_NO_VERIFY_SSL"),
        (
            {"endpoint": "https://127.0.0.1:1", "retry": 0},
            {"SSL_CERT_FILE": "/etc/passwd"},
            "SSL_CERT_FILE",
        ),
    ],
)
def test_what_libcurl_does_not_do_is_refused_by_name_or_left_to_obstore(
    server, catalog, monkeypatch, options, variables, says
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((BackendUnavailable, ValueError), match=says):  # noqa: SIM117
        with ObjectStoreReader(catalog, transport="curl", **options) as reader:
            read(reader, np.array([3]), catalog)
    if "root_certificate" in says:  # obstore refuses it, too
        return
    with ObjectStoreReader(catalog, transport="auto", **options) as reader, suppress(OSError):
        read(reader, np.array([3]), catalog)
    assert "by obstore" in repr(reader)


@pytest.mark.parametrize(
    ("number", "features", "wakes", "says"),
    [
        (0x074B00, 0xFFFF, True, "too old"),
        (0x080000, 0x80, True, "no TLS"),
        (0x080000, 0x4, True, "no asynchronous DNS"),
        (0x080000, 0xFFFF, False, "no curl_multi_wakeup"),
        (None, 0, True, "was not found"),
    ],
)
def test_a_libcurl_that_lacks_something_is_refused_by_name(
    catalog, monkeypatch, number, features, wakes, says
):
    def load(path):
        if number is None:
            raise OSError("not there")
        info = SimpleNamespace(version=b"1.2.3", tls=None, number=number, features=features)
        tell = lambda _: SimpleNamespace(contents=info)  # noqa: E731
        return SimpleNamespace(curl_version_info=tell, **{"curl_multi_wakeup": 0} if wakes else {})

    monkeypatch.setattr(libcurl.ctypes, "PyDLL", load)
    monkeypatch.setattr(libcurl.ctypes, "CDLL", load)
    monkeypatch.setattr(libcurl, "_of_pycurl", list)
    monkeypatch.setattr(libcurl, "load", libcurl.load.__wrapped__)
    with pytest.raises(BackendUnavailable, match=says) as caught:
        ObjectStoreReader(catalog, transport="curl")
    assert "libcurl 7.76 or newer" in caught.value.remedy
    with ObjectStoreReader(catalog) as reader:
        assert repr(reader) == "<object-store: by obstore>"


def test_variables_that_change_nothing_are_no_reason_for_obstore(server, catalog, monkeypatch):
    for name, value in {"SKIP_SIGNATURE": "false", "PAGER": "less", "TOKEN": ""}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")  # without TLS
    with ObjectStoreReader(catalog, transport="curl") as reader:
        assert read(reader, np.array([3]), catalog) == [CONTENTS[3]]


def test_keys_of_web_servers_are_quoted_as_obstore_does():
    """What is expected is what obstore has sent."""
    key = "".join(map(chr, range(32, 127))).replace("/", "").replace(".", "") + "ü"
    raw = requests.quote(key, safe=requests._WEB)
    assert raw == (
        "%20!%22%23$%25&'()*+,-0123456789:;%3C=%3E%3F@ABCDEFGHIJKLMNOPQRSTUVWXYZ[%5C]^_"
        "%60abcdefghijklmnopqrstuvwxyz%7B|%7D~%C3%BC"
    )
