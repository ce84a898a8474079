"""PRPs, against an oracle that follows the specification command by command, and bus addresses."""

import gc
import struct
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.backends.xnvme import bus as _bus
from dali_storage.backends.xnvme import prp as _prp
from dali_storage.backends.xnvme.bus import BusMap, BusMemory, paged
from dali_storage.backends.xnvme.device import Geometry
from dali_storage.backends.xnvme.device_kinds import PCI_ADDRESS
from dali_storage.backends.xnvme.namespace import Namespace
from dali_storage.backends.xnvme.prp import PrpLists, prps
from dali_storage.backends.xnvme.queue import Queue
from dali_storage.backends.xnvme.read_commands import ReadCommands
from dali_storage.contract._types import address_of

PAGE = 4096
MOST = 2 << 20  # bytes of a command


@dataclass
class Arena:
    """Memory whose larger pages are in any order on the bus.

    Attributes:
        address: of its first byte.
        bus: the bus address of each page of 4 KiB.
    """

    address: int
    bus: list[int]

    def memory(self):
        return paged(self.address, len(self.bus) * PAGE, np.array(self.bus, np.uint64))

    def bus_address(self, address):
        page, within = divmod(address - self.address, PAGE)
        return self.bus[page] + within


@st.composite
def arenas(draw, page_shift):
    """The memory may begin and end in the middle of a page."""
    size = (1 << page_shift) // PAGE
    places = draw(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=9, unique=True))
    pages = [place * (1 << page_shift) + part * PAGE for place in places for part in range(size)]
    skip = draw(st.integers(0, size - 1))
    count = draw(st.integers(1, len(pages) - skip))
    return Arena((0x7000 << page_shift) + skip * PAGE, pages[skip : skip + count])


shifts = st.sampled_from([12, 16, 21])


@given(st.data(), shifts)
def test_an_address_has_the_bus_address_of_its_page(data, shift):
    arena = data.draw(arenas(shift))
    memory = arena.memory()
    offsets = st.integers(0, len(arena.bus) * PAGE - 1)
    wanted = [arena.address + it for it in data.draw(st.lists(offsets, max_size=20))]
    found = memory.addresses(np.array(wanted, np.int64))
    assert found.dtype == np.uint64
    assert found.tolist() == [arena.bus_address(address) for address in wanted]
    assert memory.page_shift >= shift  # larger if the pages happen to be contiguous
    first, last = arena.address, arena.address + len(arena.bus) * PAGE - 1
    assert memory.pages.size == (last >> memory.page_shift) - (first >> memory.page_shift) + 1


def expected(arena, address, nbytes):
    """PRP1, and the addresses of all pages after the first."""
    first = arena.bus_address(address)
    following, at = [], address - address % PAGE + PAGE
    while at < address + nbytes:
        following.append(arena.bus_address(at))
        at += PAGE
    return first, following


