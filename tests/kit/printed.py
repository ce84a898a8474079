"""Runs printed programs as they are printed, where /data is a directory of the tests.

A process in namespaces of its own imports what nearly all programs need, which takes seconds, and
forks for each program. Ports that programs open are free there.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import pytest

from tests.kit import namespace
from tests.kit.paths import ROOT

_KINDS = namespace.MOUNT, namespace.NETWORK  # the last one gets its loopback
_SECONDS = 600


class Printed:
    """Until the `with` block ends; programs start in `cwd`, and see `data`, for tests, as /data."""

    def __init__(self, place: Path) -> None:
        if refusal := namespace.refusal(*_KINDS):
            pytest.skip(refusal)
        self.data, self._output, self.cwd = place / "data", place / "output", place
        for folder in (self.data, place / "root"):
            folder.mkdir()
        words = [*namespace.inside(*_KINDS), "-m", __name__, str(place)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)

    def __call__(self, *parts: str, quiet: bool = True, **variables: str) -> str:
        """What a program of these parts prints. It must succeed, without a warning if `quiet`."""
        request = {"code": "\n".join(parts), "cwd": str(self.cwd), "variables": variables}
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        status = self._process.stdout.readline()
        printed, errors = (self._output.with_suffix(it).read_text() for it in (".out", ".err"))
        assert status == "0\n", f"status {status}{errors}"
        assert errors == "" or not quiet, errors
        return printed

    @contextmanager
    def instead(self, name: str, other: str) -> Iterator[None]:
        """Let the link /data/NAME lead to /data/OTHER for a while."""
        link = self.data / name
        before = link.readlink()
        link.unlink()
        link.symlink_to(other)
        try:
            yield
        finally:
            link.unlink()
            link.symlink_to(before)

    def __enter__(self) -> "Printed":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=_SECONDS)  # closes its standard input, which ends it


def _enter(root: str, data: str) -> None:
    """Change to a root with all that / has, and `data` as /data."""
    subprocess.run(["mount", "-t", "tmpfs", "none", root], check=True)
    places = {entry.name: entry.path for entry in os.scandir("/")} | {"data": data}
    for name, there in places.items():
        here = os.path.join(root, name)
        if os.path.islink(there):
            os.symlink(os.readlink(there), here)
            continue
        if os.path.isdir(there):
            os.mkdir(here)
        else:
            open(here, "x").close()
        subprocess.run(["mount", "--rbind", there, here], check=True)
    os.chroot(root)
    os.chdir("/")


def _run(output: str, code: str, cwd: str, variables: dict[str, str]) -> NoReturn:
    signal.alarm(_SECONDS)
    for descriptor, suffix in (1, ".out"), (2, ".err"):
        file = os.open(output + suffix, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    status = 1
    try:
        os.chdir(cwd)
        os.environ.update(variables)
        sys.path.insert(0, str(ROOT))
        exec(compile(code, "program", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(place: str) -> None:
    _enter(f"{place}/root", f"{place}/data")
    for name in ("nvidia.dali.plugin.pytorch", "dali_storage.loaders"):
        importlib.import_module(name)

    for line in iter(sys.stdin.readline, ""):
        if not (child := os.fork()):
            _run(f"{place}/output", **json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
