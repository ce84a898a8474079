"""Fake servers of keys, and a store that checks signatures, in threads of the test's process.

Signature Version 4 by headers, and Azure's shared access signatures in queries, from the
documentation of Amazon and Microsoft, not by the code under test.
"""

from __future__ import annotations

import base64
import calendar
import contextlib
import hashlib
import hmac
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

TOKEN = "canary-token"  # of the machine, for its keys
_ROLES = "/latest/meta-data/iam/security-credentials/"
ACCOUNT, ACCOUNT_KEY = "account", base64.b64encode(b"canary" * 8).decode()  # of Azure
SHARED = "sv=2023-11-03&sig=a%2Fb%2Bc%3D"  # a shared access signature of a user
DELEGATION = "skoid", "sktid", "skt", "ske", "sks", "skv"
_ERRORS = {"ExpiredToken": 400, "AuthenticationRequired": 401}


class _Handler(BaseHTTPRequestHandler):
    protocol_version, log_message = "HTTP/1.1", lambda *_: None

    def answer(self, status: int, body: str | bytes = b"", **headers: str) -> None:
        raw = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client has gone
            self.wfile.write(b"" if self.command == "HEAD" else raw)


class Keys:
    """The keys that were made, with their end: "canary1", "canary2", ..."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, str, float]] = {}

    @property
    def newest(self) -> int:
        return len(self.made)

    def new(self, life: float = 3600.0) -> dict[str, str]:
        name, secret, token = (f"{kind}{self.newest + 1}" for kind in ("AKID", "canary", "to/k+n="))
        end = time.time() + life
        self.made[name] = secret, token, end
        text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
        return {"AccessKeyId": name, "SecretAccessKey": secret, "Token": token, "Expiration": text}

    def revoke(self) -> None:
        """All keys made until now have ended."""
        self.made = {name: (*pair, 0.0) for name, (*pair, _) in self.made.items()}


class Roles(ThreadingHTTPServer):
    """IMDSv2, the endpoints of containers, and STS. Each answer has new keys for `life` seconds.

    Attributes:
        fault: a status, or a body instead of the right one.
        asked: what was asked for, and how often.
        open: answers wait for this.
    """

    daemon_threads, request_queue_size = True, 128

    def __init__(self, keys: Keys) -> None:
        super().__init__(("127.0.0.1", 0), _Role)
        self.keys, self.life, self.fault = keys, 3600.0, ""
        self.asked, self.open = Counter[str](), threading.Event()
        self.open.set()


class _Role(_Handler):
    server: Roles

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        server, form, headers = self.server, dict(parse_qsl(sent)), self.headers
        server.asked[f"{self.command} {self.path}"] += 1
        server.open.wait()
        if server.fault.isdigit():
            self.answer(int(server.fault), "canary", Location="http://127.0.0.1:1/")
        elif server.fault:
            self.answer(200, server.fault)
        elif self.command == "PUT":
            right = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds"
            self.answer(200 if right and headers[right] else 400, TOKEN)
        elif self.path == _ROLES:
            self.answer(200 if headers["X-aws-ec2-metadata-token"] == TOKEN else 401, "the role")
        elif "assertion" not in form and TOKEN not in (
            headers["Authorization"],
            headers["X-aws-ec2-metadata-token"],
            form.get("WebIdentityToken"),
        ):
            self.answer(403, "canary")
        elif "assertion" in form:  # RFC 7523, for Google
            token = server.keys.new(server.life)["AccessKeyId"]
            self.answer(200, json.dumps({"access_token": token, "expires_in": int(server.life)}))
        elif not form:
            self.answer(200, json.dumps(server.keys.new(server.life)))
        else:
            right = form["Action"] == "AssumeRoleWithWebIdentity" and form["RoleArn"] == "arn:a"
            found = server.keys.new(server.life)
            found["SessionToken"] = found.pop("Token")
            inner = "".join(f"<{name}>{value}</{name}>" for name, value in found.items())
            xml = f'<R xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><C>{inner}</C></R>'
            self.answer(200 if right else 400, xml)

    do_PUT = do_POST = do_GET  # noqa: N815


class Store(ThreadingHTTPServer):
    """Objects by path. Attributes: `used`, the numbers of the keys of requests; `refused`: codes.

    `ahead`: seconds by which its clock is ahead; `closed`: no key is right.
    """

    daemon_threads, request_queue_size = True, 128

    def __init__(self, keys: Keys, objects: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Object)
        self.keys, self.objects, self.ahead, self.closed = keys, objects, 0.0, False
        self.used, self.refused, self.agents = list[int](), list[str](), Counter[str]()


class _Object(_Handler):
    server: Store

    def do_GET(self) -> None:
        server, body = (
            self.server,
            self.server.objects[self.path.partition("?")[0].removeprefix(f"/{ACCOUNT}")],
        )
        server.agents[self.headers["User-Agent"].partition("/")[0]] += 1
        if code := self._refusal():
            server.refused.append(code)
            self.answer(_ERRORS.get(code, 403), f"<Error><Code>{code}</Code></Error>")
            return
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        right = self.headers.get("If-Match", tag) == tag
        part, status = self.headers.get("Range"), 200 if right else 412
        if part:
            first, last = map(int, part.removeprefix("bytes=").split("-"))
            span = f"bytes {first}-{last}/{len(body)}"
            self.answer(206, body[first : last + 1], ETag=tag, Content_Range=span)
        else:
            self.answer(status, body, ETag=tag, Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        """Get User Delegation Key, for whoever has a token."""
        self.server.agents[self.path] += 1
        right = self.headers["Authorization"] == f"Bearer {TOKEN}"
        fields = "SignedOid", "SignedTid", "SignedStart", "SignedExpiry", "SignedService"
        times = [
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + it)) for it in (0, 43200)
        ]
        values = "o", "t", *times, "b", "2023-11-03", ACCOUNT_KEY
        named = zip((*fields, "SignedVersion", "Value"), values, strict=True)
        xml = "".join(f"<{name}>{value}</{name}>" for name, value in named)
        self.answer(200 if right else 403, f"<UserDelegationKey>{xml}</UserDelegationKey>")

    def _refusal(self) -> str:
        """What Amazon would refuse in the signature, or ""."""
        path, _, query = self.path.partition("?")
        if "SharedKey" in self.headers.get("Authorization", ""):
            return ""  # as obstore signs
        if query == SHARED:
            return ""
        if "sig=" in query:
            return self._refusal_by_query(path, dict(parse_qsl(query)))
        words = self.headers["Authorization"].replace(",", " ").split()
        if words == ["Bearer", TOKEN]:
            return ""  # of Azure
        if words[0] == "Bearer":
            name = words[1]
            self.server.used.append(int(name.removeprefix("AKID")))
            ended = time.time() > self.server.keys.made[name][2]
            return "AuthenticationRequired" if ended else ""
        given = dict(word.split("=", 1) for word in words[1:])
        name, *scope = given["Credential"].split("/")
        self.server.used.append(int(name.removeprefix("AKID")))
        if name not in self.server.keys.made or self.server.closed:
            return "InvalidAccessKeyId"
        secret, token, end = self.server.keys.made[name]
        now, date = time.time(), self.headers["x-amz-date"]
        if (
            abs(now + self.server.ahead - calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ")))
            > 900
        ):
            return "RequestTimeTooSkewed"
        if now > end:
            return "ExpiredToken"
        signed = given["SignedHeaders"]
        fields = "".join(f"{it}:{self.headers[it].strip()}\n" for it in signed.split(";"))
        plain = [self.command, self.path, "", fields, signed, self.headers["x-amz-content-sha256"]]
        digest, key = (
            hashlib.sha256("\n".join(plain).encode()).hexdigest(),
            f"AWS4{secret}".encode(),
        )
        for part in scope:
            key = hmac.digest(key, part.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{date}\n{'/'.join(scope)}\n{digest}"
        right = hmac.digest(key, text.encode(), "sha256").hex() == given["Signature"]
        right = right and self.headers["x-amz-security-token"] == token
        return "" if right else "SignatureDoesNotMatch"

    def _refusal_by_query(self, path: str, given: dict[str, str]) -> str:
        """Of a blob: learn.microsoft.com, "Create a service SAS", "... user delegation SAS"."""
        delegation = [given[it] for it in DELEGATION if it in given]
        fields = [*(given[it] for it in ("sp", "st", "se")), f"/blob{path}", *delegation]
        rest = [*[""] * (5 if delegation else 3), given["sv"], given["sr"], *[""] * 7]
        key, text = base64.b64decode(ACCOUNT_KEY), "\n".join([*fields, *rest])
        right = base64.b64encode(hmac.digest(key, text.encode(), "sha256")).decode()
        return "" if given["sig"] == right else "AuthenticationFailed"


@contextlib.contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Serve in a thread; gives the URL."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
