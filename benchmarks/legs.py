"""The legs: the ways to read that are compared. A new leg is one entry of a table."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from nvidia.dali import fn

from dali_storage import BackendUnavailable, Reader, readers
from dali_storage.backends.linux import pci
from dali_storage.contract import registry
from dali_storage.contract.devices import problem_of

from .environment import available_memory_bytes
from .pipelines import ARGUMENTS, Build, Nodes, read_naively, read_with_io_file, reading
from .workload import Workload, order_of


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of dali_storage.

    Attributes:
        takes: settings that are its options, too; those that are None are left to the backend.
        direct: its option of that name, if it has one.
        copies: its option io is "read", so that containers are not mapped.
        bare: it is the default; without options, a reader is called without naming it.
        submits: a GPU submits its commands, whatever memory it reads into.
    """

    name: str
    takes: tuple[str, ...] = ()
    direct: bool | None = None
    copies: bool = False
    submits: bool = False
    bare: bool = False

    def options(self, workload: Workload) -> dict[str, Any]:
        """Its options for a workload."""
        settings = asdict(workload.settings) | {"bmap": workload.bmap}
        values = {name: settings[name] for name in self.takes} | {"direct": self.direct}
        if self.submits or values.get("mem", "cpu") != "cpu":
            values["gpu"] = workload.settings.device_id
        if self.copies:
            values["io"] = "read"
        return {name: value for name, value in values.items() if value is not None}

    def arguments(self, workload: Workload) -> dict[str, Any]:
        """The arguments of its reader that say how to read."""
        options: dict[str, Any] = {}
        if (given := self.options(workload)) or not self.bare:
            options = {"backend": self.name, "backend_options": given}
        if "mem" in self.takes and workload.settings.mem == "gpu":
            options["device"] = "gpu"
        elif workload.settings.pinned != "auto":
            options["pinned"] = workload.settings.pinned == "yes"
        return options

    def open(self, workload: Workload) -> Reader:
        """The backend's reader of all files."""
        options = self.options(workload)
        return registry.configure(self.name, options)(workload.catalog, **options)

    def unavailable(self) -> str | None:
        """Why the backend does not work on this machine, or None."""
        try:
            problem = problem_of(registry.load(self.name))
        except (BackendUnavailable, ValueError) as error:  # a package or the backend is missing
            return str(error)
        return None if problem is None else str(problem)


@dataclass(frozen=True, slots=True)
class Family:
    """Legs that are compared with the same baselines, and verified against the same samples.

    Attributes:
        baselines: their speed is compared with that of the fastest of these in each round.
        expected: the samples that they are verified against, for messages.
        truth: builds the stream of these samples.
    """

    baselines: tuple[str, ...]
    expected: str
    truth: Build


Need = Callable[[Workload], str | None]
"""Says why a leg cannot run here, or None."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One way to read the samples of a `Workload`.

    Attributes:
        build: opens a stream of the samples.
        summary: for the help.
        backend: the backend that reads; None without dali_storage.
        needs: further conditions than that the backend is available.
        adapt: makes the workload that is given to `build`, such as one in the leg's own order.
        cached: all samples are read before the first round.
    """

    name: str
    family: Family
    build: Build
    summary: str = ""
    backend: Backend | None = None
    needs: tuple[Need, ...] = ()
    adapt: Callable[[Workload], Workload] = lambda workload: workload
    cached: bool = False

    def takes(self, setting: str) -> bool:
        """Whether a setting of that name is an option of its backend."""
        return self.backend is not None and setting in self.backend.takes

    def unsupported_reason(self, workload: Workload) -> str | None:
        """Why the leg cannot run here, or None."""
        if workload.root is None and not self.takes("bmap"):
            return "it reads files, and their file system is not mounted"
        for need in self.needs:
            if reason := need(workload):
                return reason
        return None if self.backend is None else self.backend.unavailable()

    def check(self, workload: Workload) -> None:
        """Open the backend once, for its errors."""
        if workload.shards:
            with self.build(self.adapt(workload), True):
                pass
        elif self.backend is not None:
            self.backend.open(workload).close()


def takes_nvme_commands_only(uri: str) -> bool:
    """Whether `uri` is a character device or a PCI address, which only NVMe commands can read."""
    if pci.address_of(uri) is not None:
        return True
    return os.path.exists(uri) and stat.S_ISCHR(os.stat(uri).st_mode)


def _unless(wrong: Callable[[Workload], bool], reason: str) -> Need:
    return lambda workload: reason if wrong(workload) else None


