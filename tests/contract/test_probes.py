"""The probes of the contract find what they look for."""

import os
import threading
from functools import partial

import numpy as np
import pytest

from dali_storage.testing import probes


@pytest.fixture
def kept(monkeypatch):
    """Takes what a test leaves behind, and ends it."""
    monkeypatch.setattr(probes, "_PATIENCE_S", 0.0)
    ended = threading.Event()
    kept = [ended]
    yield kept
    ended.set()
    for one in kept:
        if hasattr(one, "close"):
            one.close()


def leave_files(kept):
    # More than other threads may close meanwhile.
    kept += [open(os.devnull, "rb") for _ in range(20)]  # noqa: SIM115


def leave_threads(kept):
    threads = [threading.Thread(target=kept[0].wait) for _ in range(20)]
    for thread in threads:
        thread.start()
    kept += threads


def leave_memory(kept):
    kept.append(np.ones(32 << 20, np.uint8))


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (leave_files, r"[1-9]\d* files stay open"),
        pytest.param(leave_threads, r"[1-9]\d* threads run", marks=pytest.mark.long),
        (leave_memory, r"\d{7,} bytes are not freed"),
    ],
)
@pytest.mark.long
def test_an_error_says_what_every_call_leaves(kept, leave, says):
    with pytest.raises(AssertionError, match=says):
        probes.require_no_leak(partial(leave, kept))


@pytest.mark.long
def test_it_is_no_error_if_only_the_first_call_leaves_anything(kept):
    once = iter([leave_files])
    probes.require_no_leak(lambda: next(once, lambda _: None)(kept))