@given(st.data(), shifts, st.sampled_from([512, 4096]), st.integers(1, 9))
def test_prps_and_lists_are_those_of_each_command(data, shift, block, depth):
    arena = data.draw(arenas(shift))
    room = len(arena.bus) * PAGE
    reads = []
    for _ in range(data.draw(st.integers(0, 12))):
        start = data.draw(st.integers(0, room // block - 1)) * block
        most = min(room - start, MOST) // block
        length = data.draw(st.one_of(st.integers(1, most), st.integers(max(most - 2, 1), most)))
        reads.append((arena.address + start, length * block))
    columns = np.array(reads, np.int64).reshape(-1, 2).T
    found = prps(arena.memory(), *columns)
    wanted = [expected(arena, *read) for read in reads]
    assert found.first.tolist() == [first for first, _ in wanted]

    lists, pages = lists_at(depth)
    pages[:] = 0xDEAD
    for start in range(0, len(reads), depth):
        indices = list(range(start, min(start + depth, len(reads))))[::-1]
        contexts = data.draw(st.permutations(range(depth)))[: len(indices)]
        before = pages.copy()
        second = lists.write(found, indices, contexts).tolist()
        for index, context, prp2 in zip(indices, contexts, second, strict=True):
            following = wanted[index][1]
            if len(following) < 2:
                assert [prp2] == (following or [0])
                continue
            assert prp2 == bus_of_list(context)
            assert pages[context, : len(following)].tolist() == following
            before[context, : len(following)] = following
        assert (pages == before).all()  # no other list, and nothing beyond


def test_a_command_may_have_513_pages():
    arena = Arena(1 << 40, [(3 * page + 1) * PAGE for page in range(513)])
    found = prps(arena.memory(), np.array([arena.address + 512]), np.array([MOST]))
    lists, pages = lists_at(1)
    assert lists.write(found, [0], [0]).tolist() == [bus_of_list(0)]
    assert found.first.tolist() == [arena.bus[0] + 512]
    assert pages[0].tolist() == arena.bus[1:]
    geometry = Geometry("conventional", 1 << 40, 512, 4 << 20, has_metadata=False)
    assert PCI_ADDRESS.max_transfer(geometry, None) == MOST  # whatever the controller supports


def test_a_command_is_submitted_with_its_prps_at_their_places(ramdisk):
    arena = Arena(1 << 40, [(page * 7 % 64 + 1) * PAGE for page in range(64)])
    ramdisk.geometry()
    passed = []
    with closing(Queue(ramdisk, 4)) as queue:
        lists, pages = lists_at(4)
        memory = arena.address + np.array([512, 8 * PAGE, 20 * PAGE + 512])
        columns = np.array([7, 8, 9]) * 512, memory, np.array([512, 2 * PAGE, 9 * PAGE])
        peer = arena.memory(), lists
        reads = ReadCommands(queue, *columns, lba_bytes=512, reports_length=False, peer=peer)
        reads._pass = lambda *arguments: passed.append(arguments) or 0
        assert reads.submit([2, 0, 1], [3, 1, 0]) == [0, 0, 0]
        heads = {context: queue.heads[context].tobytes() for context in (3, 1, 0)}
        assert passed == [(queue.pointers[context], None, 0, None, 0) for context in (3, 1, 0)]
        queue._reset()
    prps = [arena.bus[20] + 512, bus_of_list(3)], [arena.bus[0] + 512, 0], arena.bus[8:10]
    for context, index, (first, second) in zip((3, 1, 0), (2, 0, 1), prps, strict=True):
        command = struct.unpack("<BBHI4x4xQQQQHHIII", heads[context][:64])
        nlb = (9 * 8, 1, 2 * 8)[(3, 1, 0).index(context)] - 1
        nsid = ramdisk.nsid
        assert command == (2, 0, 0, nsid, 0, first, second, 7 + index, nlb, 0, 0, 0, 0)
    assert pages[3, :9].tolist() == arena.bus[21:30]


def bus_of_list(context):
    return (5 + 2 * context) * PAGE


def lists_at(depth):
    """Lists in memory of this process, uint64[depth, 512], with bus addresses of our choice."""
    memory = np.zeros((depth + 1) * PAGE, np.uint8)
    skip = -address_of(memory) % PAGE
    memory = memory[skip : skip + depth * PAGE]
    each = np.array([bus_of_list(context) for context in range(depth)], np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        known = memory, paged(address_of(memory), memory.nbytes, each)
        patch.setattr(_prp, "allocate", lambda device, nbytes: known)
        return PrpLists(None, depth), memory.view(np.uint64).reshape(depth, 512)


# Memory that has bus addresses


def test_memory_is_known_until_its_last_slice_is_gone():
    known, memory = BusMap(), np.frombuffer(bytearray(8 * PAGE), np.uint8)
    owner = Foreign(memory)
    memory = np.asarray(owner)
    one = BusMemory(address_of(memory), memory.nbytes, np.zeros(1, np.uint64), 21)
    known.add(memory, one)
    part = memory[PAGE:][10:20]
    del memory, owner
    gc.collect()
    assert known.find(part) is one
    other = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match=r"not from Reader.allocate\(\)"):
        known.find(other)
    again = BusMemory(one.address, 1 << 16, np.zeros(1, np.uint64), 12)
    new = np.asarray(Foreign(part, one.address))  # the address is used again
    known.add(new, again)
    assert known.find(new[10:]) is again
    del new, part
    gc.collect()
    assert not known._known


class Foreign:
    """Memory that is not numpy's."""

    def __init__(self, memory: np.ndarray, address: int | None = None) -> None:
        self._memory = memory
        data = address or address_of(memory), False
        shape = (memory.nbytes,)
        self.__array_interface__ = {"data": data, "shape": shape, "typestr": "|u1", "version": 3}


def test_memory_that_reaches_beyond_what_is_known_is_refused():
    known, memory = BusMap(), np.zeros(4 * PAGE, np.uint8)
    known.add(memory[PAGE:], BusMemory(address_of(memory) + PAGE, PAGE, np.zeros(1, np.uint64), 12))
    assert known.find(memory[PAGE : 2 * PAGE])
    for part in (memory[: 2 * PAGE], memory[PAGE : 2 * PAGE + 1], memory):
        with pytest.raises(ValueError, match="has no bus addresses"):
            known.find(part)


def test_a_device_without_bus_addresses_is_an_error(ramdisk):
    with pytest.raises(OSError, match="libxnvme has no bus addresses for memory"):
        _bus.allocate(ramdisk, 3 * PAGE)


def test_bus_addresses_of_dma_memory_are_asked_for_page_by_page(ramdisk, monkeypatch):
    def translate(device, address, result):
        assert device == ramdisk.pointer
        page = (address - start) // PAGE
        np.asarray(Foreign(np.zeros(8, np.uint8), result)).view(np.uint64)[0] = (
            7 + 2 * page
        ) * PAGE
        return 0

    start = 0
    monkeypatch.setattr(ramdisk.library.with_gil, "xnvme_buf_vtophys", lambda *_: 0, raising=False)
    memory, _ = _bus.allocate(ramdisk, 3 * PAGE + 1)
    start = address_of(memory)
    monkeypatch.setattr(ramdisk, "allocate", lambda _: memory)
    monkeypatch.setattr(ramdisk.library.with_gil, "xnvme_buf_vtophys", translate, raising=False)
    _, found = _bus.allocate(ramdisk, 3 * PAGE + 1)
    assert (found.address, found.nbytes) == (start, memory.nbytes)
    assert found.pages.tolist() == [7 * PAGE, 9 * PAGE, 11 * PAGE, 13 * PAGE]


def test_the_lists_are_kept_with_the_memory_while_commands_are_under_way(ramdisk, monkeypatch):
    arena = Arena(1 << 40, [page * PAGE for page in range(9)])
    lists, owner, kept = lists_at(1)[0], object(), []
    monkeypatch.setattr(Queue, "run", lambda queue, commands, memory: kept.append(memory))
    ramdisk.geometry()
    with closing(Queue(ramdisk, 1)) as queue:
        columns = [np.array([value]) for value in (0, arena.address, 9 * PAGE)]
        opened = Namespace(PCI_ADDRESS, ramdisk, [queue], [lists], None, 512, MOST)
        assert opened.submit(0, *columns, owner, arena.memory()) == {}
        opened.close()
        for bus in (arena.memory(), None):
            with pytest.raises(ValueError, match="closed"):
                opened.submit(0, *columns, owner, bus)
    assert kept == [(owner, lists)]
    assert not opened._lists  # their memory would keep the device open
