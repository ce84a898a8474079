"""A queue whose commands a GPU submits: what it does when a launch fails."""

import errno
import os

import numpy as np
import pytest

from dali_storage.backends.gpu import layout
from dali_storage.backends.gpu import queue as gpu_queue
from dali_storage.backends.gpu.queue import GpuQueue
from dali_storage.backends.xnvme.bus import BusMemory
from tests.kit.gpu_controller import MOVED, Controller, Launcher, Registers

BLOCK = 512


@pytest.fixture
def admin(memory):
    return Controller()


@pytest.fixture
def launcher():
    return Launcher()


@pytest.fixture
def kept_buffers(kept, monkeypatch):
    """Memory of readers that is leaked on purpose."""
    buffers = []
    monkeypatch.setattr(gpu_queue, "_leaked_on_purpose", buffers)
    return buffers


@pytest.fixture
def queue(admin, launcher):
    admin.nsid = 7
    controller = gpu_queue.Controller(
        device=admin,
        registers=Registers(),
        doorbells=5000,
        granted=8,
        launcher=launcher,
        peer=None,
        lba_bytes=BLOCK,
        timeout_s=3.0,
    )
    made = GpuQueue(controller, 2, 16)
    made.create()
    yield made
    made.close()
    assert admin.lost or admin.queues == {}


ARENA = BusMemory(1 << 20, 1 << 20, np.arange(1, 257, dtype=np.uint64) << np.uint64(12), 12)


def read(queue, count=3, owner="owner"):
    numbers = np.arange(count)
    lengths = np.full(count, 2 * BLOCK)
    return queue.read(numbers * 8 * BLOCK, ARENA.address + numbers * 4096, lengths, ARENA, owner)


def test_a_batch_and_the_queue_pairs_are_as_the_kernel_wants_them(queue, launcher, admin, memory):
    assert read(queue) == {}
    (launches,) = launcher.made
    ((batch, columns),) = launches.batches
    names = ("count", "block_shift", "page_shift", "nsid", "patience_ns")
    assert [int(batch[name]) for name in names] == [3, 9, 12, 7, 3_000_000_000]
    assert columns["slba"].tolist() == [0, 8, 16]
    assert columns["blocks"].tolist() == [2, 2, 2]
    assert columns["offset"].tolist() == [0, 4096, 8192]
    assert columns["page_bus"] is ARENA.pages
    pairs = launches.pairs
    assert pairs["submission_doorbell"].tolist() == [5000 + 64, 5000 + 56]
    assert pairs["completion_doorbell"].tolist() == [5000 + 68, 5000 + 60]
    assert pairs["depth"].tolist() == [16, 16]
    for index, qid in enumerate((8, 7)):
        for is_submission, name in ((True, "submission_queue"), (False, "completion_queue")):
            there = memory.host(admin.queues[is_submission, qid][0], 4096)
            assert pairs[name][index] == there + MOVED
        lists = [memory.pages[page] for page in launches.prp_list_bus[index].tolist()]
        assert lists == [int(pairs["prp_lists"][index]) - MOVED + n * 4096 for n in range(16)]


@pytest.mark.parametrize(("count", "share"), [(1, 1), (15, 1), (80, 10), (255, 31), (999, 32)])
def test_a_queue_pair_takes_its_part_in_four_turns_or_more(queue, launcher, count, share):
    numbers, lengths = np.arange(count), np.full(count, BLOCK)
    assert queue.read(numbers, ARENA.address + numbers * BLOCK, lengths, ARENA, "owner") == {}
    assert launcher.made[0].batches[0][0]["share"] == share


def test_an_arena_may_begin_in_the_middle_of_a_page(queue, launcher):
    start, nbytes = ARENA.address + 4096, 8192
    arena = BusMemory(start, nbytes, np.array([3 << 21], np.uint64), 21)
    there = np.array([start, start + nbytes - BLOCK])
    zeros, lengths = np.zeros(2, int), np.full(2, BLOCK)
    assert queue.read(zeros, there, lengths, arena, "owner") == {}
    assert launcher.made[0].batches[0][1]["offset"].tolist() == (there % (2 << 20)).tolist()
    with pytest.raises(ValueError, match="command 1"):
        queue.read(zeros, there + BLOCK, lengths, arena, "owner")


