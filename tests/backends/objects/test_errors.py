"""Every answer of a store, and every failure on the way, as an error that says what to do."""

import errno
import re
import socket

import pytest
from obstore import exceptions

from dali_storage.backends.objects.errors import ShortBodyError, compare, mapped, retryable
from dali_storage.backends.objects.remote import StoreRemote
from dali_storage.backends.objects.store import Stores, get, head
from dali_storage.contract.errors import ObjectReplacedError
from tests.kit.objects.client import FOR_EVER, FaultServer

URL = b"s3://data/a/status: 503 <Code>SlowDown</Code> ContentRange InvalidCertificate"
DATA = b"0123456789" * 100
PASSING = "408", "425", "429", "500", "502", "503", "504"
ASK = {
    "GET": lambda store, key: bytes(get(store, key, {"range": (0, len(DATA))}).buffer()),
    "HEAD": lambda store, key: store.head(key),
    "LIST": lambda store, key: store.list("a/").collect(),
}


@pytest.fixture
def store(server):
    """The server with one object, whose key looks like an answer."""
    server.put(URL.removeprefix(b"s3://"), DATA)
    return server


def failure(method="GET", url=URL, **options):
    """The error of obstore, and ours."""
    store, key = Stores(**options).locate(url)
    try:
        ASK[method](store, key)
    except Exception as error:
        return error, mapped(error, url)
    raise AssertionError("nothing failed")


ANSWERS = [
    ("400", OSError, "check the region (400 InvalidRequest)"),
    ("401", PermissionError, "asks for credentials"),
    ("403", PermissionError, "access is denied; check the credentials"),
    ("404", FileNotFoundError, "no such object"),
    ("408", OSError, "(408 RequestTimeout)"),
    ("409", OSError, "(409 OperationAborted)"),
    ("412", ObjectReplacedError, "was replaced after it was listed"),
    ("425", OSError, "(425 TooEarly)"),
    ("429", OSError, "throttles requests; lower the option requests (429 TooManyRequests)"),
    ("500", OSError, "(500 InternalError)"),
    ("501", OSError, "(501 NotImplemented)"),
    ("502", OSError, "(502 BadGateway)"),
    ("503", OSError, "or is down; lower the option requests (503 SlowDown)"),
    ("504", OSError, "(504 GatewayTimeout)"),
    ("archived", PermissionError, "in an archive; restore it first"),
    ("clock", PermissionError, "clock differs from the store's; set it"),
    ("expired", PermissionError, "have expired; renew them"),
    ("idle", OSError, "(400 RequestTimeout)"),
    ("key-id", PermissionError, "access is denied; check the credentials"),
    ("no-bucket", FileNotFoundError, "no such bucket; check its name and the endpoint"),
    ("region", OSError, "in another region; set region, or AWS_REGION"),
    ("region-400", OSError, "in the region eu-central-1; set region, or AWS_REGION"),
    ("signature", PermissionError, "the secret does not match the access key"),
]


@pytest.mark.parametrize(("mode", "kind", "says"), ANSWERS)
@pytest.mark.parametrize("method", ["GET", "LIST"])
def test_an_answer_of_the_store_is_an_error_that_says_what_to_do(store, mode, kind, says, method):
    store.fail(mode, on=method)
    theirs, error = failure(method)
    assert type(error) is kind
    assert says in (error.strerror or "")
    assert error.filename == URL.decode()
    assert retryable(theirs) is retryable(theirs, reached=False) is (mode in (*PASSING, "idle"))


@pytest.mark.parametrize(
    ("mode", "kind", "says"), [row for row in ANSWERS if row[0].isdigit() or row[0] == "region"]
)
def test_an_answer_without_a_body_is_understood_by_its_status(store, mode, kind, says):
    store.fail(mode, on="HEAD")
    theirs, error = failure("HEAD")
    assert type(error) is kind
    assert re.sub(r" \w+\)$", ")", says) in str(error)  # without the code, which is in the body
    assert retryable(theirs) is retryable(theirs, reached=False) is (mode in PASSING)


@pytest.mark.parametrize(
    ("mode", "says"),
    [("expired", "have expired"), ("no-bucket", "no such bucket"), ("region-400", "eu-central-1")],
)
def test_the_reason_of_a_refused_head_is_asked_for(store, mode, says):
    store.fail(mode, on="HEAD")
    store.fail(mode, on="GET")
    opened, key = Stores().locate(URL)
    with pytest.raises(Exception) as caught:
        head(opened, key)
    assert says in str(mapped(caught.value, URL))
    assert head(opened, key)["size"] == len(DATA)
    store.fail("429", on="HEAD")
    store.log(clear=True)
    with pytest.raises(Exception) as caught:
        head(opened, key)
    assert retryable(caught.value)
    assert [request.kind for request in store.log()] == ["HEAD"]


