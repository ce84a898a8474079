"""The thread of the client: it writes nothing late, and nobody waits for it in vain."""

import os
import threading
from contextlib import nullcontext

import numpy as np
import pytest

from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects import store
from dali_storage.backends.objects.http import loop
from dali_storage.testing import fill, make_batch, read
from tests.backends.objects.test_own_client import CONTENTS, SIZES, catalog_of
from tests.kit.objects.client import FOR_EVER, publish


@pytest.fixture
def catalog(server):
    return publish(server.put, catalog_of(len(SIZES)), CONTENTS)


# --- nothing is written late ----------------------------------------------------------------------


@pytest.mark.parametrize("hedge", [None, 0.1], ids=["failed", "hedged"])
def test_a_batch_that_is_over_is_not_written_to_any_more(server, catalog, hedge):
    server.fail("stall", 1 if hedge else FOR_EVER, 60, key="data/07")
    if not hedge:
        server.fail("403", FOR_EVER, key="data/06")
    with ObjectStoreReader(catalog, transport="own", hedge=hedge) as reader:
        batch = make_batch(reader, np.array([6, 7]), catalog)
        with nullcontext() if hedge else pytest.raises(PermissionError):
            fill(reader, batch)
        there = np.asarray(batch.buffer)
        there[:] = 7
        server.heal()  # the rest of the body comes
        assert read(reader, np.array([7, 6]), catalog) == [CONTENTS[7], CONTENTS[6]]
        assert (there == 7).all()


# --- lanes do not wait for a thread that is not there ---------------------------------------------


def no_more_threads(patch, reader):
    def start(self):
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", start)


def a_forked_process(patch, reader):
    number = os.getpid() + 1
    patch.setattr(loop.os, "getpid", lambda: number)
    patch.setattr(store, "_OPENED_BY", set())


def a_closed_reader(patch, reader):
    reader.close()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (no_more_threads, RuntimeError, "new thread"),
        (a_forked_process, RuntimeError, "was forked"),
        (a_closed_reader, OSError, "was closed"),
    ],
)
def test_no_lane_waits_for_a_thread_that_does_not_run(
    server, catalog, monkeypatch, change, error, says
):
    with ObjectStoreReader(catalog, transport="own") as reader:
        batch = make_batch(reader, np.array([3, 4]), catalog)
        with monkeypatch.context() as patch:
            change(patch, reader)
            with pytest.raises(error, match=says):
                fill(reader, batch)


def test_what_ended_the_thread_is_the_cause_of_errors(server, catalog, monkeypatch):
    failure = MemoryError()

    def fail(*_):
        raise failure

    with ObjectStoreReader(catalog, transport="own") as reader:
        monkeypatch.setattr(reader._own._traffic, "send", fail)
        for _ in range(2):
            with pytest.raises(OSError, match="the thread of requests has failed") as caught:
                read(reader, np.array([3]), catalog)
            assert caught.value.__cause__ is failure
