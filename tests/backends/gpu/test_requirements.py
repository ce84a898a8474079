"""What the doctor says about GPUs: on trees of dev, proc and sys that the tests make."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.backends.gpu.requirements import list_gpus
from dali_storage.backends.linux import pci
from dali_storage.backends.linux.pci import bar1
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.cli import doctor
from dali_storage.contract import cuda
from dali_storage.contract.devices import DeviceStatus
from dali_storage.contract.errors import BackendUnavailable

ROOT_COMPLEX = "pci0000:16"
SWITCH = f"{ROOT_COMPLEX}/0000:16:01.0/0000:17:00.0"
GPU, NVME = "0000:19:00.0", "0000:1a:00.0"
ABOVE_GPU, ABOVE_NVME = "0000:18:00.0", "0000:18:01.0"
MODEL = "NVIDIA RTX 9000"
NVIDIA_VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build\n"
)
GIB = 1 << 30
NO_BAR = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
HUGEPAGES = "HugePages_Total:     512\nHugepagesize:       2048 kB\n"

LOCKED = f"{MODEL}, page-locked memory"
P2P = f"{MODEL}, BAR1 of 65536 MiB, reads by P2P from {NVME} (one switch)"
SUBMITS = f"{MODEL}, submits reads into host memory to {NVME} (one switch)"
NVIDIA_FS = "nvidia-fs, for DALI's own readers.numpy(device='gpu')"
P2PDMA = "PCI P2PDMA of driver and kernel, for DALI's own readers.numpy(device='gpu')"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def bar(start: int, size: int) -> str:
    return f"0x{start:016x} 0x{start + size - 1:016x} 0x000000000014220c\n"


BARS_OF_AMPERE = (
    bar(0xC000_0000, 16 << 20) + bar(0x60 << 32, 64 * GIB) + NO_BAR + bar(0x80 << 32, 32 << 20)
) + NO_BAR * 9
BARS_OF_HOPPER = (
    bar(0x90 << 32, 16 << 20) + NO_BAR + bar(0xA0 << 32, 128 * GIB) + NO_BAR + bar(1 << 40, 1 << 25)
) + NO_BAR * 8


def capabilities(*chain: tuple[int, int, int]) -> bytes:
    """A configuration space with extended capabilities: identifier, register at +6, next."""
    config, offset = bytearray(4096), 0x100
    for identifier, register, following in chain:
        config[offset : offset + 4] = (identifier | 1 << 16 | following << 20).to_bytes(4, "little")
        config[offset + 6 : offset + 8] = register.to_bytes(2, "little")
        offset = following
    return bytes(config)


class Machine:
    """A machine on which everything works: a GPU and a controller below one switch."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.functions = base / "sys/bus/pci/devices"
        self.functions.mkdir(parents=True)
        write(base / "proc/meminfo", HUGEPAGES)
        write(base / "proc/driver/nvidia/version", NVIDIA_VERSION)
        write(base / f"proc/driver/nvidia/gpus/{GPU}/information", f"Model: \t\t {MODEL}\nIRQ: 9\n")
        write(base / "proc/driver/nvidia/params", 'RegistryDwords: "RMForceStaticBar1=1;"\n')
        write(base / "proc/driver/nvidia-fs/stats", "GDS Version\n")
        write(base / "proc/kallsyms", "0000000000000000 d p2pdma_pgmap_ops\n")
        write(base / "sys/module/nvme_core/parameters/multipath", "N\n")
        write(base / "sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
        write(base / "dev/dmabuf_import", "")
        for address in (ABOVE_GPU, ABOVE_NVME):
            self.function(SWITCH, address, "0x060400", "0x1000")
        self.function(f"{SWITCH}/{ABOVE_GPU}", GPU, "0x030200", "0x10de")
        self.function(f"{SWITCH}/{ABOVE_NVME}", NVME, "0x010802", "0x144d")
        self.function(SWITCH, "0000:18:02.0", "0x020000", "0x10de")  # a network card of NVIDIA
        self.function(SWITCH, "0000:18:03.0", "0x030000", "0x1002")  # a GPU of AMD
        write(self.functions / GPU / "resource", BARS_OF_AMPERE)
        self.bind(NVME, "uio_pci_generic")

    def function(self, above: str, address: str, pci_class: str, vendor: str) -> None:
        there = self.base / f"sys/devices/{above}/{address}"
        write(there / "class", f"{pci_class}\n")
        write(there / "vendor", f"{vendor}\n")
        (there / "config").write_bytes(capabilities((0x0001, 0xFFFF, 0)))
        (self.functions / address).symlink_to(there)

    def bind(self, address: str, driver: str) -> None:
        link = self.functions / address / "driver"
        link.unlink(missing_ok=True)
        link.symlink_to(f"../../../../bus/pci/drivers/{driver}")

    def move(self, address: str, above: str) -> None:
        there = self.base / f"sys/devices/{above}/{address}"
        there.parent.mkdir(parents=True, exist_ok=True)
        (self.functions / address).resolve().rename(there)
        (self.functions / address).unlink()
        (self.functions / address).symlink_to(there)

    def remove(self, path: str) -> None:
        (self.base / path).unlink()

    def rows(self) -> dict[str, BackendUnavailable | None]:
        rows = self.rows_of_any_name()
        assert all(MODEL in kind or "for DALI's own" in kind for kind in rows)
        return rows

    def rows_of_any_name(self) -> dict[str, BackendUnavailable | None]:
        statuses = [it for each in (True, False) for it in list_gpus(str(self.base), submits=each)]
        assert {each.name for each in statuses} == {GPU, "cuFile"}
        return {each.kind: each.problem for each in statuses}

    def broken(self) -> dict[str, tuple[str, str]]:
        """The rows that do not work: reason and remedy."""
        rows = self.rows().items()
        return {kind: (problem.reason, problem.remedy) for kind, problem in rows if problem}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cuda, "require", lambda gpu=0: None)
    return Machine(tmp_path)


