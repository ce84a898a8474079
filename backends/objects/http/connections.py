"""Connections to servers, which receive bodies at their destination."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .answers import Refused, check

if TYPE_CHECKING:
    from ..calls import Call
    from ..versions import ObjectPart

_LONGEST_HEAD = 8192  # bytes
_END = re.compile(rb"\n\r?\n")  # RFC 9112, 2.2: a lone LF ends a line, too
_STEP = 512  # bytes of a head received at once: those of the body among them must be copied


class Server(NamedTuple):
    """Where connections lead, with TLS if there is a context; and the most seconds for them."""

    host: str
    port: int
    context: ssl.SSLContext | None
    timeout: float
    connecting: float

    @property
    def address(self) -> tuple[str, int]:
        return self[:2]


@dataclass(slots=True, eq=False, repr=False)  # requests have secrets
class Job:
    """A request for an item of a call, and the destination of the body, as long as the item.

    Attributes:
        first, began: when it was sent first, and last.
        lent: obstore requests the item, too, with the permit.
    """

    call: Call[ObjectPart, Any]
    position: int
    server: Server
    request: bytes
    body: memoryview
    first: float = 0.0
    began: float = 0.0
    lent: bool = False

    @property
    def hedged(self) -> bool:
        """True if it may be sent twice."""
        return True

    def start(self) -> None:
        """Note that it is sent now."""
        self.began = self.call.begin(self.position)
        if not self.hedged:
            self.call.pause(self.position)
        self.first, self.lent = self.first or self.began, False


class Connection:
    """A connection for one request at a time, in the thread of its event loop; opened by the first.

    By sockets: the transports of asyncio receive TLS at a fifth more CPU time.
    """

    def __init__(
        self, server: Server, ended: Callable[[Connection, Job | None, Exception | None], None]
    ) -> None:
        """`ended` gets each job, with an error if it failed; without a job, an idle one ended."""
        self.server, self._ended = server, ended
        self._loop = asyncio.get_running_loop()
        self.socket: socket.socket | None = None  # once it is open
        self._opening: asyncio.Task[None] | None = None
        self._head = bytearray(_LONGEST_HEAD)
        self._job: Job | None = None
        self._body: memoryview | None = None  # once there is a head
        self._got = 0  # bytes of the head, then of the body
        self._stays_open = False  # after this answer or, before its head, the one before
        self.since = 0.0  # when it began to open or, once it is open, sent the request

    @property
    def silent(self) -> bool:
        """True while there is no byte of the answer."""
        return self._body is None and not self._got

    def send(self, job: Job) -> None:
        self._job, self._got, self.since = job, 0, time.monotonic()
        if self.socket is None:
            self._opening = self._loop.create_task(self._open(job))
            return
        with contextlib.suppress(OSError):
            try:
                self.socket.recv_into(self._head)  # not an answer to this: end the connection
            except (BlockingIOError, ssl.SSLWantReadError):
                if self.socket.send(job.request) == len(job.request):
                    return
        # Later, because `ended` may send, and fail, again; but only once.
        self._loop.remove_reader(self.socket)
        self._loop.call_soon(self._lose, job, ConnectionResetError())

    def end(self, job: Job | None, error: Exception | None) -> None:
        """End a job, or an idle connection, unless it was closed meanwhile."""
        if self._job is job:
            self._job = self._body = None
            if error or not self._stays_open:
                self.close()
            self._ended(self, job, error)

    def _lose(self, job: Job | None, error: Exception) -> None:
        """End a job; or send it by a new connection, if the idle one was closed meanwhile."""
        stale = self._stays_open and self.silent and isinstance(error, ConnectionError)
        if stale and job and self._job is job:
            self.close()
            self.send(job)
        else:
            self.end(job, error)

    def close(self) -> None:
        """Forget the job. Nothing is received any more."""
        self._job = self._body = None
        self._stays_open = False
        if self._opening:
            self._opening.cancel()
        if self.socket:
            self._loop.remove_reader(self.socket)
            self.socket.close()
            self.socket = None

    async def _open(self, job: Job) -> None:
        try:
            connected = await self._connect()
        except Exception as error:  # obstore finds the reason
            self._opening = None
            untrusted = isinstance(error, ssl.SSLCertVerificationError)
            self.end(job, Refused("has a certificate that is not trusted") if untrusted else error)
        else:
            self._opening, self.socket = None, connected
            self._loop.add_reader(connected, self._receive)
            self.send(job)

    async def _connect(self) -> socket.socket:
        """Connect to the first address that answers in its part of the time.

        A handshake has the whole time: it needs several round trips, and S3 has eight addresses.
        """
        host, port, context, _, seconds = self.server
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, *_, address) in enumerate(found, 1):
            connected = socket.socket(family, kind, protocol)
            try:
                connected.setblocking(False)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with asyncio.timeout(seconds / len(found)):
                    await self._loop.sock_connect(connected, address)
                if context:
                    connected = secure = context.wrap_socket(
                        connected, server_hostname=host, do_handshake_on_connect=False
                    )
                    async with asyncio.timeout(seconds):
                        await self._shake_hands(secure)
                return connected
            except BaseException as error:
                connected.close()
                if not isinstance(error, OSError) or number == len(found):
                    raise
        raise OSError  # there is no address

    async def _shake_hands(self, secure: ssl.SSLSocket) -> None:
        readable = asyncio.Event()
        self._loop.add_reader(secure, readable.set)
        try:
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    secure.do_handshake()
                    break
                readable.clear()
                await readable.wait()
        finally:
            self._loop.remove_reader(secure)

    def _receive(self) -> None:
        try:
            while self._receive_some():
                pass
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except (OSError, Refused) as error:
            self._lose(self._job, error)

    def _receive_some(self) -> bool:
        """Receive a part of an answer; return True if there may be more."""
        assert self.socket
        job, got, body = self._job, self._got, self._body
        place = memoryview(self._head)[got : got + _STEP] if body is None else body[got:]
        count = self.socket.recv_into(place)
        if not count or job is None:  # closed; or nobody has asked for this
            raise ConnectionResetError
        self._got += count
        if body is None:
            self._check_head(job, got)
        if self._body is not None and self._got == len(self._body):
            self.end(job, None)
            return False
        return count == len(place) or self.server.context is not None

    def _check_head(self, job: Job, before: int) -> None:
        """Check the head if it is complete, and begin the body."""
        end = _END.search(self._head, max(before - 3, 0), self._got)
        if not end:
            if self._got > _LONGEST_HEAD - _STEP:
                raise Refused("sends long headers")
            return
        self._stays_open = check(bytes(self._head[: end.start() + 1]), job.call.items[job.position])
        start, self._got = self._got, self._got - end.end()
        if self._got > len(job.body):
            raise Refused
        job.body[: self._got] = self._head[end.end() : start]
        self._body = job.body
