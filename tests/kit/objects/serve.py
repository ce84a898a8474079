"""Serves each directory in ROOT as a bucket, for measurements, until Ctrl-C. Prints its URL.

    python -m tests.kit.objects.serve ROOT --nginx /usr/sbin/nginx
    python -m tests.kit.objects.serve ROOT --latency 0.03 --tail 0.01

The first is as fast as clients are: nginx sends the files, and the server with faults answers only
lists. The second sends all of it, each answer after `--latency` seconds; a part `--tail` of them
takes half a second longer. Signatures are not checked. Files must not change meanwhile.
"""

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path

from tests.kit.objects.buckets import Directory, Entry
from tests.kit.objects.client import FOR_EVER
from tests.kit.objects.fault_server import Fault, Server, State

_SLOW = 0.5  # seconds
_NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log stderr error;
events {{ worker_connections 2048; }}
http {{
    access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000000;
    client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
    uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
    server {{
        listen 127.0.0.1:{port}; root {root};
        if ($args ~ "list-type=2") {{ return 418; }}
        error_page 418 = @list;
        location @list {{ proxy_pass http://127.0.0.1:{lists}; }}
    }}
}}
"""


class Listed(Directory):
    """Files that do not change, with the ETags of nginx."""

    def __init__(self, root: bytes) -> None:
        super().__init__(root)
        found = {entry.key: os.stat(self._path(entry.key)) for entry in super().entries()}
        self._entries = [
            Entry(key, status.st_size, f'"{int(status.st_mtime):x}-{status.st_size:x}"')
            for key, status in found.items()
        ]

    def entries(self) -> list[Entry]:
        return self._entries


async def serve(root: Path, latency: float, tail: float, nginx: str | None) -> None:
    task = asyncio.current_task()
    assert task
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    kind = Listed if nginx else Directory
    buckets = {folder.name: kind(os.fsencode(folder)) for folder in root.iterdir()}
    faults = [Fault("slow", FOR_EVER, _SLOW, chance=tail)] if tail else []
    state = State(dict(buckets), faults, deque(maxlen=1000), latency)  # type: ignore[arg-type]
    server = Server()
    server._state = state
    listener = await asyncio.start_server(server.connection, "127.0.0.1", 0, backlog=1024)
    port = listener.sockets[0].getsockname()[1]
    if nginx is None:
        print(f"http://127.0.0.1:{port}", flush=True)
        await listener.serve_forever()
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        front = free.getsockname()[1]
        free.close()
        text = _NGINX.format(folder=folder, root=root.resolve(), port=front, lists=port)
        (configuration := Path(folder, "conf")).write_text(text)
        with subprocess.Popen([nginx, "-p", folder, "-c", configuration]) as process:
            try:
                print(f"http://127.0.0.1:{front}", flush=True)
                await listener.serve_forever()
            finally:
                process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.objects.serve", description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--tail", type=float, default=0.0)
    parser.add_argument("--nginx")
    given = parser.parse_args()
    with suppress(asyncio.CancelledError):
        asyncio.run(serve(given.root, given.latency, given.tail, given.nginx))


if __name__ == "__main__":
    main()
