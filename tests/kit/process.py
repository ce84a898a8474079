"""What a process has open and runs, waiting for events, and processes of the tests' own."""

import contextlib
import functools
import gc
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.kit import tiers
from tests.kit.paths import ROOT

SECONDS = 60.0
"""After which a test has failed; none of them waits for as long."""


def descriptors(below: Path | str = "") -> set[tuple[int, str]]:
    """The descriptors of this process whose files begin with a path, and these files.

    Compare all of them only in a test that runs `alone`.
    """
    found = set[tuple[int, str]]()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing, or it was just closed
            path = os.readlink(f"/proc/self/fd/{number}").removesuffix(" (deleted)")
            found |= {(int(number), path)} if path.startswith(str(below)) else set()
    return found


def open_files(below: Path | str = "") -> set[tuple[int, str]]:
    """The `descriptors()`, without those that only a traceback refers to."""
    gc.collect()
    return descriptors(below)


@contextlib.contextmanager
def room_for(files: int) -> Iterator[None]:
    """Limit the open files of this process to so many more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0) for _ in range(files + 1)]  # the lowest numbers that are free
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1], limits[1]))
    for fd in taken:
        os.close(fd)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def is_mapped(path: bytes) -> bool:
    """Whether a file is in the memory of this process."""
    return path in Path("/proc/self/maps").read_bytes()


def threads() -> set[threading.Thread]:
    """The threads of this process. Compare with `<=`: those of earlier tests may end any time."""
    return {*threading.enumerate()}


def resident() -> int:
    """The memory of this process, in bytes; for a test that runs `alone`."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def tasks() -> int:
    """The number of threads of this process, also those of C++; for a test that runs `alone`."""
    return len(os.listdir("/proc/self/task"))


def lanes() -> set[threading.Thread]:
    """The threads of readers. Compare with `<=`: those of earlier tests may end any time."""
    names = {thread: thread.name for thread in threads()}
    return {it for it, name in names.items() if re.match("dali_storage(?!:watchdog)", name)}


def refuse_thread(thread: threading.Thread) -> None:
    """In place of `Thread.start()`: no thread can be started."""
    raise RuntimeError("can't start new thread")


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as a condition holds."""
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, f"{condition} does not hold after {SECONDS} s"
        time.sleep(0.001)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """The garbage collector does not run in the block: what is dropped must end by itself."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a process of its own, because it measures what the process has."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        if os.environ.get("TEST_ALONE") == name:
            test(*arguments, **named)
            return
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        ended = subprocess.run(
            [*pytest, "--tier", tiers.TIER, name],
            env=os.environ | {"TEST_ALONE": name},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=10 * SECONDS,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr

    return run


def status_of_fork(child: Callable[[], object]) -> int:
    """The exit status of a fork that calls `child`: 0, or 17 if it is refused for being a fork.

    1 after another error, or if the call returns False; -14 (SIGALRM) if it hangs.
    """
    with warnings.catch_warnings():  # of a fork with threads, which is what is tested
        warnings.simplefilter("ignore", DeprecationWarning)
        gc.collect()  # in a fork, DALI's pipelines of earlier tests wait for threads it has not
        number = os.fork()
    if number == 0:
        status = 1
        signal.alarm(10 * int(SECONDS))
        try:
            status = int(child() is False)
        except RuntimeError as error:
            status = 17 if "fork" in str(error) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


_HOLD = """
import fcntl, os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
held = [os.open(path, os.O_WRONLY) for path in sys.argv[1:]]
[fcntl.fcntl(it, fcntl.F_SETLEASE, fcntl.F_WRLCK) for it in held]
print(flush=True)
signal.sigwait([signal.SIGIO])
time.sleep(0.2)  # an open that does not wait has failed
"""


@contextlib.contextmanager
def leased(*paths: Path | str) -> Iterator[None]:
    """Another process has write leases on files; it ends soon after the kernel has asked it."""
    with started([sys.executable, "-c", _HOLD, *paths], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        assert process.wait(SECONDS) == 0  # it was asked


@contextlib.contextmanager
def started(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process, which ends with the block, also if the test fails.

    It gets SIGINT; commands that a shell runs in the background ignore it.
    """
    command = ["env", "--default-signal=INT", *map(str, command)]
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
