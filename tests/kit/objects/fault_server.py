"""A small S3 server that fails on demand: the oracle of what a client must survive.

    python -m tests.kit.objects.fault_server [--certificate CERTIFICATE KEY]
    python -m tests.kit.objects.fault_server --root ROOT --latency 0.03 --tail 0.01

It listens on a port of 127.0.0.1, prints its URL, and ends when its standard input does. It is a
process of its own: a thread would share the interpreter lock with the client whose time is taken.
Path style; signatures are not checked. `client.FaultServer` starts it, and calls methods of
`Server` by requests with a method of their own, so that no key is taken. The second command is for
measurements, until Ctrl-C or, with --until-eof, the end of its standard input: each directory in
ROOT is a bucket.

Faults are named in `FAULTS` and `ERRORS`. The text of errors is that of S3:
https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import random
import signal
import ssl
import sys
import urllib.parse
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.kit.objects.buckets import Bucket, Directory, Entry, Memory, page

ERRORS = {
    "400": (400, "InvalidRequest"),
    "401": (401, "Unauthorized"),
    "403": (403, "AccessDenied"),
    "404": (404, "NoSuchKey"),
    "408": (408, "RequestTimeout"),
    "409": (409, "OperationAborted"),
    "412": (412, "PreconditionFailed"),
    "425": (425, "TooEarly"),
    "429": (429, "TooManyRequests"),
    "500": (500, "InternalError"),
    "501": (501, "NotImplemented"),
    "502": (502, "BadGateway"),
    "503": (503, "SlowDown"),
    "504": (504, "GatewayTimeout"),
    "archived": (403, "InvalidObjectState"),
    "clock": (403, "RequestTimeTooSkewed"),
    "expired": (400, "ExpiredToken"),
    "idle": (400, "RequestTimeout"),
    "key-id": (403, "InvalidAccessKeyId"),
    "no-bucket": (404, "NoSuchBucket"),
    "region": (301, "PermanentRedirect"),
    "region-400": (400, "AuthorizationHeaderMalformed"),
    "signature": (403, "SignatureDoesNotMatch"),
}
"""Status and code of the errors, by the fault's name."""

FAULTS = {
    "cut": "half of the body, then the connection is closed",
    "cut-swap": "half of the body, then it is closed, and the object is replaced",
    "foreign-etag": "another ETag: `arg`, or one of S3",
    "longer": "a body with one byte more than was asked for",
    "no-etag": "no ETag, after `arg` seconds",
    "no-range": "the Range is ignored: 200 and the whole object",
    "proxy": "the right answer, as a proxy passes it on: `arg`, see `_passed_on()`",
    "redirect": "307 to the URL `arg`; without it, to the same one",
    "replace": "the right answer; then the object, or all that were listed, are replaced",
    "reset": "the connection is reset",
    "short": "half of the body, and a Content-Length that says so",
    "slow": "`arg` seconds until the head is sent, or until the faults are healed",
    "stall": "half of the body, then nothing for `arg` seconds, or until the faults are healed",
    "wrong-size": "a Content-Range with a larger size of the whole object",
}


@dataclass
class Fault:
    """The next `n` requests of a kind fail.

    Attributes:
        mode: a name of `ERRORS` or `FAULTS`.
        n: how many requests.
        arg: see `FAULTS`.
        on: "GET", "HEAD" or "LIST".
        key: the only object concerned, "bucket/key"; of a list, "bucket/prefix".
        skip: how many requests pass before.
        chance: of each request to be concerned.
    """

    mode: str
    n: int = 1
    arg: Any = None
    on: str = "GET"
    key: str | None = None
    skip: int = 0
    chance: float = 1.0


@dataclass
class Request:
    """A request, as the log has it.

    Attributes:
        kind: "GET", "HEAD" or "LIST".
        key: "bucket/key", not quoted, bytes that are not UTF-8 as surrogates; of a list,
            "bucket/prefix".
        headers: those that came, in lower case.
        query: those of the URL.
        under_way: how many were being answered then, this one included.
        fault: what was done to it, or "".
    """

    kind: str
    key: str
    headers: dict[str, str]
    query: dict[str, str]
    under_way: int
    fault: str = ""


