"""What the doctor says about GPUs: on trees of dev, proc and sys that the tests make."""

import os
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.backends.gpu.requirements import list_gpus
from dali_storage.backends.linux import pci
from dali_storage.contract.devices import DeviceStatus
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.runtime import cuda
from tests.kit import gpu_machine as known
from tests.kit.gpu_machine import (
    ABOVE_GPU,
    ABOVE_NVME,
    FILES,
    FUNCTIONS,
    GIB,
    GPU,
    MODEL,
    NO_BAR,
    NVME,
    ROOT_COMPLEX,
    VERSION,
    GpuMachine,
    bar,
    capabilities,
)

BARS_OF_HOPPER = (
    bar(0x90 << 32, 16 << 20) + NO_BAR + bar(0xA0 << 32, 128 * GIB) + NO_BAR + bar(1 << 40, 1 << 25)
) + NO_BAR * 8
LOCKED = f"{MODEL}, page-locked memory"
P2P = f"{MODEL}, BAR1 of 65536 MiB, reads by P2P from {NVME} (one switch)"
FAR_P2P = f"{MODEL}, reads by P2P"
SUBMITS = f"{MODEL}, submits reads into host memory to {NVME} (one switch)"
NVIDIA_FS = "nvidia-fs, for DALI's own readers.numpy(device='gpu')"
P2PDMA = "PCI P2PDMA of driver and kernel, for DALI's own readers.numpy(device='gpu')"
BOTH = (P2P, SUBMITS)


def both(reason):
    return dict.fromkeys(BOTH, reason)


class Machine(GpuMachine):
    def rows(self):
        statuses = [it for each in (True, False) for it in list_gpus(str(self.base), submits=each)]
        assert {each.name for each in statuses} == {GPU, "cuFile"}
        return {each.kind: each.problem for each in statuses}

    def broken(self):
        """The rows that do not work: reason and remedy."""
        rows = self.rows()
        assert all(MODEL in kind or "for DALI's own" in kind for kind in rows)
        return {kind: (problem.reason, problem.remedy) for kind, problem in rows.items() if problem}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cuda, "require", lambda gpu=0: None)
    return Machine(tmp_path)


def test_every_row_works_on_a_machine_that_has_everything(machine):
    assert machine.rows() == dict.fromkeys((LOCKED, P2P, SUBMITS, NVIDIA_FS, P2PDMA))


def test_a_machine_without_an_nvidia_gpu_has_one_row(machine):
    machine.change({VERSION: None, f"{FUNCTIONS}/{GPU}/vendor": "0x8086\n"})
    (status,) = list_gpus(str(machine.base))
    assert (status.name, status.kind) == ("GPU", "NVIDIA GPU")
    assert str(status.problem) == "sysfs and procfs show none"


OPEN = "needs the open kernel modules of NVIDIA's driver"
OPEN_565 = f"{OPEN}, version 565 or newer"
UIO = "needs the driver uio_pci_generic"
BIND = f"driverctl --nosave set-override {NVME} uio_pci_generic"
SWITCH_BAR = "enable Above 4G Decoding and Resizable BAR in the firmware, if the GPU has it"
NO_IOMMU = "boot with iommu=pt, or with the IOMMU off (intel_iommu=off, amd_iommu=off)"
LOCKDOWN = "none [integrity] confidentiality\n"
TRANSLATED = both(f"needs no address translation of {NVME} by the IOMMU")
ACS = {
    f"{FUNCTIONS}/{above}/config": capabilities((0x0001, 0xFFFF, 0x140), (0x000D, bits, 0))
    for above, bits in ((ABOVE_GPU, 0b00100), (ABOVE_NVME, 0b01000))
}


def group(address):
    return f"{FUNCTIONS}/{address}/iommu_group/type"


