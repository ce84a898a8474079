"""What this machine has of what GPUs need to be read into, as sysfs and procfs show it.

Nothing is bound or changed. Each function has the parameter `root`, the directory that contains
`dev`, `proc` and `sys`.

Sources: the kernel's Documentation/ABI/testing/sysfs-bus-pci and sysfs-kernel-iommu_groups;
kernel_lockdown(7); the README of NVIDIA's Linux driver, chapter "The /proc Interface"; PCI Express
Base Specification 5.0, sections 7.6.3 and 7.7.8; NVIDIA's GPUDirect Storage guide.
"""

import os
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from ... import cuda
from ...devices import DeviceStatus
from ...errors import BackendUnavailable
from ..xnvme import pci
from ..xnvme.pci import Need, problem_of

_FUNCTIONS = "sys/bus/pci/devices"
_DISPLAY_CLASS, _NVIDIA = "0x03", "0x10de"
_SMALL_BAR1 = 256 << 20  # bytes; what GPUs have without Resizable BAR
_ACS = 0x000D  # the extended capability Access Control Services
_REDIRECTS = 0b11100  # of its control register: request, completion redirect, upstream forwarding
_CAPABILITIES = 0x100  # where the extended capabilities begin
_MOST_CAPABILITIES = (4096 - _CAPABILITIES) // 8

_OPEN_MODULES = Need(
    "the open kernel modules of NVIDIA's driver", "install them (package nvidia-open)"
)
_IMPORT = Need(
    "/dev/dmabuf_import",
    "install the module (package dmabuf-import-dkms of github.com/safl/upcie) and load it: "
    "modprobe dmabuf_import; in a container: --device /dev/dmabuf_import",
)


def list_gpus(root: str = "/") -> Iterator[DeviceStatus]:
    """Every NVIDIA GPU: its page-locked memory, and each NVMe controller that may read into it.

    For a controller there is a row for reads by P2P and one for commands that the GPU submits. A
    controller counts if it is below the same root complex. The last rows are about cuFile. On a
    machine without an NVIDIA GPU there is one row, which says so.
    """
    base = Path(root)
    gpus = [each for each in sorted((base / _FUNCTIONS).glob("*")) if _is_gpu(each)]
    version = _text(base / "proc/driver/nvidia/version")
    if not gpus and not version:
        yield DeviceStatus("GPU", "NVIDIA GPU", BackendUnavailable("this machine has none"))
        return
    locked = _cuda_problem(version)
    for gpu in gpus:
        yield from _rows_of(gpu, base, version, locked)
    if not gpus:
        yield DeviceStatus("GPU", "NVIDIA GPU, page-locked memory", locked)
        missing = [Need(f"the GPU in /{_FUNCTIONS}", "in a container: --privileged")]
        yield DeviceStatus("GPU", "NVIDIA GPU, reads by P2P", problem_of(missing))
    yield from _cufile(base, version)


def bar1(gpu: str, root: str = "/") -> range:
    """The bus addresses by which other devices reach the memory of the GPU at a PCI address.

    NVIDIA calls this window BAR1. It is the second BAR up to Ampere and the third from Hopper on,
    whose first has 64 bits; and always the largest. Empty if there is no such function.
    """
    lines = _text(Path(root) / _FUNCTIONS / gpu / "resource").splitlines()[:6]
    bars = [[int(number, 16) for number in line.split()] for line in lines]
    return max((range(start, end + 1) for start, end, _ in bars if end), key=len, default=range(0))


def controller_needs(controller: str, root: str = "/") -> list[Need]:
    """What is missing before the controller at a PCI address can write to memory of GPUs.

    That is without what the GPU itself lacks.
    """
    base = Path(root)
    function = base / _FUNCTIONS / controller
    needs = [*_module_needs(base), *_driver_needs(base, function)]
    return [*needs, *_translation_needs(function)]


def cuda_problem(root: str = "/") -> BackendUnavailable | None:
    """Why CUDA cannot be used by CuPy, which is not imported where there is no driver."""
    return _cuda_problem(_text(Path(root) / "proc/driver/nvidia/version"))


