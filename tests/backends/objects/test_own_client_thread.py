"""The thread of the client: it writes nothing late, and nobody waits for it in vain."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects import store
from dali_storage.backends.objects.http import loop
from dali_storage.backends.objects.http.transport import OwnClient
from dali_storage.testing import fill, make_batch, read
from tests.backends.objects.test_own_client import CONTENTS, SIZES, catalog_of
from tests.kit.objects.client import FOR_EVER, publish
from tests.kit.tiers import by_tier


@pytest.fixture
def catalog(server):
    return publish(server.put, catalog_of(len(SIZES)), CONTENTS)


# --- nothing is written late ----------------------------------------------------------------------


def test_a_batch_that_failed_is_not_written_to_any_more(server, catalog):
    server.fail("stall", FOR_EVER, 60, key="data/07")
    server.fail("403", FOR_EVER, key="data/06")
    with ObjectStoreReader(catalog, transport="own") as reader:
        batch = make_batch(reader, np.array([6, 7]), catalog)
        with pytest.raises(PermissionError):
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


def wrong_bytes(server, seconds_of_stalls, batches):
    """Batches in three lanes whose buffers are used again at once; how many were wrong."""
    catalog = publish(server.put, catalog_of(40), [CONTENTS[i % 9] for i in range(40)])
    chance, wrong, right = random.Random(5), [], []

    def run(lane):
        numbers = np.random.default_rng(lane)
        buffer = reader.allocate(16 << 20)
        for _ in range(batches):
            samples = numbers.integers(0, 40, 12)
            try:
                bodies = read(reader, samples, catalog, buffer=buffer, lane=lane)
            except OSError:
                continue
            right.append(lane)
            if bodies != [CONTENTS[i % 9] for i in samples]:
                wrong.append(lane)

    options = {"hedge": 0.02, "timeout": 0.5, "retry": 0.3, "transport": "own"}
    with ObjectStoreReader(catalog, **options) as reader, ThreadPoolExecutor(3) as lanes:
        runs = [lanes.submit(run, lane) for lane in range(3)]
        while not all(each.done() for each in runs):
            mode = chance.choice(["stall", "stall", "cut", "403", "slow", "short"])
            server.fail(mode, 3, seconds_of_stalls, chance=0.3)
            with suppress(TimeoutError):
                runs[0].result(0.01)
        for each in runs:
            each.result()
    assert right
    return len(wrong)


@pytest.mark.long
def test_no_byte_is_wrong_where_memory_is_used_again_at_once(server):
    assert not wrong_bytes(server, 0.05, by_tier(60, 400))


@pytest.mark.long
def test_a_late_write_would_be_found(server, monkeypatch):
    monkeypatch.setattr(OwnClient, "drop", lambda *_: None)
    assert wrong_bytes(server, 0.05, 60)