@pytest.mark.parametrize(
    ("files", "reasons", "remedy"),
    [
        ({VERSION: FILES[VERSION].replace("Open Kernel Module for", "x86_64 Kernel Module")},
         {P2P: OPEN, P2PDMA: OPEN_565}, "package nvidia-open"),
        ({VERSION: FILES[VERSION].replace("565.57", "550.90")}, {P2PDMA: OPEN_565},
         "package nvidia-open"),
        ({known.MODULE: None}, {P2P: "needs /dev/dmabuf_import"},
         "modprobe dmabuf_import; in a container"),
        ({known.RESOURCE: NO_BAR + bar(1 << 32, 256 << 20) + NO_BAR * 11},
         {P2P.replace("65536", "256"): "needs a BAR1 of more than 256 MiB"}, SWITCH_BAR),
        ({known.LOCKDOWN: LOCKDOWN}, both("needs no kernel lockdown (integrity)"),
         "disable Secure Boot"),
        ({known.MEMORY: FILES[known.MEMORY].replace("512", "511")},
         both("needs 512 hugepages of 2 MiB, not 511"), "sysctl vm.nr_hugepages"),
        ({known.DRIVER: "nvme"}, both(UIO), f"unmount its file s.*{BIND}"),
        ({known.DRIVER: None}, both(UIO), BIND),
        ({known.DRIVER: "vfio-pci"}, both(f"{UIO} (P2P by vfio-pci is not supported)"), BIND),
        ({known.DRIVER: "nvme", known.MODULE: None, known.LOCKDOWN: LOCKDOWN},
         {SUBMITS: f"needs no kernel lockdown (integrity), {UIO[6:]}",
          P2P: f"needs /dev/dmabuf_import, no kernel lockdown (integrity), {UIO[6:]}"}, ";.*;"),
        ({group(GPU): "identity\n", group(NVME): "DMA-FQ\n"}, TRANSLATED, NO_IOMMU),
        ({group(GPU): "DMA\n"}, both(f"needs no address translation of {GPU} by"), NO_IOMMU),
        ({group(NVME): None}, TRANSLATED, NO_IOMMU),  # a group without a type
        (ACS, both(f"needs no ACS redirection by {ABOVE_GPU}, {ABOVE_NVME}"),
         f"setpci -s {ABOVE_GPU} ECAP_ACS+6.w=0:1c; setpci -s {ABOVE_NVME} ECAP_ACS+6.w=0:1c"),
        ({known.NVIDIA_FS: None}, {NVIDIA_FS: "needs the module nvidia-fs"}, "modprobe nvidia-fs"),
        ({known.SYMBOLS: None}, {P2PDMA: "needs CONFIG_PCI_P2PDMA"}, "boot Linux 6.2 or newer"),
        ({known.PARAMS: None}, {P2PDMA: "needs a static BAR1"}, "options nvidia NVreg_Registry"),
        ({known.MULTIPATH: "Y\n"}, {P2PDMA: "needs NVMe without multipath"},
         "nvme_core.multipath=N"),
    ],
)  # fmt: skip
def test_a_row_names_what_the_machine_lacks_and_its_remedy(machine, files, reasons, remedy):
    machine.change(files)
    broken = machine.broken()
    assert broken.keys() == reasons.keys()
    for row, reason in reasons.items():
        assert broken[row][0].startswith(reason)
        for part in remedy.split(".*"):
            assert part in broken[row][1]


