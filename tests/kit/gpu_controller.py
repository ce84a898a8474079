"""A controller, its registers, memory on the bus and launches, for queue pairs of our own."""

import ctypes
import errno
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.xnvme import bus
from dali_storage.backends.xnvme.bus import BusMemory
from dali_storage.contract._types import address_of

PAGE = 4096
INVALID_IDENTIFIER, INVALID_SIZE = 0x101, 0x102
MOVED = 1 << 40  # from addresses of the processor to those of the kernel


class Controller:
    """Its admin queue, as libxnvme offers it, and what it knows of queues.

    Attributes:
        taken: identifiers of queue pairs of others.
        queues: (is it a submission queue, identifier) -> (bus address, bytes).
        log: opcodes.
        fails: the number of a command -> its status, what is raised after it, or None: no answer.
    """

    def __init__(self, granted: int = 8, max_depth: int = 2048) -> None:
        self.granted, self.max_depth = granted, max_depth
        self.taken: set[int] = {1}
        self.queues: dict[tuple[bool, int], tuple[int, int]] = {}
        self.log: list[int] = []
        self.fails: dict[int, Any] = {}
        self.lost = self.gone = False
        self.pointer, self.nsid = 0xD, 1
        self.library: Any = SimpleNamespace(xnvme_cmd_pass_admin=self.run)

    @property
    def is_gone(self) -> bool:
        return self.lost or self.gone

    def run(self, address: int, *payload: object) -> int:
        assert payload == (None, 0, None, 0)
        assert not self.gone
        context = np.frombuffer((ctypes.c_uint8 * 128).from_address(address), np.uint8)
        words = context[:64].view(np.uint32)
        assert context[80:88].view(np.uint64)[0] == self.pointer
        failure = self.fails.get(len(self.log), 0)
        self.log.append(int(words[0]))
        if failure is None:
            return -errno.EAGAIN
        status, result = failure, 0
        if not isinstance(failure, int) or not failure:
            prp1 = int(context[24:32].view(np.uint64)[0])
            status, result = self.execute(int(words[0]), prp1, int(words[10]), int(words[11]))
        context[64:68].view(np.uint32)[0] = result
        context[78:80].view(np.uint16)[0] = status << 1 | 1
        if isinstance(failure, BaseException):
            raise failure
        return -errno.EIO if status else 0

    def execute(self, opcode: int, prp1: int, cdw10: int, cdw11: int) -> tuple[int, int]:
        if opcode == 10:
            assert cdw10 == 7
            return 0, (self.granted - 1) << 16 | (self.granted + 2)
        qid, depth = cdw10 & 0xFFFF, (cdw10 >> 16) + 1
        is_submission = opcode in (0, 1)
        if opcode in (0, 4):
            assert cdw10 == qid
            if not is_submission:
                assert (True, qid) not in self.queues  # it would be an error
            return (0 if self.queues.pop((is_submission, qid), None) else INVALID_IDENTIFIER), 0
        if not 1 <= qid <= self.granted or qid in self.taken or (is_submission, qid) in self.queues:
            return INVALID_IDENTIFIER, 0
        if depth > self.max_depth:
            return INVALID_SIZE, 0
        assert prp1 % PAGE == 0
        assert cdw11 == (qid << 16 | 1 if is_submission else 1)
        assert not is_submission or (False, qid) in self.queues
        self.queues[is_submission, qid] = prp1, depth * (64 if is_submission else 16)
        return 0, 0


class Memory:
    """Memory whose pages are on the bus in runs, with gaps between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: int = 512, first: int = 512) -> None:
        self.run, self.first = run, first
        self.pages: dict[int, int] = {}  # bus address -> address
        monkeypatch.setattr(bus, "allocate", self.allocate)

    def allocate(self, device: object, nbytes: int) -> tuple[np.ndarray, BusMemory]:
        raw = np.full(nbytes + PAGE, 0xEE, np.uint8)
        memory = raw[-address_of(raw) % PAGE :][:nbytes]
        numbers = np.arange(-(-nbytes // PAGE))
        runs = (numbers + self.run - self.first) // self.run
        pages = ((1 << 30) + numbers * PAGE + runs * (1 << 30)).astype(np.uint64)
        addresses = address_of(memory) + numbers * PAGE
        self.pages.update(zip(pages.tolist(), addresses.tolist(), strict=True))
        return memory, BusMemory(address_of(memory), nbytes, pages, 12)

    def host(self, address: int, nbytes: int) -> int:
        """The host address of memory that is contiguous there and on the bus."""
        each = [self.pages[address + at] for at in range(0, nbytes, PAGE)]
        assert np.diff([*each]).tolist() == [PAGE] * (len(each) - 1)
        return each[0]


class Registers:
    doorbells = np.zeros(4096, np.uint8)
    max_depth = 0

    def offsets(self, qid: int) -> tuple[int, int]:
        return 8 * qid, 8 * qid + 4


class Launches:
    """Launches that do nothing; `outcome` is what `wait()` raises, or the statuses it returns."""

    def __init__(self, pairs: np.ndarray, prp_list_bus: np.ndarray) -> None:
        self.pairs, self.prp_list_bus = pairs, prp_list_bus
        self.batches: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
        self.outcome: Any = None
        self.stopping: list[BaseException] = []  # what `stop()` raises
        self.running = False

    def start(self, batch: np.ndarray, **columns: np.ndarray) -> None:
        self.running = True
        self.batches.append((batch, columns))

    def wait(self) -> np.ndarray:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        self.running = False
        count = int(self.batches[-1][0]["count"])
        return np.zeros(count, np.uint32) if self.outcome is None else np.array(self.outcome)

    def stop(self) -> None:
        if self.stopping:
            raise self.stopping.pop()
        self.running = False


class Launcher:
    def __init__(self) -> None:
        self.made: list[Launches] = []

    def map_memory(self, memory: np.ndarray) -> int:
        return address_of(memory) + MOVED

    def launches(self, pairs: np.ndarray, prp_list_bus: np.ndarray) -> Launches:
        self.made.append(Launches(pairs, prp_list_bus))
        return self.made[-1]
