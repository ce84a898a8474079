"""Web servers that redirect to signed URLs: the targets are kept, renewed, and told to nobody."""

import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest

from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects.calls import Call
from dali_storage.backends.objects.http import redirects
from dali_storage.backends.objects.http.answers import Redirected, Refused
from dali_storage.backends.objects.http.connections import Server
from dali_storage.backends.objects.http.redirects import Redirects, Web, WebJob
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.ranges import Ranges
from dali_storage.testing import read
from tests.kit.objects.hub import reply, reply_with_part, serving

COUNT, STEP, SIZE = 20, 40_000, 3000  # so far from each other that none are requested together
FILES = [np.random.default_rng(number).bytes(COUNT * STEP) for number in range(3)]
TOKEN = "hf_canary"
OPTIONS = {"allow_http": True, "default_headers": {"Authorization": f"Bearer {TOKEN}"}}


class Hub:
    """Two servers: one redirects each name to the other, which knows signatures.

    Attributes:
        status, hops: of the redirect; so many on the hub before that to the store.
        signature: the one that the store accepts.
        given: the one that the hub gives.
        asked: requests to the hub, by method and path.
        pause: seconds until the hub answers a GET.
        trouble: gets each request that the store accepts, and its number; returns a status, or 0.
    """

    def __init__(self):
        self.status, self.hops, self.query = 302, 0, ""
        self.signature = self.given = "sig0"
        self.asked, self.stored, self.leaked = Counter(), Counter(), []
        self.lock, self.pause, self.trouble = threading.Lock(), 0.0, lambda it, number: 0

    def redirect(self, it):
        assert it.headers["Authorization"] == f"Bearer {TOKEN}"
        path, _, hop = it.path.partition("?hop=")
        if not hop:
            with self.lock:
                self.asked[it.command, path] += 1
            time.sleep(self.pause if it.command == "GET" else 0)
        if int(hop or 0) < self.hops:
            place = f"{path}?hop={int(hop or 0) + 1}"  # on the same host
        else:
            place = f"http://127.0.0.1:{self.port}{path}?{self.query}X-Sig={self.given}"
        reply(it, self.status, b"moved " * 100, {"Location": place})

    def store(self, it):
        path, _, query = it.path.partition("?")
        self.leaked += [name for name in ("Authorization", "Cookie") if name in it.headers]
        with self.lock:
            allowed = query.endswith(f"X-Sig={self.signature}")
            self.stored[allowed] += 1
            number = self.stored[True]
        if not allowed:
            return reply(it, 403, b"signature of canary")
        if status := self.trouble(it, number):
            return reply(it, status)
        return reply_with_part(it, FILES[int(path[2:])], f'"{path[1:]}"')


@pytest.fixture
def hub():
    hub = Hub()
    with serving(hub.store) as hub.port, serving(lambda it: hub.redirect(it)) as port:
        hub.url = f"http://127.0.0.1:{port}"
        yield hub


