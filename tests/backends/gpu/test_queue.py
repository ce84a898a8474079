"""A queue whose commands a GPU submits: what it does when a launch fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.gpu import layout, queue_pairs
from dali_storage.backends.gpu import queue as gpu_queue
from dali_storage.backends.gpu.queue import GpuQueue
from dali_storage.backends.xnvme.bus import BusMemory
from tests.kit.gpu_controller import MOVED, Controller, Launcher, Memory, Registers

BLOCK = 512


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


@pytest.fixture
def admin(memory: Memory) -> Controller:
    return Controller()


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Memory that is leaked on purpose."""
    kept: list[object] = []
    monkeypatch.setattr(gpu_queue, "_leaked_on_purpose", kept)
    monkeypatch.setattr(queue_pairs, "_leaked_on_purpose", [])
    return kept


@pytest.fixture
def queue(admin: Controller, launcher: Launcher) -> Iterator[GpuQueue]:
    admin.nsid = 7  # type: ignore[attr-defined]
    registers: Any = Registers()
    device: Any = admin
    controller = gpu_queue.Controller(
        device=device,
        registers=registers,
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


def read(queue: GpuQueue, count: int = 3, owner: object = "owner") -> dict[int, tuple[int, str]]:
    numbers = np.arange(count)
    lengths = np.full(count, 2 * BLOCK)
    return queue.read(numbers * 8 * BLOCK, ARENA.address + numbers * 4096, lengths, ARENA, owner)


def test_a_batch_and_the_queue_pairs_are_as_the_kernel_wants_them(
    queue: GpuQueue, launcher: Launcher, admin: Controller, memory: Memory
) -> None:
    assert read(queue) == {}
    (launches,) = launcher.made
    ((batch, columns),) = launches.batches
    assert {name: int(batch[name]) for name in ("count", "block_shift", "page_shift", "nsid")} == {
        "count": 3,
        "block_shift": 9,
        "page_shift": 12,
        "nsid": 7,
    }
    assert batch["patience_ns"] == 3_000_000_000
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
def test_a_queue_pair_takes_its_part_in_four_turns_or_more(
    queue: GpuQueue, launcher: Launcher, count: int, share: int
) -> None:
    numbers, lengths = np.arange(count), np.full(count, BLOCK)
    assert queue.read(numbers, ARENA.address + numbers * BLOCK, lengths, ARENA, "owner") == {}
    assert launcher.made[0].batches[0][0]["share"] == share


def test_an_arena_may_begin_in_the_middle_of_a_page(queue: GpuQueue, launcher: Launcher) -> None:
    start, nbytes = ARENA.address + 4096, 8192
    arena = BusMemory(start, nbytes, np.array([3 << 21], np.uint64), 21)
    there = np.array([start, start + nbytes - BLOCK])
    zeros, lengths = np.zeros(2, int), np.full(2, BLOCK)
    assert queue.read(zeros, there, lengths, arena, "owner") == {}
    assert launcher.made[0].batches[0][1]["offset"].tolist() == (there % (2 << 20)).tolist()
    with pytest.raises(ValueError, match="command 1"):
        queue.read(zeros, there + BLOCK, lengths, arena, "owner")


def test_failed_commands_are_described(queue: GpuQueue, launcher: Launcher) -> None:
    launcher.made[0].outcome = [0, layout.DNR | 0x281, 0x080]
    assert read(queue) == {
        1: (
            errno.EIO,
            "NVMe status Unrecovered Read Error (SCT 2h, SC 81h): cannot read 1024 bytes",
        ),
        2: (errno.EIO, "NVMe status LBA Out of Range (SCT 0h, SC 80h): cannot read 1024 bytes"),
    }


def test_nothing_is_launched_for_no_commands(queue: GpuQueue, launcher: Launcher) -> None:
    assert read(queue, 0) == {}
    assert launcher.made[0].batches == []


def test_a_read_outside_of_the_arena_is_refused(queue: GpuQueue, launcher: Launcher) -> None:
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
    queue: GpuQueue, launcher: Launcher, admin: Controller, fault: int, number: int, what: str
) -> None:
    first = launcher.made[0]
    first.pairs["fault"][1], first.pairs["in_flight"][1] = fault, 5
    with pytest.raises(OSError, match=what) as caught:
        read(queue)
    assert caught.value.errno == number
    assert admin.queues == {}
    assert read(queue) == {}
    assert len(launcher.made) == 2
    assert len(admin.queues) == 4


def test_an_error_keeps_the_queue_pairs_if_nothing_is_in_flight(
    queue: GpuQueue, launcher: Launcher
) -> None:
    launches = launcher.made[0]
    launches.outcome = MemoryError("no room")
    with pytest.raises(MemoryError, match="no room"):
        read(queue)
    assert not launches.running
    launches.outcome = None
    assert read(queue) == {}
    assert len(launcher.made) == 1


def test_an_error_deletes_the_queue_pairs_if_commands_are_in_flight(
    queue: GpuQueue, launcher: Launcher, admin: Controller
) -> None:
    launches = launcher.made[0]
    launches.outcome = MemoryError("no room")
    launches.pairs["fault"], launches.pairs["in_flight"] = layout.STOPPED, 1
    with pytest.raises(MemoryError, match="no room"):
        read(queue)
    assert not launches.running
    assert admin.queues == {}


@pytest.mark.parametrize("number", range(4))
def test_queue_pairs_that_cannot_be_made_again_leave_none(
    queue: GpuQueue, launcher: Launcher, admin: Controller, number: int
) -> None:
    launcher.made[0].pairs["fault"] = layout.TIMED_OUT
    with pytest.raises(OSError, match="stopped answering"):
        read(queue)
    admin.fails[len(admin.log) + number] = 0x006
    with pytest.raises(OSError, match="does not create"):
        read(queue)
    assert admin.queues == {}
    assert read(queue) == {}


def test_a_gpu_that_fails_deletes_the_queue_pairs(
    queue: GpuQueue, launcher: Launcher, admin: Controller
) -> None:
    launches = launcher.made[0]
    launches.outcome, launches.stopping = OSError(errno.EIO, "GPU 0"), [RuntimeError("CUDA")]
    with pytest.raises(OSError, match="GPU 0"):
        read(queue)
    assert admin.queues == {}


def test_memory_is_kept_if_the_queue_pairs_cannot_be_deleted(
    queue: GpuQueue, launcher: Launcher, admin: Controller, kept: list[object]
) -> None:
    launcher.made[0].pairs["fault"] = layout.TIMED_OUT
    admin.fails[4] = 0x006
    owner = object()
    with pytest.raises(OSError, match="stopped answering"):
        read(queue, owner=owner)
    assert kept == [[owner]]
    with pytest.raises(OSError, match="stopped answering") as caught:
        read(queue)
    assert caught.value.errno == errno.ENODEV


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (lambda queue, patch: queue.close(), ValueError, "closed"),
        (lambda queue, patch: patch.setattr(os, "getpid", lambda: -1), RuntimeError, "forked"),
    ],
)
def test_a_queue_that_cannot_be_used_is_refused(
    queue: GpuQueue,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[..., None],
    error: type[Exception],
    what: str,
) -> None:
    with monkeypatch.context() as patch:
        change(queue, patch)
        with pytest.raises(error, match=what):
            read(queue)
    queue.close()
    queue.close()


def test_a_controller_that_was_taken_over_is_refused(queue: GpuQueue, admin: Controller) -> None:
    admin.gone = True
    with pytest.raises(OSError, match="another driver") as caught:
        read(queue)
    assert caught.value.errno == errno.ENODEV
    admin.gone = False