def submission_needs(controller: str, root: str = "/") -> list[Need]:
    """What is missing before a GPU can submit commands to the controller at a PCI address."""
    base = Path(root)
    function = base / _FUNCTIONS / controller
    needs = [*pci.machine_needs(base), *_register_needs(function, base)]
    return [*needs, *_driver_needs(base, function), *_translation_needs(function)]


def _is_gpu(function: Path) -> bool:
    is_display = _text(function / "class").startswith(_DISPLAY_CLASS)
    return is_display and _text(function / "vendor") == _NVIDIA


def _rows_of(
    gpu: Path, base: Path, version: str, locked: BackendUnavailable | None
) -> Iterator[DeviceStatus]:
    model = re.search(
        r"^Model:\s*(.+)", _text(base / f"proc/driver/nvidia/gpus/{gpu.name}/information"), re.M
    )
    name, window = model[1] if model else "NVIDIA GPU", bar1(gpu.name, str(base))
    yield DeviceStatus(gpu.name, f"{name}, page-locked memory", locked)
    machine = [Need("CUDA by CuPy", locked.remedy)] if locked else []
    machine += [*pci.machine_needs(base), *_register_needs(gpu, base)]
    memory = [*_memory_needs(base, version, window)]
    root_complex, *_ = [*_route(gpu), "unknown"]
    near = [it for it in _controllers(base) if _route(it)[:1] == [root_complex]]
    for controller in near:
        pair = [*_driver_needs(base, controller), *_path_needs(gpu, controller)]
        place = f"{controller.name} ({_nearness(gpu, controller)})"
        bar = f"BAR1 of {len(window) >> 20} MiB"
        problem = problem_of([*machine, *memory, *pair])
        yield DeviceStatus(gpu.name, f"{name}, {bar}, reads by P2P from {place}", problem)
        kind = f"{name}, submits reads into host memory to {place}"
        yield DeviceStatus(gpu.name, kind, problem_of([*machine, *pair]))
    if not near:
        what = f"an NVMe controller below its root complex, {root_complex}"
        far = Need(what, "put one beside the GPU: elsewhere P2P is slow or blocked")
        yield DeviceStatus(gpu.name, f"{name}, reads by P2P", problem_of([*machine, *memory, far]))


def _cuda_problem(version: str) -> BackendUnavailable | None:
    if not version:
        remedy = "install it, with the open kernel modules for P2P (package nvidia-open)"
        return BackendUnavailable("NVIDIA's driver is not loaded", remedy)
    try:
        cuda.require()
    except BackendUnavailable as problem:
        return problem.with_traceback(None)
    return None


def _register_needs(gpu: Path, base: Path) -> Iterator[Need]:
    """What the mapping of a controller's registers needs, which P2P is set up by."""
    if lockdown := _lockdown(base):
        yield Need(f"no kernel lockdown ({lockdown})", "switch Secure Boot off in the firmware")
    if os.statvfs(gpu).f_flag & os.ST_RDONLY:
        yield Need("a writable /sys", "start the container with --privileged")


def _memory_needs(base: Path, version: str, window: range) -> Iterator[Need]:
    """What is missing before another device can write to the memory of a GPU."""
    if "Open Kernel Module" not in version:
        yield _OPEN_MODULES
    yield from _module_needs(base)
    if len(window) <= _SMALL_BAR1:
        how = "switch on Above 4G Decoding and Resizable BAR in the firmware, if the GPU has it"
        yield Need(f"a BAR1 of more than {_SMALL_BAR1 >> 20} MiB", how)


def _module_needs(base: Path) -> Iterator[Need]:
    if not (base / "dev/dmabuf_import").exists():
        signed = "; the kernel is locked down: sign the module, or switch Secure Boot off"
        yield Need(_IMPORT.what, _IMPORT.how + signed * bool(_lockdown(base)))


def _lockdown(base: Path) -> str:
    """The modes of the kernel's lockdown, if one is in force."""
    modes = _text(base / "sys/kernel/security/lockdown")
    return "" if "[none]" in modes else modes


def _controllers(base: Path) -> list[Path]:
    return [base / _FUNCTIONS / status.name for status in pci.list_controllers(str(base))]


def _driver_needs(base: Path, controller: Path) -> Iterator[Need]:
    driver = pci.driver_of(controller.name, str(base))
    if driver != "uio_pci_generic":
        with_it = " (P2P by vfio-pci is not supported)" if driver == "vfio-pci" else ""
        unmount = "unmount its file systems, then " if driver == "nvme" else ""
        how = f"{unmount}driverctl --nosave set-override {controller.name} uio_pci_generic"
        yield Need(f"the driver uio_pci_generic{with_it}", how)