def test_failed_commands_are_described(queue, launcher):
    launcher.made[0].outcome = [0, layout.DNR | 0x281, 0x080]
    statuses = ("Unrecovered Read Error (SCT 2h, SC 81h)", "LBA Out of Range (SCT 0h, SC 80h)")
    words = [f"NVMe status {status}: cannot read 1024 bytes" for status in statuses]
    assert read(queue) == {1: (errno.EIO, words[0]), 2: (errno.EIO, words[1])}


def test_nothing_is_launched_for_no_commands_or_one_outside_of_the_arena(queue, launcher):
    assert read(queue, 0) == {}
    with pytest.raises(ValueError, match="command 256"):
        read(queue, 257)
    assert launcher.made[0].batches == []


@pytest.mark.parametrize(
    ("fault", "number", "what"),
    [
        (layout.TIMED_OUT, errno.ETIMEDOUT, "stopped answering; 5 commands are in flight"),
        (layout.UNKNOWN_IDENTIFIER, errno.EIO, "not in flight; 5 commands are in flight"),
    ],
)
def test_a_fault_deletes_the_queue_pairs_and_the_next_read_makes_new_ones(
    queue, launcher, admin, fault, number, what
):
    first = launcher.made[0]
    first.pairs["fault"][1], first.pairs["in_flight"][1] = fault, 5
    with pytest.raises(OSError, match=what) as caught:
        read(queue)
    assert caught.value.errno == number
    assert admin.queues == {}
    assert read(queue) == {}
    assert len(launcher.made) == 2
    assert len(admin.queues) == 4


@pytest.mark.parametrize("in_flight", [0, 1])
def test_an_error_keeps_the_queue_pairs_only_if_nothing_is_in_flight(
    queue, launcher, admin, in_flight
):
    (launches,) = launcher.made
    launches.outcome = MemoryError("no room")
    launches.pairs["fault"], launches.pairs["in_flight"] = layout.STOPPED * in_flight, in_flight
    with pytest.raises(MemoryError, match="no room"):
        read(queue)
    assert not launches.running
    assert bool(admin.queues) == (not in_flight)
    launches.outcome = None
    assert read(queue) == {}
    assert len(launcher.made) == 1 + in_flight


@pytest.mark.parametrize("number", range(4))
def test_queue_pairs_that_cannot_be_made_again_leave_none(queue, launcher, admin, number):
    launcher.made[0].pairs["fault"] = layout.TIMED_OUT
    with pytest.raises(OSError, match="stopped answering"):
        read(queue)
    admin.fails[len(admin.log) + number] = 0x006
    with pytest.raises(OSError, match="does not create"):
        read(queue)
    assert admin.queues == {}
    assert read(queue) == {}


def test_a_gpu_that_fails_deletes_the_queue_pairs(queue, launcher, admin):
    launches = launcher.made[0]
    launches.outcome, launches.stopping = OSError(errno.EIO, "GPU 0"), [RuntimeError("CUDA")]
    with pytest.raises(OSError, match="GPU 0"):
        read(queue)
    assert admin.queues == {}


def test_memory_is_kept_if_the_queue_pairs_cannot_be_deleted(queue, launcher, admin, kept_buffers):
    launcher.made[0].pairs["fault"] = layout.TIMED_OUT
    admin.fails[4] = 0x006
    owner = object()
    with pytest.raises(OSError, match="stopped answering"):
        read(queue, owner=owner)
    assert kept_buffers == [[owner]]
    with pytest.raises(OSError, match="stopped answering") as caught:
        read(queue)
    assert caught.value.errno == errno.ENODEV


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (lambda queue, admin, patch: queue.close(), ValueError, "closed"),
        (lambda queue, admin, patch: patch.setattr(os, "getpid", lambda: -1), RuntimeError, "fork"),
        (lambda queue, admin, patch: patch.setattr(admin, "gone", True), OSError, "another driver"),
    ],
    ids=["closed", "forked", "taken over"],
)
def test_a_queue_that_cannot_be_used_is_refused(queue, admin, monkeypatch, change, error, what):
    with monkeypatch.context() as patch:
        change(queue, admin, patch)
        with pytest.raises(error, match=what) as caught:
            read(queue)
    assert error is not OSError or caught.value.errno == errno.ENODEV
    queue.close()
    queue.close()
