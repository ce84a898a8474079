"""An emulated computer with NVMe controllers that runs a command on the files of the host.

QEMU emulates everything, including the processor: it needs neither KVM nor root, and times measured
in it mean nothing.
"""

import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.nvme_vm.hardware import Controller, attached, options, shared_directory

_BOOT_FILES = Path(__file__).parents[2] / ".nvme_vm"  # the script boot_files makes them
_KERNEL, _INITRAMFS = _BOOT_FILES / "vmlinux", _BOOT_FILES / "initramfs"
_QEMU = "qemu-system-x86_64"
# String instructions are emulated byte by byte: software that relies on them copies 4 times slower.
# A gather of AVX2 reads wrong elements if its index is register 4 (QEMU's issue 2474, seen in 7.2),
# and numpy sorts wrong.
_CPU = "max,erms=off,fsrm=off,avx2=off"
# A second processor slows the guest down on a busy host, and Linux 6.12 has crashed with one while
# it patched code that the other one ran. But if no second one is possible, QEMU before 8.1 omits
# memory barriers (its commit c914d46d0a), and sometimes loses the doorbell of a controller.
_PROCESSORS = "1,maxcpus=2"
_TAIL = 60  # lines


class MachineError(Exception):
    """The guest ended without the status of its command, or did not end. Shows its last output."""


class Running:
    """A running machine."""

    def __init__(
        self, directory: Path, process: subprocess.Popen[bytes], monitor: socket.socket
    ) -> None:
        """Watch a QEMU, which the caller ends."""
        self._directory, self._process, self._monitor = directory, process, monitor

    def wait_for(self, name: str, timeout: float) -> None:
        """Wait until the guest has made a file `name` in the shared directory."""
        end = time.monotonic() + timeout
        while not (self._directory / name).exists():
            if self._process.poll() is not None:
                raise self._error(f"ended without making {name}")
            if time.monotonic() > end:
                raise self._error(f"did not make {name} within {timeout} s")
            time.sleep(0.02)

    def take_out(self, controller: int) -> None:
        """Request a controller, by its index, from the guest, like its attention button."""
        self._monitor.sendall(f"device_del nvme{controller}\n".encode())

    def wait(self, timeout: float) -> "subprocess.CompletedProcess[str]":
        """Wait until the machine has shut down; the status and all output of its command."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._error(f"did not end within {timeout} s") from None
        try:
            status = int((self._directory / "status").read_text())
        except FileNotFoundError:
            raise self._error("ended before its command did") from None
        return subprocess.CompletedProcess((), status, _text(self._directory / "output"))

    def _error(self, what: str) -> MachineError:
        parts = [f"the guest {what}"]
        for name in ("qemu", "console", "output"):
            lines = _text(self._directory / name).splitlines()[-_TAIL:]
            parts += [f"--- the end of its {name}:", *lines] if lines else []
        return MachineError("\n".join(parts))


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A computer whose root file system is that of the host; writes to it are discarded.

    Attributes:
        directory: an absolute path, the same on the host and in the guest, which share it. Holds
            `console` and `output` of the last run.
        hugepages: the number of pages of 2 MiB reserved at boot.
        iommu: whether it has an (Intel) IOMMU, which vfio-pci needs.
    """

    directory: Path
    controllers: tuple[Controller, ...] = ()
    memory_mib: int = 1024
    hugepages: int = 0
    iommu: bool = False

    def run(self, command: Sequence[str], timeout: float) -> "subprocess.CompletedProcess[str]":
        """Boot, run a command as root in the current directory, and shut down."""
        with self.boot(command) as running:
            return running.wait(timeout)

    @contextmanager
    def boot(self, command: Sequence[str]) -> Iterator[Running]:
        """A machine that boots and runs a command; it is killed at the end in any case."""
        for name in ("status", "output", "console"):
            (self.directory / name).unlink(missing_ok=True)
        _require_programs()
        (self.directory / "command").write_text(_script(command, self.directory))
        ours, its = socket.socketpair()
        with ours, its, open(self.directory / "qemu", "wb") as log:
            process = subprocess.Popen(
                self.command_line(its.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[its.fileno()],
            )
            its.close()
            try:
                yield Running(self.directory, process, ours)
            finally:
                process.kill()
                process.wait()

    def command_line(self, monitor: int) -> list[str]:
        """QEMU with its arguments; `monitor` is the descriptor of the socket for its monitor."""
        return [
            *(_QEMU, "-accel", "tcg", "-cpu", _CPU, "-smp", _PROCESSORS),
            *("-machine", "q35,kernel-irqchip=split" if self.iommu else "q35"),
            *("-m", f"{self.memory_mib}M"),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-chardev", options("file", id="console", path=self.directory / "console")),
            *("-serial", "chardev:console"),
            *("-chardev", options("socket", id="monitor", fd=monitor)),
            *("-mon", "chardev=monitor"),
            *("-kernel", str(_KERNEL), "-initrd", str(_INITRAMFS)),
            *("-append", self._kernel_arguments()),
            *(("-device", "intel-iommu,intremap=on,caching-mode=on") if self.iommu else ()),
            *shared_directory("root", Path("/"), "on"),
            *shared_directory("share", self.directory, "off"),
            *(word for n, c in enumerate(self.controllers) for word in attached(n, c)),
        ]

    def _kernel_arguments(self) -> str:
        words = ["console=ttyS0", "loglevel=5", "panic=-1", "mitigations=off"]
        words += ["no_timer_check"]  # which fails on a busy host, and the kernel panics
        words += [f'share="{self.directory}"', f"controllers={len(self.controllers)}"]
        if self.hugepages:
            words += ["hugepagesz=2M", f"hugepages={self.hugepages}"]
        if self.iommu:
            words += ["intel_iommu=on"]
        return " ".join(words)


def _require_programs() -> None:
    missing = [path for path in (_KERNEL, _INITRAMFS) if not path.exists()]
    if missing or shutil.which(_QEMU) is None:
        what = missing[0] if missing else _QEMU
        raise MachineError(f"there is no {what}: `make test-nvme` gets it, and runs the tests")


def _script(command: Sequence[str], directory: Path) -> str:
    environment = {
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "NVME_VM": str(directory),
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",  # the guest's user is root
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    exports = "".join(f"export {name}={shlex.quote(v)}\n" for name, v in environment.items())
    return f"{exports}cd {shlex.quote(os.getcwd())}\nexec {shlex.join(command)}\n"
