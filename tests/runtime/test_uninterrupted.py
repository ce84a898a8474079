"""Calls that no Ctrl-C interrupts: a thread of their own."""

import subprocess
import sys
import weakref
from functools import partial

import pytest

from dali_storage.runtime import uninterrupted
from dali_storage.runtime.uninterrupted import run_uninterrupted
from tests.kit.process import without_collector

INTERRUPTED = """
import os, signal, threading, time
from dali_storage.runtime.uninterrupted import run_uninterrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
ended = []
def read():
    for _ in range(3):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    ended.append(threading.current_thread() is threading.main_thread())
try:
    run_uninterrupted(read)
except KeyboardInterrupt:
    print("interrupted", ended)
"""


class _Read:
    """A call that fails."""

    def __call__(self):
        raise OSError(5, "it fails")


def test_an_error_is_raised_and_keeps_nothing_alive():
    call = _Read()
    gone = weakref.ref(call)
    with without_collector():
        with pytest.raises(OSError, match="it fails") as caught:
            run_uninterrupted(call)
        del caught, call
        assert gone() is None


def test_repeated_ctrl_c_is_raised_after_the_call():
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout == "interrupted [False]\n", run.stderr


def test_a_thread_that_cannot_be_started_is_an_error(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(uninterrupted, "start_new_thread", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        run_uninterrupted(partial(int, "1"))
