"""The legs: the ways to read that are compared. A new leg is one entry of `LEGS`."""

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from nvidia.dali import fn

from bmap_tools.console import Tick
from dali_storage import BackendUnavailable, Reader, readers
from dali_storage.backends.linux import pci
from dali_storage.contract import registry

from .environment import available_memory_bytes
from .pipelines import Nodes, read_files, read_naively, read_with_io_file
from .workload import BadInputError, Settings, Workload

BASELINES = ("dali", "dali-nommap")
"""The other legs that read files are compared with the faster of these."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of dali_storage.

    Attributes:
        takes: settings that are its options, too; those that are None are left to the backend.
        direct: its option of that name, if it has one.
        submits: a GPU submits its commands, whatever memory it reads into.
    """

    name: str
    takes: tuple[str, ...] = ()
    direct: bool | None = None
    submits: bool = False

    def options(self, workload: Workload) -> dict[str, Any]:
        """Its options for a workload."""
        settings = asdict(workload.settings) | {"bmap": workload.bmap}
        values = {name: settings[name] for name in self.takes} | {"direct": self.direct}
        if self.submits or values.get("mem", "cpu") != "cpu":
            values["gpu"] = workload.settings.device_id
        return {name: value for name, value in values.items() if value is not None}

    def arguments(self, workload: Workload) -> dict[str, Any]:
        """The arguments of its reader that say how to read."""
        options: dict[str, Any] = {"backend": self.name, "backend_options": self.options(workload)}
        if "mem" in self.takes and workload.settings.mem == "gpu":
            options["device"] = "gpu"
        elif workload.settings.pinned != "auto":
            options["pinned"] = workload.settings.pinned == "yes"
        return options

    def read(self, workload: Workload) -> Nodes:
        """The operator that reads."""
        return read_files(readers.file, workload, **self.arguments(workload))

    def open(self, workload: Workload) -> Reader:
        """The backend's reader of all samples."""
        options = self.options(workload)
        return registry.configure(self.name, options)(workload.catalog, **options)

    def unavailable(self, workload: Workload) -> str | None:
        """Why the backend does not work on this machine, or None."""
        try:
            problem = registry.load(self.name).unavailable()
        except (BackendUnavailable, ValueError) as error:  # a package or the backend is missing
            return str(error)
        return None if problem is None else str(problem)


@dataclass(frozen=True, slots=True)
class Leg:
    """One way to read the samples of a `Workload`.

    Attributes:
        read: makes the operators that read; called while a pipeline is being defined.
        unsupported: why the leg cannot run here even if there are files, or None.
        backend: what reads; None without dali_storage.
        baselines: the legs whose faster one in each round it is compared with.
    """

    name: str
    summary: str
    read: Callable[[Workload], Nodes]
    unsupported: Callable[[Workload], str | None] = lambda workload: None
    backend: Backend | None = None
    baselines: tuple[str, ...] = BASELINES

    def takes(self, setting: str) -> bool:
        """Whether a setting of that name is an option of its backend."""
        return self.backend is not None and setting in self.backend.takes

    def unsupported_reason(self, workload: Workload) -> str | None:
        """Why the leg cannot run here, or None."""
        if workload.root is None and not self.takes("bmap"):
            return "it reads files, and their file system is not mounted"
        return self.unsupported(workload)

    def ordered(self, workload: Workload) -> Workload:
        """The workload in the order in which the leg reads it."""
        return workload

    def warm(self, workload: Workload, tick: Tick) -> None:
        """Prepare for the first round. `tick` gets how many batches have been read."""

    def check(self, workload: Workload) -> None:
        """Open the backend once, for its errors."""
        if self.backend is not None:
            self.backend.open(workload).close()

    def truth(self, workload: Workload) -> Nodes:
        """What the leg is verified against, an operator; `expected` names it."""
        return REFERENCE.read(workload)

    @property
    def expected(self) -> str:
        """What the leg is verified against, for messages."""
        return "fn.readers.file"


def takes_nvme_commands_only(uri: str) -> bool:
    """Whether `uri` is a character device or a PCI address, which only NVMe commands can read."""
    if pci.address_of(uri) is not None:
        return True
    return os.path.exists(uri) and stat.S_ISCHR(os.stat(uri).st_mode)


_CACHED = Backend("python-file", ("copying_lanes",), direct=False)
_DIRECT = Backend("python-file", ("copying_lanes",), direct=True)
_XNVME_FILE = Backend("xnvme-file", ("copying_lanes", "io"))
_BLOCK = Backend("block", ("bmap", "uri"))
_XNVME_BLOCK = Backend("xnvme-block", ("bmap", "uri", "io", "mem", "queues", "spin"))
_XNVME_BAM = Backend("xnvme-bam", ("bmap", "uri", "mem", "queues"), submits=True)
_MEMORY = Backend("memory")


