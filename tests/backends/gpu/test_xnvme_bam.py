"""Opening and closing an xnvme-bam reader, with stand-ins for the controller and the GPU.

What it reads is in tests/nvme_vm.
"""

import errno
import gc
import sys
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from dali_storage.backends import xnvme_bam
from dali_storage.backends.extents import reader as extents_reader
from dali_storage.backends.gpu import requirements
from dali_storage.backends.xnvme.bus import BusMemory
from dali_storage.backends.xnvme_bam import XnvmeBamReader
from dali_storage.contract._types import address_of
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable
from tests.kit.gpu_controller import Controller, Launcher, Registers
from tests.kit.gpu_machine import DRIVER, FILES, NVME, VERSION, GpuMachine

GET_FEATURES, CREATE, DELETE = [10], [5, 1], [0, 4]
COMMANDS = GET_FEATURES + 2 * CREATE + [5, 5] + CREATE  # two identifiers are taken by then


class Machine:
    """A controller, at most one reader of it, and what that has.

    Attributes:
        failing: the name of a step -> what it raises.
        options: what the parts of a reader were given.
        where: the address of a buffer.
        made: the launches of each lane.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.admin = Controller()
        self.mapped = self.is_open = False
        self.failing = {}
        self.options = {}
        self.where = address_of
        self.max_depth = 1024
        launcher = Launcher()
        self.made, self.page_locked = launcher.made, []
        map_memory = launcher.map_memory
        launcher.map_memory = lambda memory: self.page_locked.append(memory) or map_memory(memory)
        launcher.map_registers = lambda doorbells: self.fail("map_registers") or 5000
        for name, value in {
            "module": SimpleNamespace(Launcher=partial(self.launcher, launcher)),
            "_library": lambda: None,
            "require_access": lambda address: None,
            "load_map": lambda bmap: None,
            "Registers": self.registers,
        }.items():
            monkeypatch.setattr(xnvme_bam, name, value)
        monkeypatch.setattr(extents_reader, "open_mapped", self.open)
        monkeypatch.setattr(extents_reader, "MappedSamples", self.samples)

    def fail(self, step):
        if step in self.failing:
            raise self.failing[step]

    def launcher(self, launcher, gpu):
        self.options["gpu"] = gpu
        return launcher

    def transfer(self, backend, wanted, default):
        return wanted or default

    def open(self, uri, loaded, root, opener):
        self.options |= {"uri": uri, "nsid": opener.keywords["nsid"]}
        self.is_open = True
        return (
            SimpleNamespace(
                device=self.admin,
                storage=SimpleNamespace(path=NVME),
                lba_bytes=512,
                transfer=self.transfer,
                close=self.close,
            ),
            0,
        )

    def close(self):
        assert self.admin.queues == {}
        self.is_open = False

    def registers(self, address, granted):
        self.fail("Registers")
        found = Registers()
        found.max_depth, self.mapped = self.max_depth, True
        weakref.finalize(found, self.unmap)
        return found

    def unmap(self):
        assert self.admin.queues == {}  # a GPU may write to their doorbells
        self.mapped = False

    def samples(self, *_, **options):
        self.fail("MappedSamples")
        self.options |= options
        return SimpleNamespace(alignment=4096, read=self.read_one, close=lambda: None)

    def read_one(self, batch, lane, submit):
        """Read a block by a command."""
        columns = ("offsets", 0), ("memory", self.where(batch.buffer)), ("lengths", 512)
        submit(SimpleNamespace(**{name: np.array([value]) for name, value in columns}))

    def reader(self, queues=3, **options):
        catalog = SimpleNamespace(root=b"/")
        return XnvmeBamReader(catalog, bmap="map", uri=NVME, queues=queues, **options)

    def require_nothing_left(self):
        gc.collect()
        assert self.admin.queues == {}
        assert (self.mapped, self.is_open) == (False, False)


@pytest.fixture
def machine(memory, kept, monkeypatch):
    return Machine(monkeypatch)


def test_closing_deletes_the_queues_then_unmaps_the_registers_then_closes(machine):
    reader = machine.reader()
    assert (machine.mapped, machine.is_open, reader.lanes) == (True, True, 2)
    assert {qid for _, qid in machine.admin.queues} == {8, 7, 6}
    reader.close()
    machine.require_nothing_left()
    assert machine.admin.log == COMMANDS + 3 * DELETE
    reader.close()


def test_options_of_a_reader_go_to_its_parts(machine):
    options = {"gpu": 3, "nsid": 2, "retries": 7, "check": False, "max_transfer": 8192}
    with machine.reader(1, **options) as reader:
        assert (reader.lanes, reader.device, reader.pinned, reader.gpu) == (1, "cpu", True, None)
        memory = reader.allocate(5000)
        assert machine.page_locked[-1] is memory
    assert machine.options == {"uri": NVME, "lanes": 1, **options}
    with machine.reader(1):
        assert machine.options["max_transfer"] == 2 << 20


class Peer:
    """Memory of GPU 1."""

    flushes = 0

    def __init__(self, gpu: int, address: str) -> None:
        assert (gpu, address) == (1, NVME)
        self.allocated = []

    def allocate(self, nbytes):
        self.allocated.append(np.zeros(nbytes, np.uint8))
        return self.allocated[-1]

    def find(self, memory):
        pages = np.arange(memory.nbytes // 4096, dtype=np.uint64) << np.uint64(12)
        return BusMemory(1 << 30, memory.nbytes, pages + np.uint64(7 << 40), 12)

    def flush(self):
        self.flushes += 1


def test_completion_queues_are_in_the_memory_of_the_gpu_and_that_is_flushed(machine, monkeypatch):
    monkeypatch.setattr(xnvme_bam, "PeerMemory", Peer)
    machine.where = lambda buffer: 1 << 30
    with machine.reader(1, mem="gpu", gpu=1) as reader:
        assert (reader.device, reader.pinned, reader.gpu) == ("gpu", False, 1)
        ((there, _),) = [at for at in machine.admin.queues.items() if not at[0][0]]
        assert machine.admin.queues[there][0] == 7 << 40
        (launches,) = machine.made
        assert launches.pairs["completion_queue"].tolist() == [1 << 30]
        peer = reader._peer
        reader.read(SimpleNamespace(buffer=reader.allocate(4096)), 0)
        assert peer.flushes == 1


def test_each_lane_has_a_queue_of_its_own(machine):
    with machine.reader(3) as reader:
        for lane in (1, 0, 1):
            batch = SimpleNamespace(buffer=reader.allocate(4096))
            reader.read(batch, lane)
        assert [len(launches.batches) for launches in machine.made] == [1, 2]
        assert machine.made[0].batches[0][0]["patience_ns"] == 10_000_000_000


FAILURE, INTERRUPT = OSError(errno.EIO, "it fails"), KeyboardInterrupt()
STEPS = ("map_registers", "Registers", "MappedSamples")
BROKEN = [({step: it}, {}) for step in STEPS for it in (FAILURE, INTERRUPT)]
BROKEN += [({}, {number: it}) for number in range(len(COMMANDS)) for it in (0x006, INTERRUPT)]
BROKEN += [({"MappedSamples": INTERRUPT}, {len(COMMANDS) + 1: INTERRUPT})]  # a second Ctrl-C


@pytest.mark.parametrize(("steps", "commands"), BROKEN)
def test_nothing_is_left_of_a_reader_that_cannot_be_opened(machine, steps, commands):
    machine.failing |= steps
    machine.admin.fails |= commands
    with pytest.raises((OSError, KeyboardInterrupt)) as caught:
        machine.reader()
    assert steps or getattr(caught.value, "filename", NVME) == NVME
    for error in (caught.value, FAILURE, INTERRUPT):
        error.__traceback__ = None
    del caught, error
    machine.require_nothing_left()


@pytest.mark.parametrize("number", range(len(3 * DELETE)))
def test_closing_goes_on_after_ctrl_c(machine, number):
    reader = machine.reader()
    machine.admin.fails[len(COMMANDS) + number] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        reader.close()
    machine.require_nothing_left()


def test_deeper_queues_than_the_controller_has_are_refused(machine):
    machine.max_depth = 64
    with pytest.raises(ValueError, match=f"at most 64, the entries of a queue of {NVME}, not 6"):
        machine.reader(queue_depth=65)
    machine.require_nothing_left()
    machine.reader(queue_depth=64).close()


@pytest.mark.parametrize("granted", [1, 2, 3])
def test_more_queues_than_the_controller_grants_are_refused(machine, granted):
    machine.admin.granted = granted
    most = f"{NVME} grants {granted} queue pairs, of which libxnvme uses 2"
    with pytest.raises((ValueError, BackendUnavailable)) as caught:
        machine.reader(2)
    message = "queues must be at most 1, not 2" if granted == 3 else "use xnvme-block"
    assert most in str(caught.value)
    assert message in str(caught.value)
    del caught
    machine.require_nothing_left()
    assert machine.admin.log == GET_FEATURES


def test_an_error_of_opening_that_names_a_file_keeps_its_name(machine):
    machine.failing["Registers"] = OSError(errno.EMFILE, "Too many open files", "/dev/module")
    with pytest.raises(OSError) as caught:
        machine.reader()
    assert caught.value.filename == "/dev/module"


# What is missing


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("/dev/nvme0n1", "uri must be the PCI address .*'/dev/nvme0n1'; .* xnvme-block"),
        (None, "uri must be the PCI address"),
        (b"0000:00:04.0", "uri must be the PCI address"),
    ],
)
def test_a_uri_that_is_no_pci_address_is_refused_by_name(uri, reason):
    with pytest.raises((ValueError, TypeError), match=f"xnvme-bam: {reason}"):
        XnvmeBamReader(Catalog.from_names([], []), bmap="/no/map", uri=uri)


def test_without_a_driver_or_cupy_it_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.setattr(xnvme_bam.library, "load", lambda: SimpleNamespace(version="main"))
    monkeypatch.setattr(xnvme_bam, "cuda_problem", lambda: requirements.cuda_problem(str(tmp_path)))
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "NVIDIA's driver is not loaded; install NVIDIA's driver" in str(
        XnvmeBamReader.unavailable()
    )
    (tmp_path / VERSION).parent.mkdir(parents=True)
    (tmp_path / VERSION).write_text(FILES[VERSION])
    assert "CuPy, which cannot be imported" in str(XnvmeBamReader.unavailable())
    assert "[cuda12]' (or cuda13)" in str(XnvmeBamReader.unavailable())


def test_a_libxnvme_without_upcie_is_unavailable(monkeypatch):
    monkeypatch.setattr(xnvme_bam.library, "load", lambda: SimpleNamespace(version="0.7.5"))
    assert "use a libxnvme of the main branch" in str(XnvmeBamReader.unavailable())


def test_a_controller_that_lacks_something_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    machine, needs = GpuMachine(tmp_path / "machine"), requirements.submission_needs
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(xnvme_bam.pci, "require_controller", lambda address: None)
    monkeypatch.setattr(xnvme_bam, "submission_needs", partial(needs, root=str(machine.base)))
    xnvme_bam.require_access(NVME)
    machine.change({DRIVER: "vfio-pci"})
    with pytest.raises(BackendUnavailable, match=f"to {NVME}: it needs the driver uio_pci_gene"):
        xnvme_bam.require_access(NVME)


def test_an_address_without_a_controller_is_an_error():
    with pytest.raises(FileNotFoundError, match="lspci -D"):
        xnvme_bam.require_access("ffff:ff:1f.7")
