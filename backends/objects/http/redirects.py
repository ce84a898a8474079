"""Where the URLs of web servers redirect to, kept until the signatures there end.

A hub answers each URL with a redirect to a signed URL of its store, and limits how often it is
asked. So one request for a URL asks the hub; the others wait for its answer, and then go straight
to the target, until that is near its end or refuses a request. So does obstore, which repeats
requests. For the thread of an event loop.

Targets have signatures: nothing prints, logs or pickles them.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qs, urljoin, urlsplit

from ....contract.errors import BackendUnavailable
from ..store import PRIVATE
from .answers import Redirected, Refused
from .connections import Job, Server

_EARLIER = 60.0  # seconds: a target is renewed so long before its end, or after half of its time
_UNKNOWN, _LONGEST = 300.0, 3300.0  # seconds: of a target that states no end, and of any
_MOST = 10  # redirects of a request, as browsers and obstore follow
_PRIVATE = re.compile(rf"^(?:{'|'.join(PRIVATE)}):.*\r\n".encode(), re.I | re.M)
_SENT = re.compile(r"[!-~]*")  # what may stand in the first line of a request


@dataclass(slots=True, eq=False, repr=False)
class Target:
    """A URL that another one redirects to.

    Attributes:
        url: with its signature, as it is sent.
        renew: from this time on, by `time.monotonic()`, it is asked for anew.
        until: when it ends.
    """

    server: Server
    url: SplitResult
    renew: float
    until: float


class Web(NamedTuple):
    """A web server, whose redirects are followed.

    Attributes:
        base: its URL.
        find: returns the server of another URL; raises BackendUnavailable if only obstore can.
    """

    base: SplitResult
    find: Callable[[SplitResult], Server]


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class WebJob(Job):
    """A request to a web server, which may redirect it.

    Attributes:
        web: the server.
        target: where it is sent instead.
        asks: whether others wait for its answer.
        hops: redirects since it was sent to the server.
        renewed: whether it has waited for another target.
    """

    web: Web
    target: Target | None = None
    asks: bool = False
    hops: int = 0
    renewed: bool = False
    home: tuple[Server, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.home = self.server, self.request

    @property
    def url(self) -> bytes:
        found: bytes = self.call.items[self.position].url
        return found

    @property
    def hedged(self) -> bool:
        return self.target is not None or not self.asks  # obstore would ask the server, too

    def go(self, target: Target | None) -> None:
        """Address the request to a target, or to its own server."""
        (self.server, self.request), self.target = self.home, target
        if target is None:
            self.hops = 0
            return
        url, (_, host, rest) = target.url, self.request.split(b"\r\n", 2)
        if not same_origin(url, self.web.base):  # secrets stay with their server
            host, rest = b"Host: " + url.netloc.encode(), _PRIVATE.sub(b"", rest)
        path = (url.path or "/") + (url.query and f"?{url.query}")  # not urlunsplit: "//" stays
        self.server = target.server
        self.request = b"\r\n".join([b"GET %s HTTP/1.1" % path.encode(), host, rest])

    def redirected(self, location: str) -> Target | None:
        """The target of an answer; None: it is left to obstore."""
        path = self.home[1].split(b" ", 2)[1].decode()
        here = self.target.url if self.target else self.web.base._replace(path=path)
        try:
            url = urlsplit(urljoin(here.geturl(), location))
            if url.scheme not in ("https", here.scheme) or "@" in url.netloc or not url.hostname:
                return None
            if not _SENT.fullmatch(url.geturl()):
                return None
            server = self.web.find(url)
        except (ValueError, BackendUnavailable):
            return None
        now, seconds = time.monotonic(), min(_seconds(url.query, time.time()), _LONGEST)
        return Target(server, url, now + seconds - min(_EARLIER, seconds / 2), now + seconds)


class Redirects:
    """The targets of URLs, in a mapping that several clients may use one after another.

    Attributes:
        newest: by URL, what it has redirected to last; for other threads to read.
    """

    def __init__(self, targets: dict[bytes, Target | None]) -> None:
        self.newest = {url: target for url, target in targets.items() if target}
        # By URL; None: this one does not redirect, as others of its server do.
        self._targets = targets
        self._asked: dict[bytes, list[WebJob]] = {}  # that wait for the answer to another request
        self._redirecting: dict[Server, bool] = {}  # not there: no answer so far

    def ready(self, jobs: Iterable[Job]) -> list[Job]:
        """Address requests to their targets; keep those whose target is being asked for."""
        return [job for job in jobs if not isinstance(job, WebJob) or self._is_ready(job)]

    def ended(self, job: Job, error: Exception | None) -> tuple[list[Job], bool]:
        """Return the requests to send after the end of one, and whether that one has failed."""
        if not isinstance(job, WebJob):
            return [], error is not None
        if error and self._goes_on(job, error):
            return self.ready([job]), False
        redirects = job.target is not None
        known = not error and self._redirecting.setdefault(job.home[0], redirects)
        if isinstance(error, Refused) and error.passes:  # a target that is busy
            known = redirects
        if known and job.asks:
            self._targets[job.url] = job.target
        return self.forget(job), error is not None

    def forget(self, job: Job) -> list[Job]:
        """Return the requests that have waited for one; the first of them may ask."""
        if not (isinstance(job, WebJob) and job.asks):
            return []
        job.asks = False
        return self.ready(self._asked.pop(job.url))

    def drop(self, meant: Callable[[Job], bool]) -> None:
        """Forget those that wait, and are meant."""
        for url, waiting in self._asked.items():
            self._asked[url] = [job for job in waiting if not meant(job)]

    def _is_ready(self, job: WebJob) -> bool:
        if job.asks or self._redirecting.get(job.home[0]) is False:
            return True
        url, now = job.url, time.monotonic()
        waiting, target = self._asked.get(url), self._targets.get(url)
        if target and now < (target.renew if waiting is None else target.until):
            job.go(target)
        elif waiting is not None:
            waiting.append(job)
            job.call.pause(job.position)
            return False
        else:
            job.go(None)
            if target or url not in self._targets:
                job.asks, self._asked[url] = True, []
        return True

    def _goes_on(self, job: WebJob, error: Exception) -> bool:
        """Whether a request is to be sent once more: to a target, or where it is asked for."""
        if isinstance(error, Redirected):
            if job.hops == _MOST or (target := job.redirected(error.location)) is None:
                return False
            self._redirecting[job.home[0]] = True
            if job.asks or job.url not in self._asked:
                self._asked.setdefault(job.url, [])
                job.asks, job.hops = True, job.hops + 1
                self.newest[job.url] = target
                job.go(target)
            return True
        if not isinstance(error, Refused) or job.target is None:
            return False
        if error.is_of_signature:
            for known in (self.newest, self._targets):
                if known.get(job.url) is job.target:
                    del known[job.url]
        elif not (error.passes and job.url in self._asked):  # another target is on its way
            return False
        again = not (job.asks or job.renewed)
        job.renewed = True
        return again


def same_origin(url: SplitResult, other: SplitResult) -> bool:
    """Compare the servers of URLs."""
    ports = {"http": 80, "https": 443}
    one, two = ((it.scheme, it.hostname, it.port or ports[it.scheme]) for it in (url, other))
    return one == two


def _seconds(query: str, now: float) -> float:
    """How long a signed URL is valid: by the parameters of S3, Google or CloudFront."""
    given = {name.lower(): values[-1] for name, values in parse_qs(query).items()}
    ends = []
    for form in ("x-amz-", "x-goog-"):
        if (seconds := given.get(f"{form}expires", "")).isdecimal():
            ends.append(float(seconds))
            with suppress(ValueError):
                signed = time.strptime(given.get(f"{form}date", ""), "%Y%m%dT%H%M%SZ")
                ends.append(timegm(signed) + float(seconds) - now)
    if re.fullmatch(r"\d{9,11}", given.get("expires", "")):
        ends.append(float(given["expires"]) - now)
    return min((end for end in ends if end > 0), default=_UNKNOWN)  # else a clock is wrong
