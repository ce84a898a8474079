"""Servers that speak HTTP as few do: each answers in a way of its own."""

from __future__ import annotations

import math
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any


class OddServer:
    """Serves bytes by path, on a port of 127.0.0.1, until the `with` block of `odd()` ends.

    Attributes:
        log: method, path and headers of each request; the names of headers as often as they came.
        url: where it listens.
    """

    def __init__(
        self,
        contents: dict[str, bytes],
        *,
        change: Callable[[bytes, bytes], bytes] = lambda request, answer: answer,
        idle: float | None = None,
        at_once: int = 64,
        each: float = math.inf,
    ) -> None:
        """Listen.

        Args:
            contents: by path.
            change: makes the bytes to send of a request's head and the plain answer.
            idle: how many seconds a connection is kept after an answer. None: for ever.
            at_once: how many connections are served at once; others wait.
            each: how many GETs a connection is for; the next one ends it.
        """
        self._contents, self._change, self._idle, self._each = contents, change, idle, each
        self._places = threading.Semaphore(at_once)
        self.log: list[tuple[str, str, list[tuple[str, str]]]] = []
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def run(self) -> None:
        with suppress(OSError):  # the end
            while True:
                self._places.acquire()
                client, _ = self.socket.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        received, answered = b"", 0
        with client, suppress(OSError):
            while more := client.recv(1 << 16):
                received += more
                while b"\r\n\r\n" in received:
                    head, _, received = received.partition(b"\r\n\r\n")
                    answered += head.startswith(b"GET")
                    if answered > self._each:
                        raise ConnectionAbortedError
                    answer = self._change(head, self._answer(head.decode("latin1")))
                    client.sendall(answer)
                    client.settimeout(self._idle)
                    if b"\nconnection: close" in answer.lower():
                        raise ConnectionAbortedError
        self._places.release()

    def _answer(self, head: str) -> bytes:
        line, *lines = head.split("\r\n")
        method, path, _ = line.split()
        parts = [it.partition(":") for it in lines]
        fields = [(name.lower(), value.strip()) for name, _, value in parts]
        self.log.append((method, path, fields))
        body, status, ranges = self._contents[path], "200 OK", ""
        if asked := re.fullmatch(r"bytes=(\d+)-(\d+)", dict(fields).get("range", "")):
            first, last = int(asked[1]), int(asked[2])
            ranges = f"Content-Range: bytes {first}-{last}/{len(body)}\r\n"
            body, status = body[first : last + 1], "206 Partial Content"
        text = f'HTTP/1.1 {status}\r\nETag: "{len(self._contents[path])}"\r\n{ranges}'
        text += f"Content-Length: {len(body)}\r\n\r\n"
        return text.encode() + body * (method == "GET")


@contextmanager
def odd(contents: dict[str, bytes], **options: Any) -> Iterator[OddServer]:
    server = OddServer(contents, **options)
    with closing(server.socket):
        threading.Thread(target=server.run, daemon=True).start()
        yield server
        server.socket.shutdown(socket.SHUT_RDWR)
