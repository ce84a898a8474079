"""Checks of a machine's requirements for reads into GPUs, from sysfs and procfs.

Nothing is bound or changed. Each function has the parameter `root`, the directory with `dev`,
`proc` and `sys`.

Sources: the README of NVIDIA's Linux driver, chapter "The /proc Interface"; NVIDIA's GPUDirect
Storage guide.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from ...contract.devices import DeviceStatus
from ...contract.errors import BackendUnavailable
from ...runtime import cuda
from ..linux import pci
from ..linux.pci import FUNCTIONS, Need, problem_of
from ..linux.sysfs import sysfs_text

MODULE = "dev/dmabuf_import"
"""The device of the kernel module dmabuf_import, below the root directory."""
LARGER_BAR1 = "enable Above 4G Decoding and Resizable BAR in the firmware, if the GPU has it"
"""The remedy for a small BAR1."""

_DISPLAY_CLASS, _NVIDIA = "0x03", "0x10de"
_VERSION = "proc/driver/nvidia/version"
_SMALL_BAR1 = 256 << 20  # bytes; the BAR1 of GPUs without Resizable BAR

_OPEN = Need("the open kernel modules of NVIDIA's driver", "install them (package nvidia-open)")
_IMPORT = Need(
    f"/{MODULE}",
    "install the module (package dmabuf-import-dkms of github.com/safl/upcie) and load it: "
    f"modprobe dmabuf_import; in a container: --device /{MODULE}",
)
_P2PDMA = "PCI P2PDMA of driver and kernel"
_565 = r"Open Kernel Module.* (56[5-9]|5[7-9]\d|[6-9]\d\d)\."
_MULTIPATH = "sys/module/nvme_core/parameters/multipath"
_STATIC_BAR1 = (
    'options nvidia NVreg_RegistryDwords="RMForceStaticBar1=1;RmForceDisableIomapWC=1;" '
    "in /etc/modprobe.d/nvidia.conf"
)
# NVIDIA's own ways from storage to GPU memory: a file, its expected content, the requirement, and
# the remedy.
_CUFILE = (
    ("nvidia-fs", "proc/driver/nvidia-fs/stats", ".", "the module nvidia-fs", "modprobe nvidia-fs"),
    (_P2PDMA, _VERSION, _565, f"{_OPEN.what}, version 565 or newer", _OPEN.how),
    (_P2PDMA, "proc/kallsyms", "p2pdma_pgmap_ops", "CONFIG_PCI_P2PDMA", "boot Linux 6.2 or newer"),
    (_P2PDMA, "proc/driver/nvidia/params", "RMForceStaticBar1=1", "a static BAR1", _STATIC_BAR1),
    (_P2PDMA, _MULTIPATH, "^(?!Y)", "NVMe without multipath", "boot with nvme_core.multipath=N"),
)


def list_gpus(root: str = "/", *, submits: bool = False) -> Iterator[DeviceStatus]:
    """List every NVIDIA GPU, with page-locked memory, and NVMe controllers for P2P reads.

    Only controllers below the same root complex are listed. With `submits`, each has another row,
    for commands submitted by the GPU; without, there are rows about cuFile. A machine without an
    NVIDIA GPU gets a single row about this.
    """
    base = Path(root)
    gpus = [each for each in sorted((base / FUNCTIONS).glob("*")) if _is_gpu(each)]
    if not gpus and not sysfs_text(base / _VERSION):
        none = BackendUnavailable("sysfs and procfs show none")
        yield DeviceStatus("GPU", "NVIDIA GPU", none)
        return
    problem = cuda_problem(root)
    for gpu in gpus:
        yield from _rows_of(gpu, base, problem, submits)
    if not gpus:
        yield DeviceStatus("GPU", "NVIDIA GPU, page-locked memory", problem)
        missing = [Need(f"the GPU in /{FUNCTIONS}", "in a container: --privileged")]
        yield DeviceStatus("GPU", "NVIDIA GPU, reads by P2P", problem_of(missing))
    for way in () if submits else ("nvidia-fs", _P2PDMA):
        missing = [
            Need(what, how)
            for name, file, content, what, how in _CUFILE
            if name == way and not re.search(content, sysfs_text(base / file))
        ]
        kind = f"{way}, for DALI's own readers.numpy(device='gpu')"
        yield DeviceStatus("cuFile", kind, problem_of(missing))


def cuda_problem(root: str = "/") -> BackendUnavailable | None:
    """The reason why CuPy cannot use CUDA, or None. Without a driver, CuPy is not imported."""
    if not sysfs_text(Path(root) / _VERSION):
        remedy = "install NVIDIA's driver, best with open kernel modules (package nvidia-open)"
        return BackendUnavailable("NVIDIA's driver is not loaded", remedy)
    try:
        cuda.require()
    except BackendUnavailable as problem:
        return problem.with_traceback(None)
    return None


def controller_needs(controller: str, root: str = "/") -> list[Need]:
    """The missing requirements for writes to GPU memory by the controller at a PCI address.

    The GPU's own requirements are not included.
    """
    base = Path(root)
    return [*_module_needs(base), *_access_needs(base, base / FUNCTIONS / controller)]


def submission_needs(controller: str, root: str = "/") -> list[Need]:
    """The missing requirements for commands of a GPU to the controller at a PCI address."""
    base = Path(root)
    return [*pci.machine_needs(base), *_access_needs(base, base / FUNCTIONS / controller)]


def _is_gpu(function: Path) -> bool:
    is_display = sysfs_text(function / "class").startswith(_DISPLAY_CLASS)
    return is_display and sysfs_text(function / "vendor") == _NVIDIA


def _rows_of(
    gpu: Path, base: Path, problem: BackendUnavailable | None, submits: bool
) -> Iterator[DeviceStatus]:
    information = sysfs_text(base / f"proc/driver/nvidia/gpus/{gpu.name}/information")
    model = re.search(r"^Model:\s*(\S.*)", information, re.MULTILINE)
    name, window = model[1] if model else "NVIDIA GPU", pci.bar1(gpu)
    if problem is None and not information:
        remedy = f"bind {gpu.name} to the driver nvidia; in a container: --gpus all"
        problem = BackendUnavailable("NVIDIA's driver does not show this GPU", remedy)
    yield DeviceStatus(gpu.name, f"{name}, page-locked memory", problem)
    machine = [Need("CUDA by CuPy", problem.remedy)] if problem else []
    machine += pci.machine_needs(base)
    memory = [*_memory_needs(base, window)]
    controllers = [gpu.parent / status.name for status in pci.list_controllers(str(base))]
    near = [(it, how_near) for it in controllers if (how_near := pci.nearness(gpu, it))]
    for controller, how_near in near:
        pair = [*_access_needs(base, controller, gpu)]
        if bridges := pci.redirecting(gpu, controller):
            how = "; ".join(f"setpci -s {name} ECAP_ACS+6.w=0:1c" for name in bridges)
            pair.append(Need(f"no ACS redirection by {', '.join(bridges)}", how))
        place = f"{controller.name} ({how_near})"
        kind = f"{name}, BAR1 of {len(window) >> 20} MiB, reads by P2P from {place}"
        yield DeviceStatus(gpu.name, kind, problem_of([*machine, *memory, *pair]))
        if submits:
            kind = f"{name}, submits reads into host memory to {place}"
            yield DeviceStatus(gpu.name, kind, problem_of([*machine, *pair]))
    if not near:
        what = f"an NVMe controller below its root complex, {pci.root_complex(gpu)}"
        far = Need(what, "put one beside the GPU: elsewhere P2P is slow or blocked")
        yield DeviceStatus(gpu.name, f"{name}, reads by P2P", problem_of([*machine, *memory, far]))


def _memory_needs(base: Path, window: range) -> Iterator[Need]:
    """The missing requirements for writes of other devices to the memory of a GPU."""
    if "Open Kernel Module" not in sysfs_text(base / _VERSION):
        yield _OPEN
    yield from _module_needs(base)
    if len(window) <= _SMALL_BAR1:
        yield Need(f"a BAR1 of more than {_SMALL_BAR1 >> 20} MiB", LARGER_BAR1)


def _module_needs(base: Path) -> list[Need]:
    return [] if (base / MODULE).exists() else [_IMPORT]


def _access_needs(base: Path, controller: Path, *gpus: Path) -> Iterator[Need]:
    """The missing requirements for DMA between a controller and GPUs."""
    yield from pci.register_needs(base)
    driver = pci.driver_of(controller.name, str(base))
    if driver != "uio_pci_generic":
        with_it = " (P2P by vfio-pci is not supported)" if driver == "vfio-pci" else ""
        how = pci.how_to_bind(controller.name, driver, "uio_pci_generic")
        yield Need(f"the driver uio_pci_generic{with_it}", how)
    if translated := [it.name for it in (*gpus, controller) if pci.is_translated(it)]:
        how = "boot with iommu=pt, or with the IOMMU off (intel_iommu=off, amd_iommu=off)"
        yield Need(f"no address translation of {' and '.join(translated)} by the IOMMU", how)