def _no_direct_io(workload: Workload) -> str | None:
    try:
        os.close(os.open(workload.catalog.path(0), os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        return f"a file cannot be opened with O_DIRECT ({error.strerror})"
    return _DIRECT.unavailable(workload)


def _no_xnvme_file(workload: Workload) -> str | None:
    try:
        _XNVME_FILE.open(workload).close()
    except (BackendUnavailable, OSError, ValueError) as error:
        return str(error)
    return None


def _no_block(workload: Workload) -> str | None:
    uri = workload.settings.uri
    if uri is not None and takes_nvme_commands_only(uri):
        return f"--uri {uri} is neither a block device nor an image; xnvme-gds may read it"
    return _BLOCK.unavailable(workload)


def _no_xnvme_block(workload: Workload) -> str | None:
    if workload.settings.mem == "gpu" and (reason := _no_controller(workload)):
        return f"--mem gpu: {reason}"
    return _XNVME_BLOCK.unavailable(workload)


def _no_xnvme_bam(workload: Workload) -> str | None:
    if reason := _no_controller(workload):
        return reason
    if workload.settings.mem == "pinned":
        return "it reads into --mem cpu, which is page-locked, or gpu"
    return _XNVME_BAM.unavailable(workload)


def _no_controller(workload: Workload) -> str | None:
    uri = workload.settings.uri
    if uri is None or pci.address_of(uri) is None:
        return "it needs the PCI address of an NVMe controller: --uri 0000:3b:00.0"
    return None


def _no_memory(workload: Workload) -> str | None:
    data, free = workload.sizes.sum() / 1e9, available_memory_bytes() / 1e9
    if data > free / 2:
        return f"the data ({data:.1f} GB) would fill more than half of the free {free:.1f} GB"
    return _MEMORY.unavailable(workload)


def _leg(
    name: str,
    summary: str,
    backend: Backend,
    unsupported: Callable[[Workload], str | None] | None = None,
) -> Leg:
    return Leg(name, summary, backend.read, unsupported or backend.unavailable, backend)


_read_by_dali = partial(read_files, fn.readers.file)
_MMAP = Leg(BASELINES[0], "fn.readers.file by mmap", _read_by_dali)
_NO_MMAP = Leg(BASELINES[1], "the same by read()", partial(_read_by_dali, dont_use_mmap=True))
REFERENCE = _NO_MMAP
"""What the other legs are verified against. Not the leg by mmap, which refuses empty files."""
BLOCK = _leg("block", "block: extents, found by a map (--bmap)", _BLOCK, _no_block)
XNVME_GDS = _leg(
    "xnvme-gds",
    "xnvme-block: the same by NVMe commands (--uri, --io, --mem, --queues, --spin)",
    *(_XNVME_BLOCK, _no_xnvme_block),
)
XNVME_BAM = _leg(
    "xnvme-bam",
    "xnvme-bam: the same, submitted by a GPU (--uri, --mem, --queues)",
    *(_XNVME_BAM, _no_xnvme_bam),
)
MAPPED = (BLOCK, XNVME_GDS, XNVME_BAM)
"""The legs that need an extent map."""

LEGS = (
    _MMAP,
    _NO_MMAP,
    Leg("dali-io-file", "fn.io.file.read, with paths from external_source", read_with_io_file),
    _leg("python-file", "python-file: files, page cache", _CACHED),
    _leg("python-file-direct", "python-file: files, O_DIRECT", _DIRECT, _no_direct_io),
    _leg("xnvme-file", "xnvme-file: files, by libxnvme (--io)", _XNVME_FILE, _no_xnvme_file),
    BLOCK,
    XNVME_GDS,
    XNVME_BAM,
    _leg("memory", "memory: files, loaded beforehand; the upper limit", _MEMORY, _no_memory),
    Leg("naive", "the Python iterator that a user would write", read_naively),
)


def names_of(legs: Iterable[Leg]) -> str:
    """The names of legs, for a sentence."""
    *names, last = (leg.name for leg in legs)
    return f"{', '.join(names)} and {last}" if names else last


def refuse_unused(settings: Settings, legs: Sequence[Leg]) -> None:
    """Refuse settings that no backend of the legs takes, with a BadInputError."""
    given = asdict(settings) | {"mem": settings.mem == "pinned"}  # gpu is for the consumer, too
    for name in ("bmap", "uri", "io", "mem", "queues", "spin", "copying_lanes"):
        if given[name] and not any(leg.takes(name) for leg in legs):
            takers = names_of(leg for leg in LEGS if leg.takes(name))
            option = f"--{name.replace('_', '-')}"
            raise BadInputError(f"{option} is for the legs {takers}, and none of them is to run")