def test_a_machine_that_has_everything(machine: Machine) -> None:
    assert machine.rows() == dict.fromkeys((LOCKED, P2P, SUBMITS, NVIDIA_FS, P2PDMA))


def test_a_machine_without_an_nvidia_gpu_has_one_row(tmp_path: Path) -> None:
    write(tmp_path / "sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n")
    write(tmp_path / "sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n")
    (status,) = list_gpus(str(tmp_path))
    assert (status.name, status.kind) == ("GPU", "NVIDIA GPU")
    assert str(status.problem) == "sysfs and procfs show none"


SWITCH_BAR = "switch on Above 4G Decoding and Resizable BAR in the firmware, if the GPU has it"
NO_IOMMU = "boot with iommu=pt, or with the IOMMU off (intel_iommu=off, amd_iommu=off)"
BIND = f"driverctl --nosave set-override {NVME} uio_pci_generic"
MODULES = "the open kernel modules of NVIDIA's driver"


def proprietary(machine: Machine) -> None:
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  565.57.01  Release\n"
    write(machine.base / "proc/driver/nvidia/version", version)


def old(machine: Machine) -> None:
    path = machine.base / "proc/driver/nvidia/version"
    write(path, path.read_text().replace("565.57", "550.90"))


def no_import(machine: Machine) -> None:
    machine.remove("dev/dmabuf_import")


def small_bar(machine: Machine) -> None:
    write(machine.functions / GPU / "resource", NO_BAR + bar(1 << 32, 256 << 20) + NO_BAR * 11)


def locked_down(machine: Machine) -> None:
    write(machine.base / "sys/kernel/security/lockdown", "none [integrity] confidentiality\n")


def few_hugepages(machine: Machine) -> None:
    write(machine.base / "proc/meminfo", HUGEPAGES.replace("512", "511"))


def nvme_driver(machine: Machine) -> None:
    machine.bind(NVME, "nvme")


def vfio(machine: Machine) -> None:
    machine.bind(NVME, "vfio-pci")


