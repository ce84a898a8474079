"""Queue pairs of our own, on a stand-in for a controller that checks the admin commands."""

import errno
import os
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.backends.gpu import queue_pairs, registers
from dali_storage.backends.gpu.admin import count_granted
from dali_storage.backends.gpu.queue_pairs import QueuePairs
from dali_storage.backends.gpu.registers import Registers
from dali_storage.backends.xnvme.bus import BusMemory
from dali_storage.contract._types import address_of
from dali_storage.contract.errors import BackendUnavailable
from tests.kit.gpu_controller import PAGE, Controller, Memory


def make(controller, count=2, depth=16, **options):
    device = controller
    pairs = QueuePairs(device, count, depth, granted=controller.granted, **options)
    try:
        pairs.create()
    except BaseException:
        pairs.close()
        raise
    return pairs


@given(
    count=st.integers(1, 7),
    depth=st.integers(2, 1024),
    run=st.sampled_from([16, 17, 100, 512]),
    data=st.data(),
)
def test_queues_are_where_the_controller_was_told(count, depth, run, data):
    with pytest.MonkeyPatch.context() as patch:
        memory = Memory(patch, run, data.draw(st.integers(1, run)))
        controller = Controller()
        try:
            pairs = make(controller, count, depth)
        except MemoryError:
            assert run < 512  # hugepages suffice
            assert controller.queues == {}
            return
        assert pairs.qids == [*range(8, 8 - count, -1)]
        assert not pairs.memory.any()
        used = []
        for index, qid in enumerate(pairs.qids):
            for is_submission, column in (
                (True, pairs.submission_queues),
                (False, pairs.completion_queues),
            ):
                there, nbytes = controller.queues[is_submission, qid]
                assert memory.host(there, nbytes) == column[index]
                used.append((int(column[index]), nbytes))
            lists = pairs.prp_lists[index] + np.arange(depth) * PAGE
            assert [memory.pages[page] for page in pairs.prp_list_bus[index].tolist()] == [*lists]
            used += [(at, PAGE) for at in lists.tolist()]
        used.sort()
        assert all(at + nbytes <= after for (at, nbytes), (after, _) in pairwise(used))
        start = address_of(pairs.memory)
        assert start <= used[0][0]
        assert sum(used[-1]) <= start + pairs.memory.nbytes
        assert pairs.close()
        assert controller.queues == {}


def test_memory_without_room_for_a_whole_queue_is_refused(monkeypatch):
    Memory(monkeypatch, run=8, first=1)
    with pytest.raises(MemoryError, match="not contiguous on the bus; free hugepages"):
        make(Controller(), 7, 1024)


def test_completion_queues_may_be_elsewhere(memory):
    controller = Controller()
    buffer = np.full(2 * queue_pairs.COMPLETION_BYTES, 0xEE, np.uint8)
    pages = ((7 << 40) + np.arange(8) * 9 * PAGE).astype(np.uint64)
    there = BusMemory(16 * PAGE, buffer.nbytes, pages, 12)
    pairs = make(controller, completions=(buffer, there))
    assert not buffer.any()
    assert [controller.queues[False, qid][0] - (7 << 40) for qid in pairs.qids] == [0, 9 * PAGE]
    assert pairs.completion_queues.tolist() == [16 * PAGE, 17 * PAGE]
    assert pairs.close()


def test_queue_pairs_leave_out_identifiers_of_others(memory):
    controller = Controller()
    controller.taken |= {8, 6}
    pairs = make(controller, 3)
    assert pairs.qids == [7, 5, 4]
    assert pairs.close()
    assert controller.queues == {}


@pytest.mark.parametrize(
    ("count", "depth", "error", "words"),
    [
        (8, 16, BackendUnavailable, r"of the 8 I/O queue pairs .* only 7 are free"),
        (2, 65, OSError, r"queue pair 8 of 65 entries: .*\(SCT 1h, SC 02h\)"),
    ],
)
def test_queue_pairs_that_are_refused_are_named_and_none_is_left(
    memory, count, depth, error, words
):
    controller = Controller(max_depth=64)
    with pytest.raises(error, match=words):
        make(controller, count, depth)
    assert controller.queues == {}


@pytest.mark.parametrize("failure", [0x00C, None, "gone"])
def test_memory_of_queues_that_cannot_be_deleted_is_kept(memory, kept, failure):
    controller = Controller()
    pairs = make(controller)
    controller.gone = failure == "gone"
    controller.fails[5] = failure
    for _ in range(2):  # it is not touched again
        assert not pairs.close()
        assert controller.is_gone
        assert {*kept} == {pairs}
        assert len(controller.log) == (4 if controller.gone else 6)


def test_a_controller_that_does_not_answer_is_given_up(memory, kept):
    controller = Controller()
    controller.fails[1] = None
    with pytest.raises(OSError, match="does not answer") as caught:
        make(controller)
    assert caught.value.errno == errno.ETIMEDOUT
    assert controller.lost
    assert controller.log == [5, 1]
    assert len(kept) == 1


def test_a_forked_process_deletes_nothing(memory, monkeypatch):
    controller = Controller()
    pairs = make(controller)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        assert pairs.close()
    assert len(controller.queues) == 4
    assert pairs.close()
    assert controller.queues == {}


def test_the_granted_number_is_that_of_the_fewer_queues():
    device = Controller(granted=5)
    assert count_granted(device) == 5
    device.fails[1] = 0x002
    with pytest.raises(OSError, match="number of queues: NVMe status Invalid Field"):
        count_granted(device)
    device.gone = True
    with pytest.raises(OSError, match="is no longer usable") as caught:
        count_granted(device)
    assert caught.value.errno == errno.ENODEV


# --- registers ---


def bar(directory, low, high):
    function = directory / "sys/bus/pci/devices/0000:00:04.0"
    function.mkdir(parents=True)
    content = low.to_bytes(4, "little") + high.to_bytes(4, "little")
    (function / "resource0").write_bytes(content + bytes(16384 - 8))
    return function.name


@pytest.fixture
def at(tmp_path, monkeypatch):
    """The directory in which `Registers` looks for sysfs."""
    original = registers.map_registers
    monkeypatch.setattr(
        registers, "map_registers", lambda address: original(address, str(tmp_path))
    )
    return tmp_path


def test_registers_say_how_deep_queues_are_and_where_doorbells_are(at):
    found = Registers(bar(at, 0x0F0107FF, 0x00000002), 64)
    assert found.max_depth == 2048
    assert found.offsets(3) == (6 * 16, 7 * 16)
    assert found.doorbells.nbytes == PAGE  # and not those that switch the controller off
    for granted, pages in ((127, 1), (128, 2)):  # 32 bytes each, and the admin queue
        assert Registers("0000:00:04.0", granted).doorbells.nbytes == pages * PAGE
    found.doorbells[0] = 7
    assert (at / "sys/bus/pci/devices/0000:00:04.0/resource0").read_bytes()[0x1000] == 7


def test_registers_that_cannot_be_read_are_an_error(at):
    with pytest.raises(OSError) as caught:
        Registers(bar(at, 0xFFFFFFFF, 0xFFFFFFFF), 64)
    assert caught.value.errno == errno.ENODEV


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS])
def test_registers_that_may_not_be_mapped_are_refused(at, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    address = bar(at, 0, 0)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BackendUnavailable, match=f"{os.strerror(number)}; run as root, .*lockdown"):
        Registers(address, 64)