def direct_io(workload: Workload) -> str | None:
    """Why the files cannot be read around the page cache, or None."""
    try:
        os.close(os.open(workload.catalog.path(0), os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        return f"a file cannot be opened with O_DIRECT ({error.strerror})"
    return None


def _opens(backend: Backend, workload: Workload) -> str | None:
    try:
        backend.open(workload).close()
    except (BackendUnavailable, OSError, ValueError) as error:
        return str(error)
    return None


def _block_device(workload: Workload) -> str | None:
    uri = workload.settings.uri
    if uri is not None and takes_nvme_commands_only(uri):
        return f"--uri {uri} is neither a block device nor an image; xnvme-block may read it"
    return None


def _controller(workload: Workload) -> str | None:
    if pci.address_of(workload.settings.uri or "") is None:
        return "it needs the PCI address of an NVMe controller: --uri 0000:3b:00.0"
    return None


def _controller_for_gpu(workload: Workload) -> str | None:
    reason = workload.settings.mem == "gpu" and _controller(workload)
    return f"--mem gpu: {reason}" if reason else None


def _room_in_memory(workload: Workload) -> str | None:
    data, free = workload.sizes.sum() / 1e9, available_memory_bytes() / 1e9
    if data > free / 2:
        return f"the data ({data:.1f} GB) would fill more than half of the free {free:.1f} GB"
    return None


_PAGE_LOCKED = _unless(
    lambda it: it.settings.mem == "pinned", "it reads into --mem cpu, which is page-locked, or gpu"
)
_HOST_MEMORY = _unless(
    lambda it: it.settings.mem == "gpu", "images in GPU memory (--mem gpu) cannot be decoded"
)
_SEED = _unless(lambda it: it.settings.seed is None, "without --seed nothing is shuffled")


def _given(setting: str) -> Need:
    return _unless(lambda it: getattr(it.settings, setting) is None, f"it needs --{setting}")


def _reads(operator: str, backend: Backend | None = None, **options: Any) -> Build:
    """A reader of DALI, or of dali_storage by a backend, with the seed of the workload."""

    def read(workload: Workload) -> Nodes:
        given = ARGUMENTS[operator](workload) | options
        if backend is not None:
            given |= backend.arguments(workload)
        if workload.settings.seed is not None:
            given |= {"random_shuffle": True, "seed": workload.settings.seed}
        reader = getattr(fn.readers if backend is None else readers, operator)
        nodes = reader(name="Reader", **given)
        data, labels = nodes.values() if operator == "tfrecord" else nodes
        return data, labels

    return reading(read)


_READ_BY_DALI = _reads("file", dont_use_mmap=True)  # by mmap, it refuses empty files
_FILES = Family(("dali", "dali-nommap"), "fn.readers.file", _READ_BY_DALI)


def _file_leg(name: str, backend: Backend, summary: str, *needs: Need) -> Leg:
    return Leg(name, _FILES, _reads("file", backend), summary, backend, needs)


UNCACHED = Backend("python-file", ("copying_lanes",), direct=True)
_XNVME_FILE = Backend("xnvme-file", ("copying_lanes", "io"))
_BLOCK = Backend("block", ("bmap", "uri"))
REFERENCE = Leg("dali-nommap", _FILES, _READ_BY_DALI, "the same by read()")
BLOCK = _file_leg("block", _BLOCK, "block: extents, found by a map (--bmap)", _block_device)
XNVME_BLOCK = _file_leg(
    "xnvme-block",
    Backend("xnvme-block", ("bmap", "uri", "io", "mem", "queues", "spin")),
    "the extents by NVMe commands (--uri, --io, --mem, --queues, --spin)",
    _controller_for_gpu,
)
XNVME_BAM = _file_leg(
    "xnvme-bam",
    Backend("xnvme-bam", ("bmap", "uri", "mem", "queues"), submits=True),
    "xnvme-bam: the same, submitted by a GPU (--uri, --mem, --queues)",
    *(_controller, _PAGE_LOCKED),
)
MAPPED = (BLOCK, XNVME_BLOCK, XNVME_BAM)
"""The legs that need an extent map."""
PYTHON_FILE = _file_leg(
    "python-file",
    Backend("python-file", ("copying_lanes",), bare=True),
    "readers.file: the call swapped, and nothing else",
)
_DIRECT = _file_leg("python-file-direct", UNCACHED, "python-file: files, O_DIRECT", direct_io)
_MEMORY = _file_leg(
    "memory",
    Backend("memory"),
    "memory: files, loaded beforehand; the upper limit",
    _room_in_memory,
)


def _decoded(leg: Leg) -> Leg:
    """The leg in a pipeline that decodes its images."""
    family = replace(_FILES, baselines=("dali-decoded", "dali-nommap-decoded"))
    needs = (
        _unless(lambda it: it.settings.decode, "--decode: all readers do"),
        _HOST_MEMORY,
        *leg.needs,
    )

    def adapt(workload: Workload) -> Workload:
        return replace(workload, settings=replace(workload.settings, decode=True))

    name = f"{leg.name}-decoded".replace("python-file-", "")
    summary = f"{leg.name}, with fn.decoders.image"
    return replace(leg, name=name, family=family, needs=needs, adapt=adapt, summary=summary)


_IO_FILE = "fn.io.file.read, with paths from external_source"
_MMAP = Leg("dali", _FILES, _reads("file"), "fn.readers.file by mmap")
LEGS = (
    _MMAP,
    REFERENCE,
    PYTHON_FILE,
    Leg("dali-io-file", _FILES, reading(read_with_io_file), _IO_FILE),
    _DIRECT,
    _file_leg(
        "xnvme-file",
        _XNVME_FILE,
        "xnvme-file: files, by libxnvme (--io)",
        partial(_opens, _XNVME_FILE),
    ),
    *MAPPED,
    _MEMORY,
    Leg("naive", _FILES, reading(read_naively), "the Python iterator that a user would write"),
    *map(_decoded, (_MMAP, REFERENCE, PYTHON_FILE)),
)


_COPIED = _file_leg(
    "python-file-read",
    Backend("python-file", copies=True),
    'python-file: containers, io="read"',
)
_ENDS = {
    "": PYTHON_FILE,
    "-read": _COPIED,
    "-direct": _DIRECT,
    "-block": BLOCK,
    "-memory": _MEMORY,
}
"""Legs by the ends of the names of those that read containers by the same backend."""


def _container_legs(form: str, label: type[np.signedinteger[Any]], **modes: Any) -> Iterator[Leg]:
    """The legs of a format: DALI's with the arguments of each of its `modes`, and ours."""
    names = tuple(f"dali-{form}-{mode}".removesuffix("-mmap") for mode in modes)
    family = Family(names, "the files", reading(partial(read_naively, dtype=label)))

    def in_windows(workload: Workload) -> Workload:  # as DALI's readers of containers shuffle
        counts = workload.shards[form].counts
        return replace(workload, order=order_of(len(workload.catalog), workload.settings, counts))

    for name, options in zip(names, modes.values(), strict=True):
        yield Leg(name, family, _reads(form, **options), adapt=in_windows)
    ours = {end: replace(leg, name=f"{form}{end}", family=family) for end, leg in _ENDS.items()}
    for leg in ours.values():
        yield replace(leg, build=_reads(form, leg.backend), adapt=in_windows)
    for end, leg in ours.items():
        if end != "-memory":
            build = _reads(form, leg.backend, shuffle="samples")
            yield replace(leg, name=f"{leg.name}-samples", build=build, needs=(_SEED, *leg.needs))


_NO_MMAP = {"dont_use_mmap": True}
_WEBDATASET = tuple(_container_legs("webdataset", np.int32, mmap={}, nommap=_NO_MMAP))
_TARS = _WEBDATASET[0].family
CONTAINER_LEGS = (
    *_WEBDATASET,
    *_container_legs(
        "tfrecord", np.int64, mmap={}, nommap=_NO_MMAP, direct=_NO_MMAP | {"use_o_direct": True}
    ),
    *(
        replace(of, name=f"records{end}", family=_TARS, build=_reads("records", of.backend))
        for end, of in _ENDS.items()
    ),
)
"""Names that end with -samples: the whole data set is shuffled, not a window of it."""

_THREADS = 2, 8, 16, 32
"""Of DALI: as many requests are under way, but 25 at most. The best number depends on the store."""
_OBJECTS = Family(
    tuple(f"dali-s3-{threads}" for threads in _THREADS),
    "the files in --datadir",
    reading(read_naively),
)


def _at_url(workload: Workload, threads: int | None = None) -> Workload:
    """The workload as objects below --url, with the threads of the leg if it has its own."""
    settings = workload.settings
    settings = replace(settings, threads=threads or settings.threads)
    return replace(workload, root=settings.url, settings=settings)


def _object_leg(name: str, *settings: str) -> Leg:
    """A leg of ours that takes --requests, and needs `settings`."""
    backend, needs = Backend("object-store", ("requests", *settings)), map(_given, settings)
    build, cached = _reads("file", backend), "cache" in settings
    return Leg(name, _OBJECTS, build, "", backend, tuple(needs), _at_url, cached)


OBJECT_LEGS = (
    *(
        Leg(name, _OBJECTS, _reads("file"), adapt=partial(_at_url, threads=threads))
        for name, threads in zip(_OBJECTS.baselines, _THREADS, strict=True)
    ),
    _object_leg("object-store"),
    _object_leg("object-store-hedged", "hedge"),
    _object_leg("object-store-cached", "cache"),
    replace(PYTHON_FILE, family=replace(_FILES, baselines=_OBJECTS.baselines)),
)

UNTUNED = {
    "python-file": "",
    "decoded": "decoded",
    "object-store": "",
    "webdataset": "tars",
    "tfrecord": "TFRecord",
}
"""The legs without an option, and what the verdict adds to the situation."""
TABLES = {"compare": LEGS, "containers": CONTAINER_LEGS, "objects": OBJECT_LEGS}
"""The legs of the commands that run several."""
