"""A hub of data sets on this machine, and the store that it redirects to.

Its answers are those that huggingface_hub reads: https://huggingface.co/docs/hub/api.
"""

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

Answer: TypeAlias = tuple[int, bytes, Mapping[str, str]]
"""Status, body and headers."""

NAME = "user/set"
MAIN, OTHER = "a" * 40, "b" * 40  # commits
_NONE: Mapping[str, str] = {}
_PAGE = 2  # files
_API = re.compile(rf"/api/datasets/{NAME}/(revision|tree)/([^/]+)/?(.*)")
_FILE = re.compile(rf"/datasets/{NAME}/(resolve)/([^/]+)/(.+)")


@contextmanager
def serving(answer: Callable[[Any], object]) -> Iterator[int]:
    """Answer the requests to a port of 127.0.0.1, each connection in a thread."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version, wbufsize = "HTTP/1.1", 1 << 16
        log_message = lambda *_: None  # noqa: E731
        do_GET = do_HEAD = lambda self: answer(self)  # noqa: N815

        def handle(self) -> None:
            with suppress(ConnectionError):
                super().handle()

    class Listening(ThreadingHTTPServer):
        request_queue_size, daemon_threads = 128, True

    with Listening(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01]).start()
        yield server.server_port
        server.shutdown()


def reply(it: Any, status: int, body: bytes = b"", headers: Mapping[str, str] = _NONE) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n{head}\r\n"
    it.wfile.write(head.encode() + body * (it.command == "GET"))


def reply_with_part(it: Any, data: bytes, etag: str) -> None:
    """Answer with an object, or with the range of it that was requested."""
    headers, status = {"ETag": etag}, 200
    if part := re.fullmatch(r"bytes=(\d+)-(\d*)", it.headers.get("Range", "")):
        first, last = int(part[1]), min(int(part[2] or len(data)), len(data) - 1)
        headers["Content-Range"], status = f"bytes {first}-{last}/{len(data)}", 206
        data = data[first : last + 1]
    reply(it, status, data, headers)


class Hub:
    """A data set, at commits.

    Attributes:
        endpoint: the URL.
        commits: the commits of branches.
        files: of each commit, contents by paths.
        token: what files may be read with; "": no token is needed.
        instead: by the kind of a request, "revision", "tree" or "resolve", other
            answers, the next one last.
        asked: requests, by kind and path.
        tokens: the Authorization of the requests to the hub.
        leaked: the same of those to the store.
    """

    def __init__(self) -> None:
        self.commits, self.files = {"main": MAIN}, {MAIN: dict[str, bytes]()}
        self.token = ""
        self.instead = dict[str, list[Answer]]()
        self.asked, self.tokens, self.leaked = Counter[Any](), set[Any](), list[str]()
        self.endpoint = self.store = ""

    def answer(self, it: Any) -> None:
        reply(it, *self._answer(it))

    def _answer(self, it: Any) -> Answer:
        url = urlsplit(it.path)
        if not (match := _API.fullmatch(url.path) or _FILE.fullmatch(url.path)):
            return _failed("RepoNotFound")
        kind, revision, path = map(unquote, match.groups())
        self.asked[kind, path] += 1
        self.tokens.add(token := it.headers.get("Authorization"))
        if others := self.instead.get(kind):
            return others.pop()
        if (files := self.files.get(commit := self.commits.get(revision, revision))) is None:
            return _failed("RevisionNotFound")
        if kind == "resolve":
            if self.token and token != f"Bearer {self.token}":
                return _failed("GatedRepo", 401)
            return self._redirect(commit, path)
        if kind == "revision":
            names = [{"rfilename": name} for name in files]
            return 200, json.dumps({"id": NAME, "sha": commit, "siblings": names}).encode(), _NONE
        return self._tree(url.path, files, path, parse_qs(url.query))

    def _tree(
        self, url: str, files: Mapping[str, bytes], path: str, query: Mapping[str, list[str]]
    ) -> Answer:
        start, deep = int(query.get("from", ["0"])[0]), query["recursive"] == ["true"]
        inner = f"{path}/" if path else ""
        below = {name: data for name, data in files.items() if name.startswith(inner)}
        flat = [it for it in sorted(below.items()) if deep or "/" not in it[0][len(inner) :]]
        if not below:
            return _failed("EntryNotFound")
        folders = {name.rpartition("/")[0] for name in below} - {path}
        tree = [{"type": "directory", "path": it, "oid": "0", "size": 0} for it in folders]
        tree += [_about(*it) for it in flat[start : start + _PAGE]]
        more = f"{self.endpoint}{url}?recursive={query['recursive'][0]}&from={start + _PAGE}"
        link = {"Link": f'<{more}>; rel="next"'} if start + _PAGE < len(flat) else _NONE
        return 200, json.dumps(tree).encode(), link

    def _redirect(self, commit: str, path: str) -> Answer:
        if (data := self.files[commit].get(path)) is None:
            return _failed("EntryNotFound")
        place = f"{self.store}/{commit}/{path}?X-Amz-Expires=3600&Signature=signed"
        headers = {"Location": place, "X-Repo-Commit": commit, "X-Linked-Size": str(len(data))}
        return 302, b"moved " * 100, headers | {"X-Linked-ETag": f'"{_oid(data)}"'}

    def answer_of_store(self, it: Any) -> None:
        path, _, query = it.path.removeprefix("/").partition("?")
        self.leaked += [it.headers["Authorization"]] * ("Authorization" in it.headers)
        if not query.endswith("Signature=signed"):
            reply(it, 403)
            return
        commit, _, name = path.partition("/")
        reply_with_part(it, self.files[commit][unquote(name)], '"of the store"')


def _failed(code: str, status: int = 404) -> Answer:
    return status, b"", {"X-Error-Code": code}


def _oid(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _about(path: str, data: bytes) -> dict[str, Any]:
    lfs = {"oid": _oid(data), "size": len(data), "pointerSize": 130}
    return {"type": "file", "path": path, "size": len(data), "oid": _oid(data)[:40], "lfs": lfs}


@contextmanager
def a_hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Hub]:
    """Start a hub, and let huggingface_hub and our client take it for the real one."""
    reason = "huggingface_hub is not installed: pip install '.[hub]' in a checkout"
    constants = pytest.importorskip("huggingface_hub.constants", reason=reason)
    hub = Hub()
    with serving(hub.answer_of_store) as store, serving(hub.answer) as port:
        hub.store, hub.endpoint = f"http://127.0.0.1:{store}", f"http://127.0.0.1:{port}"
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        given = {"ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": False, "HF_HUB_CACHE": str(home)}
        template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        given |= {"HF_TOKEN_PATH": str(home / "token"), "HUGGINGFACE_CO_URL_TEMPLATE": template}
        for name, value in given.items():
            monkeypatch.setattr(constants, name, value)
        yield hub
