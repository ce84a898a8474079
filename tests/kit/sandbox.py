"""A seccomp filter like that of a container runtime: some system calls fail."""

import ctypes
import errno
import platform
import struct
import subprocess
import sys

import pytest

from tests.kit.paths import ROOT

IO_SETUP, PREADV2, IO_URING_SETUP = 206, 327, 425  # of x86_64

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def run_without(
    calls: list[int], script: str, *arguments: object, number: int = errno.EPERM
) -> subprocess.CompletedProcess[str]:
    """Run a script of Python in which system calls fail with an errno."""
    if platform.machine() != "x86_64":
        pytest.skip("the numbers of the system calls are those of x86_64")
    program = f"from tests.kit.sandbox import forbid\nforbid({calls}, {number})\n{script}"
    command = [sys.executable, "-W", "always", "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=6000)


def forbid(calls: list[int], number: int) -> None:
    """Make system calls fail with an errno in this process, for good."""
    instructions = [struct.pack("HBBI", _LOAD, 0, 0, 0)]  # the number of the system call
    for call in calls:
        instructions.append(struct.pack("HBBI", _JUMP_IF_EQUAL, 0, 1, call))
        instructions.append(struct.pack("HBBI", _RETURN, 0, 0, _FAIL | number))
    instructions.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = struct.pack("HxxxxxxQ", len(instructions), ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) == 0