def catalog_of(hub):
    """COUNT ranges of each file."""
    files = Catalog.from_names([b"f0", b"f1", b"f2"], range(3), hub.url.encode())
    rows = np.arange(3 * COUNT)
    ranges = Ranges.of_columns(rows // COUNT, rows % COUNT * STEP, np.full(len(rows), SIZE))
    return replace(files, labels=rows.astype(np.int32), ranges=ranges)


def expected(samples):
    return [FILES[at // COUNT][at % COUNT * STEP :][:SIZE] for at in samples]


def epoch(reader, catalog, seed, between=lambda: None):
    order = np.random.default_rng(seed).permutation(3 * COUNT)
    for batch in np.split(order, 4):
        assert read(reader, batch, catalog) == expected(batch)
        between()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_hub_is_asked_once_a_file_and_the_store_never_sees_the_token(hub, status):
    hub.status, hub.hops = status, status % 2
    catalog = catalog_of(hub)
    with ObjectStoreReader(catalog, transport="own", client_options=OPTIONS) as reader:
        for seed in range(3):
            epoch(reader, catalog, seed)
        assert repr(reader) == "<object-store: by its own client>"
    assert hub.asked == {(method, f"/f{n}"): 1 for method in ("HEAD", "GET") for n in range(3)}
    assert not hub.leaked
    assert hub.stored == {True: 3 + 9 * COUNT}


def busy(it, number):
    return 503 * (it.command == "GET" and number % 5 == 4)


def slow(it, number):
    time.sleep(0.3 * (it.command == "GET" and number % 9 == 4))


@pytest.mark.parametrize("trouble", [busy, slow])
def test_retries_and_hedges_go_to_the_target_too(hub, trouble):
    hub.trouble, hub.pause, catalog = trouble, 0.5, catalog_of(hub)
    with ObjectStoreReader(catalog, hedge=0.05, client_options=OPTIONS) as reader:
        epoch(reader, catalog, 0)
        hub.query = "new&"  # not asked for, but at the end of those there are
        hub.signature = hub.given = "sig1"
        epoch(reader, catalog, 1)
        assert repr(reader) == "<object-store: by its own client>"
    assert hub.stored[True] >= 3 + 6 * COUNT + 3  # some ranges were requested again
    assert hub.asked == {
        (it, f"/f{n}"): 1 + (it == "GET") for it in ("HEAD", "GET") for n in range(3)
    }
    assert not hub.leaked


def test_a_target_that_refuses_obstore_is_asked_for_anew(hub):
    def refuse(it, number):
        own = it.headers["User-Agent"] == "dali_storage"
        return (500 if own else 403) * (it.command == "GET" and number > 1 + COUNT)

    catalog = catalog_of(hub)
    with ObjectStoreReader(catalog, client_options=OPTIONS) as reader:
        read(reader, np.arange(COUNT), catalog)
        hub.trouble = lambda it, number: refuse(it, number) * ("moved" not in it.path)
        hub.query = "moved&"
        assert read(reader, np.array([1]), catalog) == expected([1])
    assert hub.asked["GET", "/f0"] == 2


def test_a_signature_that_has_ended_is_renewed_once_a_file(hub):
    catalog = catalog_of(hub)

    def rotate():
        hub.signature = hub.given = f"sig{int(hub.given[3:]) + 1}"

    with ObjectStoreReader(catalog, transport="own", client_options=OPTIONS) as reader:
        epoch(reader, catalog, 0, rotate)
        rotated = hub.given
    assert rotated == "sig4"
    gets = {name: count for (method, name), count in hub.asked.items() if method == "GET"}
    assert gets == {"/f0": 4, "/f1": 4, "/f2": 4}
    assert hub.stored[True] == 3 + 3 * COUNT


def test_a_target_is_renewed_before_its_end(hub, monkeypatch):
    now, clock = [1000.0], redirects.time.monotonic
    monkeypatch.setattr(redirects, "time", SimpleNamespace(
        monotonic=lambda: clock() + now[0], time=lambda: now[0], strptime=redirects.time.strptime
    ))  # fmt: skip
    hub.query, catalog = "X-Amz-Expires=600&X-Amz-Date=19700101T001640Z&", catalog_of(hub)
    with ObjectStoreReader(catalog, transport="own", client_options=OPTIONS) as reader:
        for seconds, asked in ((0, 1), (400, 1), (600, 2)):
            now[0] = 1000.0 + seconds
            epoch(reader, catalog, seconds)
            assert hub.asked["GET", "/f1"] == asked
    assert hub.stored == {True: 3 + 9 * COUNT}


def test_a_store_that_refuses_new_signatures_is_an_error_without_them(hub):
    catalog = catalog_of(hub)
    with ObjectStoreReader(catalog, client_options=OPTIONS) as reader:
        epoch(reader, catalog, 0)
        hub.signature = "other"
        with pytest.raises(PermissionError, match=r"f\d") as caught:
            read(reader, np.arange(3 * COUNT), catalog)
    assert "sig0" not in repr(caught.value)
    assert TOKEN not in repr(caught.value)


@pytest.mark.parametrize(
    "place",
    ["http://no-such-host.invalid/f0", "{hub}{path}", "ftp://127.0.0.1/f0", "http://u:p@h/"],
)
def test_bad_redirects_are_errors_that_name_the_file(hub, place):
    catalog = catalog_of(hub)
    with ObjectStoreReader(catalog, client_options=OPTIONS, retry=0) as reader:
        reader.sizes(np.arange(3), 0)
        headers = {"Location": place}

        def redirect(it):
            shown = {name: url.format(hub=hub.url, path=it.path) for name, url in headers.items()}
            reply(it, 302, b"", shown)

        hub.redirect = redirect
        with pytest.raises(OSError, match=r"f\d"):
            read(reader, np.arange(3), catalog)
        headers.clear()
        with pytest.raises(OSError, match="redirects without a Location; check the server"):
            read(reader, np.arange(3), catalog)


SERVER = Server("hub", 443, None, 1.0, 1.0)


def job_of(call, position, find=lambda url: Server(url.hostname, 1, None, 1.0, 1.0)):
    request = b"GET /a/f HTTP/1.1\r\nHost: hub\r\nCookie: c\r\nRange: bytes=0-1\r\n\r\n"
    web = Web(urlsplit("https://hub/"), find)
    return WebJob(call, position, SERVER, request, memoryview(b""), web=web)


@pytest.fixture
def jobs():
    call = Call(None, [SimpleNamespace(url=b"https://hub/a/f")] * 6)
    return [job_of(call, position) for position in range(6)]


def test_the_requests_of_a_url_wait_for_the_first_which_may_end_in_any_way(jobs):
    kept = Redirects({})
    first, second, third, fourth, *rest = jobs
    assert kept.ready(jobs[:4]) == [first]
    assert kept.ended(first, OSError()) == ([second], True)  # the next one asks
    assert kept.forget(second) == [third]  # was dropped
    kept.drop(lambda job: job is fourth)
    assert kept.ended(third, Redirected("/b?x=1")) == ([third], False)
    assert third.request.startswith(b"GET /b?x=1 HTTP/1.1\r\nHost: hub\r\nCookie: c\r\n")
    assert kept.ended(third, Redirected("https://store//c?y=2")) == ([third], False)
    assert third.request == b"GET //c?y=2 HTTP/1.1\r\nHost: store\r\nRange: bytes=0-1\r\n\r\n"
    assert kept.ready(rest) == []
    assert kept.ended(third, None) == (rest, False)
    assert {job.server.host for job in rest} == {"store"}
    assert "store" not in repr(third.target)


def test_of_requests_that_are_refused_at_once_one_renews_and_a_new_target_is_not_asked_twice(jobs):
    kept = Redirects({})
    first, second, third, *_ = jobs
    kept.ready([first])
    kept.ended(first, Redirected("https://store/1"))
    kept.ended(first, None)
    assert kept.ready([second, third]) == [second, third]
    assert kept.ended(second, Refused(status="403")) == ([second], False)
    assert second.server is SERVER
    assert kept.ended(third, Refused(status="403")) == ([], False)  # waits
    assert kept.ended(second, Redirected("https://store/2")) == ([second], False)
    assert kept.ended(second, None) == ([third], False)
    assert third.request.startswith(b"GET /2 ")
    assert kept.ended(third, Refused(status="403")) == ([], True)


def test_the_end_of_an_old_request_does_not_bring_its_target_back(jobs, monkeypatch):
    kept, clock = Redirects({}), redirects.time
    first, old, renewing, last, *_ = jobs
    kept.ready([first])
    kept.ended(first, Redirected("https://store/1?X-Amz-Expires=600"))
    kept.ended(first, None)
    assert kept.ready([old]) == [old]
    monkeypatch.setattr(redirects, "time", SimpleNamespace(
        monotonic=lambda: clock.monotonic() + 560, time=clock.time, strptime=clock.strptime
    ))  # fmt: skip
    assert kept.ready([renewing]) == [renewing]
    kept.ended(renewing, Redirected("https://store/2?X-Amz-Expires=600"))
    kept.ended(renewing, None)
    kept.ended(old, None)
    assert kept.ready([last]) == [last]
    assert last.request.startswith(b"GET /2?")


@pytest.mark.parametrize(
    ("place", "same"),
    [
        ("https://HUB:443/b", True),
        ("https://hub/b", True),
        ("https://hub:80/b", False),
        ("https://hub.example/b", False),
        ("https://[::1]/b", False),
    ],
)
def test_secrets_stay_with_their_scheme_host_and_port(jobs, place, same):
    jobs[0].go(jobs[0].redirected(place))
    assert (b"Cookie" in jobs[0].request) is same


def test_a_redirect_to_less_security_or_in_a_circle_is_not_followed(jobs):
    kept = Redirects({})
    kept.ready(jobs[:1])
    assert kept.ended(jobs[0], Redirected("http://hub/a/f")) == ([], True)
    kept.ready(jobs[1:2])
    for _ in range(10):
        assert kept.ended(jobs[1], Redirected("https://hub/a/f")) == ([jobs[1]], False)
    assert kept.ended(jobs[1], Redirected("https://hub/a/f")) == ([], True)


def test_urls_of_a_server_that_never_redirects_do_not_wait(jobs):
    kept = Redirects({})
    kept.ready(jobs[:1])
    kept.ended(jobs[0], None)
    assert kept.ready(jobs[1:]) == jobs[1:]
    assert kept.ended(jobs[1], Redirected("https://store/1")) == ([jobs[1]], False)
    assert kept.ended(jobs[2], Redirected("https://store/2")) == ([], False)  # waits
    assert kept.ended(jobs[1], None) == ([jobs[2]], False)