@dataclass
class State:
    """What `Server`'s methods for tests change."""

    buckets: dict[str, Bucket] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    log: deque[Request] = field(default_factory=deque)
    latency: float = 0.0
    page: int = 1000
    modified: str = "Thu, 01 Jan 2026 00:00:00 GMT"
    under_way: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(0))
    healed: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self, seconds: float) -> None:
        """Wait, at most until the faults are healed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.healed.wait(), seconds)

    def fault(self, request: Request) -> Fault | None:
        """The fault of this request; it is counted."""
        for fault in self.faults:
            if fault.on != request.kind or fault.key not in (None, request.key) or not fault.n:
                continue
            if fault.skip:
                fault.skip -= 1
            elif self.random.random() < fault.chance:
                fault.n -= 1
                return fault
        return None


class Answer(Exception):  # noqa: N818  (it ends the handling of a request)
    """An answer without more ado."""

    def __init__(self, status: int, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} {'OK' if status < 300 else 'X'}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        super().__init__("\r\n".join(lines).encode("latin1"), body)


def error(mode: str, resource: str) -> Answer:
    status, code = ERRORS[mode]
    extra = "<Region>eu-central-1</Region>" if mode.startswith("region") else ""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
        f"<Message>injected</Message><Resource>{escape(resource)}</Resource>{extra}</Error>"
    )
    headers = {"Content_Type": "application/xml"}
    if mode.startswith("region"):
        headers["x_amz_bucket_region"] = "eu-central-1"
    return Answer(status, body.encode("utf8", "surrogateescape"), **headers)


class Server:
    """Answers requests, each connection in a task of its own.

    Tests call the methods from `put()` to `reset()`. Keys are "bucket/key", text or bytes, not
    quoted. A bucket is made by the first `put()` to it, or by `serve()`.
    """

    def __init__(self, called: bool = True) -> None:
        """`called`: by tests. Whoever may do that can run code here."""
        self._state, self._called = State(), called
        self._ports = set[int]()  # of the clients

    def put(self, key: str | bytes, data: bytes) -> None:
        """Make or replace an object."""
        bucket, _, key = os.fsencode(key).partition(b"/")
        self._state.buckets.setdefault(os.fsdecode(bucket), Memory()).put(key, data)

    def delete(self, key: str | bytes) -> None:
        bucket, _, key = os.fsencode(key).partition(b"/")
        self._state.buckets[os.fsdecode(bucket)].delete(key)

    def serve(self, bucket: str, root: Path) -> None:
        """Serve the files below a directory as they are at each request."""
        self._state.buckets[bucket] = Directory(os.fsencode(root))

    def fail(self, mode: str, n: int = 1, arg: Any = None, **options: Any) -> None:
        """The next `n` requests fail as a `Fault`, after the faults given before."""
        assert mode in ERRORS or mode in FAULTS, mode
        self._state.faults.append(Fault(mode, n, arg, **options))

    def heal(self) -> None:
        """No faults any more; what waits for one is answered."""
        self._state.faults.clear()
        self._state.healed.set()
        self._state.healed = asyncio.Event()

    def set(self, **settings: Any) -> None:
        """Set `latency` in seconds, `page`: the most keys in one of a list, `modified` of all."""
        vars(self._state).update(settings)

    def log(self, clear: bool = False) -> list[Request]:
        """The requests since the last `reset()`, or the last time that they were cleared."""
        entries = [*self._state.log]
        if clear:
            self._state.log.clear()
        return entries

    def connections(self) -> set[int]:
        """The ports of the clients that are connected, but for those that call these methods."""
        return self._ports

    def reset(self) -> None:
        """No buckets, no faults, no log."""
        self.heal()  # whatever waits is answered
        self._state = State()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        self._ports.add(port)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
                line, *lines = head.split("\r\n")
                method, target, _ = line.split(" ")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if method == "CALL" and self._called:
                    self._ports.discard(port)
                    writer.write(self._call(body))
                    continue
                await self._request(writer, method, target, headers)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            self._ports.discard(port)
            writer.close()

    def _call(self, body: bytes) -> bytes:
        name, arguments, options = pickle.loads(body)
        result = getattr(self, name)(*arguments, **options)
        return b"".join(Answer(200, pickle.dumps(result)).args)

    async def _request(
        self, writer: asyncio.StreamWriter, method: str, target: str, headers: dict[str, str]
    ) -> None:
        url = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(url.query, True, errors="surrogateescape"))
        key = urllib.parse.unquote(url.path, errors="surrogateescape").lstrip("/")
        kind = "LIST" if method == "GET" and "list-type" in query else method
        if kind == "LIST":
            key = f"{key.strip('/')}/{query.get('prefix', '')}"
        state = self._state
        state.under_way += 1
        request = Request(kind, key, headers, query, state.under_way)
        state.log.append(request)
        fault = state.fault(request)
        try:
            await self._answer(writer, request, fault)
        except Answer as answer:
            head, body = _passed_on(answer, fault.arg) if request.fault == "proxy" else answer.args
            writer.write(head + (b"" if method == "HEAD" else body))
            if b"\r\nConnection: close" in head:
                writer.close()
        finally:
            state.under_way -= 1
        await writer.drain()

    async def _answer(
        self, writer: asyncio.StreamWriter, request: Request, fault: Fault | None
    ) -> None:
        mode, arg = (fault.mode, fault.arg) if fault else ("", None)
        request.fault = mode
        late = (mode in ("no-etag", "slow") and arg) or 0
        if self._state.latency or late:
            await self._state.pause(self._state.latency + late)
        if mode in ERRORS:
            raise error(mode, request.key)
        if mode == "redirect":
            same = urllib.parse.quote(f"/{request.key}", errors="surrogateescape")
            raise Answer(307, Location=arg or same)
        if mode == "reset":
            writer.transport.abort()
            return
        name, _, key = request.key.partition("/")
        if name not in self._state.buckets:
            raise error("no-bucket", name)
        bucket = self._state.buckets[name]
        if request.kind == "LIST":
            self._list(bucket, name, request.query, mode)
        raw = key.encode("utf8", "surrogateescape")
        await self._get(writer, bucket, raw, request, mode, arg)

    async def _get(
        self,
        writer: asyncio.StreamWriter,
        bucket: Bucket,
        key: bytes,
        request: Request,
        mode: str,
        arg: Any,
    ) -> None:
        with ExitStack() as stack:
            try:
                entry, read = stack.enter_context(bucket.opened(key))
            except PermissionError:
                raise error("403", request.key) from None
            except OSError:  # none, or a directory
                raise error("404", request.key) from None
            etag = entry.etag
            if request.headers.get("if-match", etag) not in (etag, "*"):
                raise error("412", request.key)
            headers, status, start, end = {}, 200, 0, entry.size
            if "range" in request.headers and mode != "no-range":
                start, end = _range(request.headers["range"], entry.size)
                status = 206
                size = entry.size + (mode == "wrong-size")
                headers["Content_Range"] = f"bytes {start}-{end - 1}/{size}"
            # Only the length of the body of a HEAD is sent.
            body = bytes(end - start) if request.kind == "HEAD" else read(start, end)
        body += b"+" * (mode == "longer")
        if mode == "short":
            body = body[: len(body) // 2]
        tag = {"no-etag": "", "foreign-etag": arg or f'"{"feed" * 8}"'}.get(mode, etag)
        told = {"ETag": tag, "Last_Modified": self._state.modified}
        headers |= {name: value for name, value in told.items() if value}
        answer = Answer(status, body, Accept_Ranges="bytes", **headers)
        if mode in ("cut", "cut-swap", "stall"):
            await self._half(writer, answer, arg if mode == "stall" else None)
        if mode in ("cut-swap", "replace"):
            replace(bucket, key)
        if mode not in ("cut", "cut-swap", "stall"):
            raise answer

    async def _half(
        self, writer: asyncio.StreamWriter, answer: Answer, stall: float | None
    ) -> None:
        """Half of the body; then the rest after `stall` seconds, or with None the end."""
        head, body = answer.args
        writer.write(head + body[: len(body) // 2])
        await writer.drain()
        if stall is None:
            writer.close()
        else:
            await self._state.pause(stall)
            writer.write(body[len(body) // 2 :])

    def _list(self, bucket: Bucket, name: str, query: dict[str, str], mode: str) -> None:
        """ListObjectsV2. The continuation token is the last key or prefix, quoted."""
        token = urllib.parse.unquote_to_bytes(query.get("continuation-token", ""))
        after = token or _bytes(query.get("start-after", ""))
        count = min(int(query.get("max-keys", 1000)), self._state.page)
        prefix = _bytes(query.get("prefix", ""))
        delimiter = _bytes(query.get("delimiter", ""))
        entries, prefixes, last = page(bucket, prefix, delimiter, after, count)
        quoted = query.get("encoding-type") == "url"
        text: Callable[[bytes], str] = urllib.parse.quote if quoted else _xml
        following = urllib.parse.quote(last)
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{escape(name)}</Name><Prefix>{text(prefix)}</Prefix>"
            f"<KeyCount>{len(entries) + len(prefixes)}</KeyCount>"
            f"<MaxKeys>{count}</MaxKeys>"
            + "<EncodingType>url</EncodingType>" * quoted
            + f"<IsTruncated>{str(bool(last)).lower()}</IsTruncated>"
            + f"<NextContinuationToken>{following}</NextContinuationToken>" * bool(last)
            + "".join(_contents(entry, text(entry.key)) for entry in entries)
            + "".join(
                f"<CommonPrefixes><Prefix>{text(key)}</Prefix></CommonPrefixes>" for key in prefixes
            )
            + "</ListBucketResult>"
        )
        if mode == "replace":
            for entry in entries:
                replace(bucket, entry.key)
        raise Answer(200, body.encode("utf8", "surrogateescape"), Content_Type="application/xml")


def _bytes(text: str) -> bytes:
    return text.encode("utf8", "surrogateescape")


def _xml(key: bytes) -> str:
    """A key in XML: control characters as references, as S3 sends them."""
    text = escape(key.decode("utf8", "surrogateescape"))
    return "".join(c if c >= " " else f"&#x{ord(c):x};" for c in text)


def _contents(entry: Entry, key: str) -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{escape(entry.etag)}</ETag><Size>{entry.size}</Size></Contents>"
    )


def replace(bucket: Bucket, key: bytes) -> None:
    """Give an object other bytes of the same size."""
    with bucket.opened(key) as (entry, read):
        data = read(0, entry.size)
    bucket.put(key, bytes(255 - byte for byte in data))


def _range(header: str, size: int) -> tuple[int, int]:
    """Start and end of the bytes that a Range header asks for."""
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    start, end = int(first), min(int(last) + 1 if last else size, size)
    if start >= size:
        raise Answer(416, Content_Range=f"bytes */{size}")
    return start, end


def _passed_on(answer: Answer, words: Any) -> tuple[bytes, bytes]:
    """An answer after changes: a compression, "chunked", "unsized", "cut", headers; by "; "."""
    head, body = answer.args
    *lines, _, _ = head.decode("latin1").split("\r\n")
    for word in words.split("; ") if isinstance(words, str) else ["gzip", "chunked"]:
        line = "Connection: close" if word in ("cut", "unsized") else word
        if word in ("chunked", "unsized"):
            lines = [each for each in lines if not each.startswith("Content-Length")]
        if word in ("gzip", "deflate", "br"):
            body = zlib.compress(body)
            lines.append(f"Content-Encoding: {word}")
            line = f"Content-Length: {len(body)}"
        elif word == "chunked":
            parts = [*filter(None, (body[:1000], body[1000:])), b""]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
            line = "Transfer-Encoding: chunked"
        elif word == "cut":
            body = body[: len(body) // 2]
        lines = [*(it for it in lines if not it.startswith(line.partition(":")[0])), line]
    return "\r\n".join([*lines, "", ""]).encode("latin1"), body


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--certificate", nargs=2, default=())
    parser.add_argument("--root", type=Path, help="for measurements: its directories are buckets")
    parser.add_argument("--latency", type=float, default=0.0, help="of each answer, in seconds")
    parser.add_argument("--tail", type=float, default=0.0, help="the part that takes 0.5 s longer")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; 0: a free one")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    given, context = parser.parse_args(), None
    if given.certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*given.certificate)
    server = Server(called=not given.root)
    listener = await asyncio.start_server(
        server.connection, "127.0.0.1", given.port, limit=1 << 22, backlog=1024, ssl=context
    )
    if not given.root:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a test that interrupts itself
    port = listener.sockets[0].getsockname()[1]
    print(f"http{'s' * bool(context)}://127.0.0.1:{port}", flush=True)
    if given.root:
        slow = Fault("slow", 1 << 60, 0.5, chance=given.tail)
        server._state = State(faults=[slow], log=deque(maxlen=1000), latency=given.latency)
        for folder in given.root.iterdir():
            server._state.buckets[folder.name] = Directory(os.fsencode(folder))
    if given.root and not given.until_eof:
        await listener.serve_forever()
    await asyncio.to_thread(sys.stdin.read)  # until the test has gone
    os._exit(0)  # with whatever is under way


if __name__ == "__main__":
    from tests.kit.objects import fault_server  # whose classes pickle finds by name

    with suppress(KeyboardInterrupt):
        asyncio.run(fault_server.main())
