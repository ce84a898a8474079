"""A Ctrl-C does not wait for a storage that does not answer, whichever thread gets the signal."""

import signal
import threading
from queue import SimpleQueue

import pytest

from dali_storage.backends.objects.pool import RequestPool
from dali_storage.order import Order, OrderOptions
from dali_storage.reading.lanes import Lanes
from dali_storage.runtime import waiting
from dali_storage.samples.discovery import from_files
from tests.kit.interrupts import main_thread_is_in
from tests.kit.process import SECONDS, wait_until
from tests.kit.reading_ahead import reading_ahead
from tests.kit.stand_ins import Recorder


def a_batch(storage):
    catalog = from_files(["x"])
    reader = Recorder(catalog, lanes=1)
    reader.before = lambda batch: storage()
    ahead = reading_ahead(catalog, reader, Order(1, 1, OrderOptions()), 1)
    try:
        ahead.get(0)
    finally:
        threading.Thread(target=ahead.close).start()


def the_end_of_lanes(storage):
    begun = threading.Event()
    lanes = Lanes[int](1, turns=1, begin=lambda job: begun.set(), work=lambda job, lane: storage())
    lanes.submit(0)
    assert begun.wait(SECONDS)  # or it would be dropped
    lanes.close()


def requests(storage):
    asking = RequestPool(1, retry=0, hedge=None)
    try:
        asking.run(lambda item: storage(), [0], lambda *_: None, lambda _, error: OSError())
    finally:
        threading.Thread(target=asking.close).start()


@pytest.mark.parametrize("wait", [a_batch, the_end_of_lanes, requests])
def test_a_ctrl_c_that_another_thread_gets_ends_the_wait(wait):
    interrupted, in_time = threading.Event(), SimpleQueue[bool]()

    def storage():
        if in_time.empty() and not interrupted.is_set():
            wait_until(lambda: main_thread_is_in(waiting.take, waiting.join))
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            in_time.put(interrupted.wait(SECONDS))

    with pytest.raises(KeyboardInterrupt):
        wait(storage)
    interrupted.set()
    assert in_time.get(timeout=2 * SECONDS)
