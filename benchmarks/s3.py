"""S3 on this machine, by the server of the tests: the buckets are directories."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

from .workload import BadInputError

LATENCY = 0.02
"""Seconds to the first byte of an object, as of a store in the same region."""
_CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SERVER = "tests.kit.objects.fault_server"
_PIPE = subprocess.PIPE
_CLIENTS = {
    **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "demo"),
    **dict.fromkeys(("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3"), ""),
    **dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), "/nonexistent"),
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def is_there() -> bool:
    """Whether this is a checkout, which has the server."""
    return os.path.exists(os.path.join(_CHECKOUT, *_SERVER.split(".")) + ".py")


@contextmanager
def serving(root: str, log: IO[str], seconds: float = LATENCY) -> Iterator[dict[str, str]]:
    """Serve the directories in `root`; yield the environment of clients, DALI's only way.

    The server answers after `seconds`, ends with this process, and writes its errors to `log`.
    """
    options = ("--root", os.path.abspath(root), "--latency", str(seconds), "--until-eof")
    command = (sys.executable, "-m", _SERVER, *options)
    with subprocess.Popen(
        command, cwd=_CHECKOUT, stdin=_PIPE, stdout=_PIPE, stderr=log, text=True
    ) as server:
        assert server.stdout is not None
        if not (url := server.stdout.readline().strip()):
            raise BadInputError(f"the S3 server did not start: {log.name} says why")
        yield _CLIENTS | {"AWS_ENDPOINT_URL": url}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment of this process for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
