"""Programs in namespaces of their own: nobody else reaches their ports, or sees their mounts.

All that they have started ends with them.
"""

import fcntl
import functools
import socket
import struct
import subprocess
import sys
from typing import Any

import pytest

from tests.kit.paths import ROOT

NETWORK, MOUNT = "--net", "--mount"
_UNSHARE = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def run(
    kind: str, *arguments: object, required: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in a namespace of this kind.

    If the machine refuses the namespace, a `required` one skips the test; otherwise Python runs
    without it.
    """
    refused = refusal(kind)
    if refused and required:
        pytest.skip(refused)
    command = [*([sys.executable] if refused else inside(kind)), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, text=True, timeout=1800, **options)


def inside(*kinds: str) -> list[str]:
    """The words before the arguments of a Python that runs in namespaces of these kinds."""
    return [*_UNSHARE, *kinds, sys.executable, "-m", "tests.kit.namespace", *kinds[-1:]]


@functools.cache
def refusal(*kinds: str) -> str:
    """Why this machine refuses namespaces of these kinds; empty if it does not."""
    try:
        subprocess.run([*_UNSHARE, *kinds, "true"], check=True, capture_output=True, timeout=60)
    except subprocess.CalledProcessError as error:
        remedy = "sysctl user.max_user_namespaces=1000, or --privileged for a container"
        return f"no namespaces: {error.stderr.decode().strip()}; {remedy}"
    return ""


def main(kind: str, *arguments: str) -> int:
    if kind == NETWORK:
        with socket.socket() as loopback:  # it is down at first
            fcntl.ioctl(loopback, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
    return subprocess.run([sys.executable, *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