@pytest.mark.parametrize(
    ("mode", "arg", "number", "reached", "unreached"),
    [
        ("reset", None, errno.ECONNRESET, True, True),
        ("cut", None, errno.ECONNRESET, True, True),
        ("slow", 600, errno.ETIMEDOUT, True, True),
        ("stall", 600, errno.ETIMEDOUT, True, True),
        ("no-range", None, errno.EPROTO, False, False),
        ("proxy", "chunked", errno.EPROTO, False, False),
        ("proxy", "gzip", errno.EPROTO, False, False),
        ("proxy", "Content-Range: bytes 0-999/*", errno.EPROTO, False, False),
        ("proxy", "Content-Range: bytes 1-1000/1001", errno.EIO, False, False),
        ("proxy", "Transfer-Encoding: chunked", errno.EPROTO, False, False),
        ("proxy", "Content-Length: -5", errno.EPROTO, False, False),
        ("redirect", "http://127.0.0.1:1/", errno.ECONNREFUSED, True, False),
        ("redirect", "http://no.such.host.invalid/", errno.EHOSTUNREACH, True, False),
    ],
)
def test_a_broken_connection_is_an_error_with_a_number(
    store, mode, arg, number, reached, unreached
):
    store.fail(mode, arg=arg)
    error, ours = failure(timeout=0.5 if mode in ("slow", "stall") else 60)
    assert ours.errno == number
    assert (retryable(error), retryable(error, reached=False)) == (reached, unreached)


def test_a_list_may_be_chunked_but_not_compressed(store):
    for changes in ("chunked", "unsized"):
        store.fail("proxy", arg=changes, on="LIST")
        assert len(ASK["LIST"](*Stores().locate(URL))) == 1
    store.fail("proxy", arg="gzip", on="LIST")
    _, ours = failure("LIST")
    assert "a list that is not XML; check its URL; turn off compression" in str(ours)


@pytest.mark.parametrize(
    ("mode", "arg", "part", "says"),
    [
        ("longer", None, (0, 100), "sent 101 bytes instead of 100"),
        ("short", None, (0, 1000), "sent 500 bytes instead of 1,000"),
        ("proxy", "gzip", (0, None), "Content-Encoding: gzip"),
        ("proxy", "br", (9, None), "Content-Encoding: br"),
        ("proxy", "deflate", (0, None), "Content-Encoding: deflate"),
        ("proxy", "Content-Encoding: X-GZIP", (0, None), "Content-Encoding: gzip"),
        ("proxy", "Content-Encoding: aws-chunked, gzip", (0, None), "Content-Encoding: gzip"),
        ("proxy", "Content-Range: bytes 0-2/3", (0, 100), "sent 100 bytes instead of 3"),
        ("proxy", "Content-Range: bytes 0-2/3", (9, 100), "a different byte range"),
        ("no-range", None, (1, 100), "ignores Range"),
    ],
)
def test_an_index_is_never_compressed_or_of_another_length(store, mode, arg, part, says):
    store.fail(mode, arg=arg)
    with pytest.raises(OSError, match=says) as caught:
        StoreRemote(Stores(), 0, True).contents([(URL, *part)])
    assert caught.value.filename == URL.decode()


@pytest.mark.parametrize(
    ("kind", "ours"),
    [
        (exceptions.UnauthenticatedError, PermissionError),
        (exceptions.PermissionDeniedError, PermissionError),
        (FileNotFoundError, FileNotFoundError),
        (exceptions.AlreadyExistsError, OSError),
        (exceptions.PreconditionError, ObjectReplacedError),
    ],
)
def test_a_class_of_obstore_counts_whatever_its_text(kind, ours):
    error = kind("another text")
    assert type(mapped(error, URL)) is ours
    assert not retryable(error)


def test_a_redirect_in_a_circle_is_an_error(store):
    store.fail("redirect", n=FOR_EVER)
    error, ours = failure()
    assert ours.errno == errno.ELOOP
    assert not retryable(error)
    assert len(store.log()) < 20


def test_an_endpoint_that_refuses_or_has_no_address_is_named(store):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # does not listen
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        error, ours = failure(endpoint=endpoint)
    assert ours.errno == errno.ECONNREFUSED
    assert f"the endpoint {endpoint} refuses connections" in str(ours)
    assert retryable(error)
    assert not retryable(error, reached=False)
    _, ours = failure(endpoint="http://no.such.host.invalid")
    assert "the host of the endpoint http://no.such.host.invalid is not known" in str(ours)


def test_another_version_or_size_is_a_replaced_object():
    compare(URL, (3, b'"a"'), (3, b'"a"'))
    for now in ((4, b'"a"'), (3, b'"b"')):
        with pytest.raises(ObjectReplacedError) as caught:
            compare(URL, now, (3, b'"a"'))
        assert caught.value.filename == URL.decode()
    short = ShortBodyError("asked for 3 bytes, got 2")
    assert retryable(short, reached=False)
    assert mapped(short, URL).errno == errno.EIO


@pytest.fixture
def tls(certificate, store):
    """The URL of a server with a certificate that nobody knows; it has no buckets."""
    with FaultServer(certificate) as secure:
        yield secure.url


def test_a_certificate_that_cannot_be_verified_is_refused(tls, certificate, monkeypatch):
    error, ours = failure(endpoint=tls)
    assert ours.errno == errno.EPROTO
    assert f"certificate of the endpoint {tls} cannot be verified" in str(ours)
    assert not retryable(error)
    authority = {"root_certificate": certificate[0].read_bytes()}
    assert isinstance(failure(endpoint=tls, client_options=authority)[1], FileNotFoundError)
    monkeypatch.setenv("DALI_S3_NO_VERIFY_SSL", "1")
    assert isinstance(failure(endpoint=tls)[1], FileNotFoundError)
    monkeypatch.setenv("DALI_S3_NO_VERIFY_SSL", "0")
    assert failure(endpoint=tls)[1].errno == errno.EPROTO