def _path_needs(gpu: Path, controller: Path) -> Iterator[Need]:
    """What changes or blocks the addresses of peers on the way from one function to the other."""
    yield from _translation_needs(gpu, controller)
    bridges = [it for it in _bridges_between(gpu, controller) if _redirects(it)]
    if bridges:
        names = [bridge.name for bridge in bridges]
        how = "; ".join(f"setpci -s {name} ECAP_ACS+6.w=0:1c" for name in names)
        yield Need(f"no ACS redirection by {', '.join(names)}", how)


def _translation_needs(*functions: Path) -> Iterator[Need]:
    translated = [it.name for it in functions if pci.iommu_type(it) not in ("", "identity")]
    if translated:
        how = "boot with iommu=pt, or with the IOMMU off (intel_iommu=off, amd_iommu=off)"
        yield Need(f"no address translation of {' and '.join(translated)} by the IOMMU", how)


def _route(function: Path) -> list[str]:
    """The root complex of a function, the bridges on the way to it, and the function itself."""
    match = re.search(r"/(pci[0-9a-f]{4,}:[0-9a-f]{2}/.*)", str(function.resolve()))
    return match[1].split("/") if match else []


def _shared(one: list[str], other: list[str]) -> int:
    """How many elements two routes begin with alike."""
    alike = (a == b for a, b in zip(one, other, strict=False))
    return sum(takewhile(bool, alike))


def _nearness(one: Path, other: Path) -> str:
    return "one switch" if _shared(_route(one), _route(other)) > 1 else "one root complex"


def _bridges_between(one: Path, other: Path) -> list[Path]:
    routes = _route(one), _route(other)
    return [one.parent / name for route in routes for name in route[_shared(*routes) : -1]]


def _redirects(bridge: Path) -> bool:
    """Whether a bridge sends what is addressed to a peer up to the root complex.

    The kernel shows the extended capabilities to root only; without root there is another need.
    """
    config, offset = (bridge / "config").read_bytes(), _CAPABILITIES
    for _ in range(_MOST_CAPABILITIES):
        if not _CAPABILITIES <= offset <= len(config) - 8:
            break
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            return bool(config[offset + 6] & _REDIRECTS)
        offset = header >> 20
    return False


def _cufile(base: Path, version: str) -> Iterator[DeviceStatus]:
    """NVIDIA's own way from storage to GPU memory, which none of our backends uses."""
    for_whom = "for DALI's own readers.numpy(device='gpu')"
    loaded = (base / "proc/driver/nvidia-fs/stats").exists()
    missing = [] if loaded else [Need("the module nvidia-fs", "modprobe nvidia-fs")]
    yield DeviceStatus("cuFile", f"nvidia-fs, {for_whom}", problem_of(missing))
    missing = [*_p2pdma_needs(base, version)]
    yield DeviceStatus("cuFile", f"PCI P2PDMA, {for_whom}", problem_of(missing))


def _p2pdma_needs(base: Path, version: str) -> Iterator[Need]:
    release = re.search(r" (\d+)\.\d+", version)
    if "Open Kernel Module" not in version or not release or int(release[1]) < 565:
        yield Need(f"{_OPEN_MODULES.what}, version 565 or newer", _OPEN_MODULES.how)
    if "p2pdma_pgmap_ops" not in _text(base / "proc/kallsyms"):
        yield Need("a kernel with CONFIG_PCI_P2PDMA", "boot Linux 6.2 or newer that has it")
    if "RMForceStaticBar1=1" not in _text(base / "proc/driver/nvidia/params"):
        option = 'NVreg_RegistryDwords="RMForceStaticBar1=1;RmForceDisableIomapWC=1;"'
        how = f"options nvidia {option} in /etc/modprobe.d/nvidia.conf"
        yield Need("a static BAR1", how)
    if _text(base / "sys/module/nvme_core/parameters/multipath") == "Y":
        yield Need("NVMe without multipath", "boot with nvme_core.multipath=N")


def _text(path: Path) -> str:
    """The stripped text of a file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
