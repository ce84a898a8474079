"""Starts and controls the server with faults."""

from __future__ import annotations

import hashlib
import http.client
import os
import pickle
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage import Catalog
from tests.kit.objects.fault_server import Request, Server
from tests.kit.paths import ROOT
from tests.kit.process import wait_until

FOR_EVER = 1_000_000
"""Requests: more than any test makes."""

KEY_ID, SECRET = "AKIDTESTKEYID", "canary-secret-0123456789"
"""The credentials of the servers' environments; the secret must not be seen anywhere else."""


def environment(url: str, key_id: str = KEY_ID, secret: str = SECRET) -> dict[str, str]:
    """What makes clients of S3 talk to `url`, and nobody else. Empty: not set."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ENDPOINT_URL_S3": "",
        "AWS_ACCESS_KEY_ID": key_id,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_SESSION_TOKEN": "",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "",
        "AWS_PROFILE": "",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


CONTENTS = [
    np.random.default_rng(number).bytes(size)
    for number, size in enumerate([100_000, 1, 0, 4096, 70_001, 5, 65_536, 99, 30_000, 12_345] * 2)
]


def publish(
    put: Callable[[str, bytes], object], catalog: Catalog, contents: list[bytes]
) -> Catalog:
    """Put the objects of a catalog of s3://; returns it as a listing would give it."""
    for sample, content in enumerate(contents):
        put(os.fsdecode(catalog.path(sample)).removeprefix("s3://"), content)
    etags = [b'"%s"' % hashlib.md5(content).hexdigest().encode() for content in contents]
    sizes = np.array([len(content) for content in contents], np.int64)
    return replace(catalog, sizes=sizes, versions=np.array(etags))


def unlisted(catalog: Catalog) -> Catalog:
    return replace(catalog, sizes=None, versions=None)


class Served:
    """What tests of a backend share: the server publishes the files of a test's directory."""

    # Objects have versions.
    test_a_container_that_has_changed_since_the_samples_were_found_is_refused = None
    test_a_container_without_its_guard_is_refused = None
    test_a_container_that_loses_its_guard_is_refused = None

    @pytest.fixture(autouse=True)
    def serve(self, server: FaultServer, directory: Path) -> None:
        self.server, self.served = server, directory
        server.serve("data", directory)

    def published(self, catalog: Catalog) -> Catalog:
        return replace(catalog, root=b"s3://data")

    def file(self, catalog: Catalog, sample: int) -> Path:
        return self.served / os.fsdecode(catalog.name(sample))


class FaultServer:
    """The server in a process of its own, until the `with` block ends or this process does.

    Attributes:
        url: where it listens.
        environment: what makes clients of S3 use it; see `environment()`.
    """

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        """`certificate` and its key, both PEM: the server speaks TLS."""
        command = [sys.executable, "-m", f"{__package__}.fault_server"]
        command += ["--certificate", *map(str, certificate)] if certificate else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout
        self.url = self._process.stdout.readline().strip()
        address, context = self.url.rpartition("/")[2], ssl._create_unverified_context()
        self._connection = http.client.HTTPConnection(address, timeout=60)
        if certificate:
            self._connection = http.client.HTTPSConnection(address, timeout=60, context=context)
        self._connection.connect()
        self._lock = threading.Lock()
        self.environment = environment(self.url)

    def __getattr__(self, name: str) -> Any:
        """The methods of `fault_server.Server` are called there."""
        return partial(self._call, getattr(Server, name).__name__)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        with self._lock:
            self._connection.request("CALL", "/", pickle.dumps((name, arguments, options)))
            return pickle.loads(self._connection.getresponse().read())

    def until(self, ready: Callable[[list[Request]], object]) -> None:
        """Wait until the log is as a test needs it."""
        wait_until(lambda: ready(self.log()))

    def __enter__(self) -> FaultServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._connection.close()
        self._process.communicate(timeout=60)  # closes its standard input, which ends it