def translating(machine: Machine) -> None:
    for address, kind in ((GPU, "identity"), (NVME, "DMA-FQ")):
        write(machine.functions / address / "iommu_group/type", f"{kind}\n")


def translating_gpu(machine: Machine) -> None:
    write(machine.functions / GPU / "iommu_group/type", "DMA\n")


def group_without_a_type(machine: Machine) -> None:
    (machine.functions / NVME / "iommu_group").mkdir()


def redirecting(machine: Machine) -> None:
    for address, bits in ((ABOVE_GPU, 0b00100), (ABOVE_NVME, 0b01000)):
        config = capabilities((0x0001, 0xFFFF, 0x140), (0x000D, bits, 0))
        (machine.functions / address / "config").write_bytes(config)


def no_nvidia_fs(machine: Machine) -> None:
    machine.remove("proc/driver/nvidia-fs/stats")


def no_p2pdma(machine: Machine) -> None:
    machine.remove("proc/kallsyms")


def no_static_bar(machine: Machine) -> None:
    machine.remove("proc/driver/nvidia/params")


def multipath(machine: Machine) -> None:
    write(machine.base / "sys/module/nvme_core/parameters/multipath", "Y\n")


BOTH = (P2P, SUBMITS)


@pytest.mark.parametrize(
    ("change", "rows", "reason", "remedy"),
    [
        (proprietary, (P2P,), f"needs {MODULES}", "package nvidia-open"),
        (proprietary, (P2PDMA,), f"needs {MODULES}, version 565 or newer", "package nvidia-open"),
        (old, (P2PDMA,), f"needs {MODULES}, version 565 or newer", "package nvidia-open"),
        (no_import, (P2P,), "needs /dev/dmabuf_import", "modprobe dmabuf_import; in a container"),
        (small_bar, (P2P,), "needs a BAR1 of more than 256 MiB", SWITCH_BAR),
        (locked_down, BOTH, "needs no kernel lockdown (integrity)", "switch Secure Boot off"),
        (few_hugepages, BOTH, "needs 512 hugepages of 2 MiB, not 511", "sysctl vm.nr_hugepages"),
        (nvme_driver, BOTH, "needs the driver uio_pci_generic", f"unmount its file s.*{BIND}"),
        (vfio, BOTH, "needs the driver uio_pci_generic (P2P by vfio-pci is not supported)", BIND),
        (translating, BOTH, f"needs no address translation of {NVME} by the IOMMU", NO_IOMMU),
        (translating_gpu, BOTH, f"needs no address translation of {GPU} by the IOMMU", NO_IOMMU),
        (group_without_a_type, BOTH, f"needs no address translation of {NVME} by", NO_IOMMU),
        (
            redirecting,
            BOTH,
            f"needs no ACS redirection by {ABOVE_GPU}, {ABOVE_NVME}",
            f"setpci -s {ABOVE_GPU} ECAP_ACS+6.w=0:1c; setpci -s {ABOVE_NVME} ECAP_ACS+6.w=0:1c",
        ),
        (no_nvidia_fs, (NVIDIA_FS,), "needs the module nvidia-fs", "modprobe nvidia-fs"),
        (no_p2pdma, (P2PDMA,), "needs CONFIG_PCI_P2PDMA", "boot Linux 6.2 or newer"),
        (no_static_bar, (P2PDMA,), "needs a static BAR1", "options nvidia NVreg_RegistryDwords"),
        (multipath, (P2PDMA,), "needs NVMe without multipath", "nvme_core.multipath=N"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(
    machine: Machine, change: object, rows: tuple[str, ...], reason: str, remedy: str
) -> None:
    assert callable(change)
    change(machine)
    expected = {row.replace("65536", "256") if change is small_bar else row for row in rows}
    broken = machine.broken()
    assert expected <= set(broken)
    assert set(broken) == expected or change is proprietary
    for row in expected:
        assert broken[row][0].startswith(reason)
        for part in remedy.split(".*"):
            assert part in broken[row][1]


def test_all_that_is_missing_is_named_at_once(machine: Machine) -> None:
    nvme_driver(machine)
    no_import(machine)
    locked_down(machine)
    reason, remedy = machine.broken()[P2P]
    for part in ("lockdown", "/dev/dmabuf_import", "uio_pci_generic"):
        assert part in reason
    assert remedy.count(";") >= 2


def test_without_root_the_rows_say_root(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (machine.functions / ABOVE_GPU / "config").write_bytes(bytes(64))  # all that the kernel shows
    assert machine.broken() == dict.fromkeys(BOTH, ("needs root", "run as root"))


def test_a_read_only_sysfs_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        assert "sys" in path.parts
        values = [*really(path)]
        values[8] |= os.ST_RDONLY
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", statvfs)
    expected = ("needs a writable /sys", "start the container with --privileged")
    assert machine.broken() == dict.fromkeys(BOTH, expected)


def test_without_the_driver_every_row_says_so(machine: Machine) -> None:
    machine.remove("proc/driver/nvidia/version")
    broken = machine.broken()
    assert broken[LOCKED][0] == "NVIDIA's driver is not loaded"
    assert "package nvidia-open" in broken[LOCKED][1]
    assert broken[SUBMITS] == ("needs CUDA by CuPy", broken[LOCKED][1])
    assert broken[P2P][0].startswith("needs CUDA by CuPy, ")


def test_without_cupy_every_row_says_what_to_install(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(gpu: int = 0) -> None:
        raise BackendUnavailable("no cupy", "pip install it")

    monkeypatch.setattr(cuda, "require", refuse)
    expected = ("needs CUDA by CuPy", "pip install it")
    assert machine.broken() == {LOCKED: ("no cupy", "pip install it")} | dict.fromkeys(
        BOTH, expected
    )


def test_a_gpu_that_has_another_driver(machine: Machine) -> None:
    machine.remove(f"proc/driver/nvidia/gpus/{GPU}/information")
    rows = {kind.replace("NVIDIA GPU", MODEL) for kind in machine.rows_of_any_name()}
    assert rows == {LOCKED, P2P, SUBMITS, NVIDIA_FS, P2PDMA}
    broken = machine.rows_of_any_name()
    locked = broken["NVIDIA GPU, page-locked memory"]
    assert locked is not None
    assert locked.reason == "NVIDIA's driver does not show this GPU"
    assert f"bind {GPU} to the driver nvidia" in locked.remedy


def test_a_driver_without_a_gpu_in_sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "require", lambda gpu=0: None)
    write(tmp_path / "proc/driver/nvidia/version", NVIDIA_VERSION)
    locked, p2p, *cufile = list_gpus(str(tmp_path))
    assert locked == DeviceStatus("GPU", "NVIDIA GPU, page-locked memory")
    assert p2p.problem is not None
    assert p2p.problem.reason == "needs the GPU in /sys/bus/pci/devices"
    assert [each.name for each in cufile] == ["cuFile", "cuFile"]


def test_a_gpu_without_a_controller_nearby(machine: Machine) -> None:
    machine.move(NVME, "pci0000:2a/0000:2a:01.0")
    no_import(machine)
    broken = machine.broken()
    reason, remedy = broken.pop(f"{MODEL}, reads by P2P")
    assert "/dev/dmabuf_import" in reason
    assert f"an NVMe controller below its root complex, {ROOT_COMPLEX}" in reason
    assert "put one beside the GPU" in remedy
    assert broken == {}
    assert P2P not in machine.rows()


def test_a_controller_at_another_port_of_the_root_complex(machine: Machine) -> None:
    ports = ("0000:16:01.0", "0000:16:03.0", "0000:17:00.0")
    machine.move(NVME, f"{ROOT_COMPLEX}/{ports[1]}")
    for port in ports:
        config = capabilities((0x000D, 0b10011, 0))
        write(machine.functions / port / "class", "0x060400\n")
        (machine.functions / port / "config").write_bytes(config)
    (kind,) = (kind for kind in machine.rows() if "reads by P2P" in kind)
    assert kind.endswith(f"{NVME} (one root complex)")
    bridges = ", ".join(ports)
    assert machine.broken()[kind][0] == f"needs no ACS redirection by {bridges}"


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (BARS_OF_AMPERE, range(0x60 << 32, (0x60 << 32) + 64 * GIB)),
        (BARS_OF_HOPPER, range(0xA0 << 32, (0xA0 << 32) + 128 * GIB)),
        ("", range(0)),
    ],
    ids=["Ampere", "Hopper", "none"],
)
def test_bar1_is_the_largest_bar(machine: Machine, resource: str, expected: range) -> None:
    write(machine.functions / GPU / "resource", resource)
    assert bar1(machine.functions / GPU) == expected


@given(start=st.binary(max_size=0x140), place=st.integers(0, 0x100))
def test_any_configuration_space_is_read_to_an_end(
    tmp_path_factory: pytest.TempPathFactory, start: bytes, place: int
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.remove("proc/driver/nvidia/version")  # so that CUDA is not asked
    config = (bytes(place) + start).ljust(4096, b"\0")
    (machine.functions / ABOVE_GPU / "config").write_bytes(config)
    assert P2P in machine.rows()


def test_a_circle_of_capabilities_ends(machine: Machine) -> None:
    (machine.functions / ABOVE_GPU / "config").write_bytes(capabilities((1, 0, 0x100)))
    assert machine.broken() == {}


def test_the_doctor_prints_every_row_with_its_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_import(machine)
    monkeypatch.setattr(
        XnvmeBlockReader, "devices", classmethod(lambda cls: list_gpus(str(machine.base)))
    )
    monkeypatch.setenv("COLUMNS", "400")
    doctor.main(["--json"])
    devices = json.loads(capsys.readouterr().out)["devices"]
    shown = {each["kind"]: each for each in devices if each["name"] in (GPU, "cuFile")}
    assert [*shown] == [LOCKED, P2P, NVIDIA_FS, P2PDMA]
    assert [each["works"] for each in shown.values()] == [True, False, True, True]
    assert shown[P2P]["reason"] == "needs /dev/dmabuf_import"
    assert "modprobe dmabuf_import" in shown[P2P]["remedy"]
    doctor.main([])
    text = capsys.readouterr().out
    assert all(kind in text for kind in shown)
    assert "modprobe dmabuf_import" in text


def test_a_controller_behind_a_volume_management_device_is_not_near(machine: Machine) -> None:
    behind = f"{ROOT_COMPLEX}/0000:16:00.5/pci10000:00/10000:00:02.0"
    machine.move(NVME, behind)
    assert (
        f"below its root complex, {ROOT_COMPLEX}" in machine.broken()[f"{MODEL}, reads by P2P"][0]
    )


FILES = [
    "class",
    "vendor",
    "resource",
    "config",
    "iommu_group/type",
    "driver",
]


@pytest.mark.parametrize("address", [GPU, NVME, ABOVE_GPU])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"\xff\0 nonsense\n" * 40, None])
def test_files_of_sysfs_that_are_broken_or_cannot_be_read(
    machine: Machine, address: str, name: str, content: bytes | None
) -> None:
    path = machine.functions / address / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if content is None:
        path.mkdir()  # to read it is an error, also for root
    else:
        path.write_bytes(content)
    assert [*pci.list_controllers(str(machine.base))] or (address, name) == (NVME, "class")
    assert [*list_gpus(str(machine.base))]


@pytest.mark.parametrize(
    "name", ["meminfo", "kallsyms", "driver/nvidia/params", f"driver/nvidia/gpus/{GPU}/information"]
)
def test_files_of_procfs_that_are_broken(machine: Machine, name: str) -> None:
    (machine.base / "proc" / name).write_bytes(b"\xff\0 nonsense\n" * 40)
    assert [*list_gpus(str(machine.base), submits=True)]