def test_without_root_the_rows_say_root(machine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    machine.change({f"{FUNCTIONS}/{ABOVE_GPU}/config": bytes(64)})  # all that the kernel shows
    assert machine.broken() == both(("needs root", "run as root"))


def test_a_read_only_sysfs_is_named(machine, monkeypatch):
    really = os.statvfs

    def statvfs(path):
        assert "sys" in path.parts
        values = [*really(path)]
        values[8] |= os.ST_RDONLY
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", statvfs)
    expected = ("needs a writable /sys", "start the container with --privileged")
    assert machine.broken() == both(expected)


def test_without_the_driver_every_row_says_so(machine):
    machine.change({VERSION: None})
    broken = machine.broken()
    assert broken[LOCKED][0] == "NVIDIA's driver is not loaded"
    assert "package nvidia-open" in broken[LOCKED][1]
    assert broken[SUBMITS] == ("needs CUDA by CuPy", broken[LOCKED][1])
    assert broken[P2P][0].startswith("needs CUDA by CuPy, ")


def test_without_cupy_every_row_says_what_to_install(machine, monkeypatch):
    def refuse(gpu=0):
        raise BackendUnavailable("no cupy", "pip install it")

    monkeypatch.setattr(cuda, "require", refuse)
    rows = both(("needs CUDA by CuPy", "pip install it"))
    assert machine.broken() == {LOCKED: ("no cupy", "pip install it")} | rows


def test_a_gpu_that_has_another_driver_is_named(machine):
    machine.change({known.INFORMATION: None})
    rows = {kind.replace("NVIDIA GPU", MODEL): problem for kind, problem in machine.rows().items()}
    assert rows.keys() == {LOCKED, P2P, SUBMITS, NVIDIA_FS, P2PDMA}
    assert rows[LOCKED] is not None
    assert rows[LOCKED].reason == "NVIDIA's driver does not show this GPU"
    assert f"bind {GPU} to the driver nvidia" in rows[LOCKED].remedy


def test_a_driver_without_a_gpu_in_sysfs_has_rows(machine):
    machine.change({f"{FUNCTIONS}/{GPU}/vendor": "0x8086\n"})
    locked, p2p, *cufile = list_gpus(str(machine.base))
    assert locked == DeviceStatus("GPU", "NVIDIA GPU, page-locked memory")
    assert p2p.problem is not None
    assert p2p.problem.reason == "needs the GPU in /sys/bus/pci/devices"
    assert [each.name for each in cufile] == ["cuFile", "cuFile"]


@pytest.mark.parametrize(
    "elsewhere",
    [
        "pci0000:2a/0000:2a:01.0",
        # A volume management device of the same root complex.
        f"{ROOT_COMPLEX}/0000:16:00.5/pci10000:00/10000:00:02.0",
    ],
)
def test_a_gpu_without_a_controller_nearby_lacks_one(machine, elsewhere):
    machine.move(NVME, elsewhere)
    machine.change({known.MODULE: None})
    broken = machine.broken()
    reason, remedy = broken.pop(FAR_P2P)
    assert "/dev/dmabuf_import" in reason
    assert f"an NVMe controller below its root complex, {ROOT_COMPLEX}" in reason
    assert "put one beside the GPU" in remedy
    assert broken == {}
    assert P2P not in machine.rows()


def test_a_controller_at_another_port_of_the_root_complex_is_near(machine):
    ports = ("0000:16:01.0", "0000:16:03.0", "0000:17:00.0")
    machine.move(NVME, f"{ROOT_COMPLEX}/{ports[1]}")
    config = capabilities((0x000D, 0b10011, 0))
    for port in ports:
        files = {"class": "0x060400\n", "config": config}
        machine.change({f"{FUNCTIONS}/{port}/{name}": text for name, text in files.items()})
    (kind,) = (kind for kind in machine.rows() if "reads by P2P" in kind)
    assert kind.endswith(f"{NVME} (one root complex)")
    assert machine.broken()[kind][0] == f"needs no ACS redirection by {', '.join(ports)}"


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (known.BARS_OF_AMPERE, range(0x60 << 32, (0x60 << 32) + 64 * GIB)),
        (BARS_OF_HOPPER, range(0xA0 << 32, (0xA0 << 32) + 128 * GIB)),
        ("", range(0)),
    ],
    ids=["Ampere", "Hopper", "none"],
)
def test_bar1_is_the_largest_bar(machine, resource, expected):
    machine.change({known.RESOURCE: resource})
    assert pci.bar1(machine.functions / GPU) == expected


@given(start=st.binary(max_size=0x140), place=st.integers(0, 0x100))
def test_any_configuration_space_is_read_to_an_end(tmp_path_factory, start, place):
    machine = Machine(tmp_path_factory.mktemp("machine"))
    config = (bytes(place) + start).ljust(4096, b"\0")
    machine.change({VERSION: None, f"{FUNCTIONS}/{ABOVE_GPU}/config": config})  # CUDA is not asked
    assert P2P in machine.rows()


def test_a_circle_of_capabilities_is_read_to_an_end(machine):
    machine.change({f"{FUNCTIONS}/{ABOVE_GPU}/config": capabilities((1, 0, 0x100))})
    assert machine.broken() == {}


ANY = [
    *(known.MEMORY, known.SYMBOLS, known.PARAMS, known.INFORMATION),
    *(
        f"{FUNCTIONS}/{address}/{name}"
        for address, name in product(
            (GPU, NVME, ABOVE_GPU),
            ("class", "vendor", "resource", "config", "iommu_group/type", "driver"),
        )
    ),
]


@pytest.mark.parametrize("file", ANY)
def test_files_that_are_broken_or_cannot_be_read_are_no_error(machine, file):
    for content in (b"", b"\xff\0 nonsense\n" * 40, None):
        path = machine.base / file
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        if content is None:
            path.mkdir()  # to read it is an error, also for root
        else:
            path.write_bytes(content)
        assert [*pci.list_controllers(str(machine.base))] or file == f"{FUNCTIONS}/{NVME}/class"
        assert [*list_gpus(str(machine.base), submits=True)]
        assert [*list_gpus(str(machine.base))]
