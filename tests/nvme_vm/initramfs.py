"""The initramfs of the guest: busybox, kernel modules and `init`, as a cpio archive."""

import lzma
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

APPLETS = ("[", "chroot", "insmod", "mkdir", "mount", "poweroff", "sh", "sleep")
DIRECTORIES = ("bin", "changes", "dev", "host", "modules", "proc", "root", "sys")


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the archive.

    Attributes:
        path: from the root, without a leading slash.
        mode: type and permissions, as in stat(2).
        content: of a file, or the target of a link.
    """

    path: str
    mode: int
    content: bytes = b""


def build(init: bytes, busybox: bytes, kernel: Path, modules: Iterable[str]) -> bytes:
    """The archive that boots.

    Args:
        init: the script that becomes process 1.
        busybox: the program, statically linked.
        kernel: the directory with the modules of one version of the kernel, /lib/modules/VERSION.
        modules: the modules that `init` loads, besides those that they depend on.
    """
    ordered = _in_order(modules, kernel)
    order = "".join(f"{name}\n" for name in ordered).encode()
    return _archive(
        *(Member(path, stat.S_IFDIR | 0o755) for path in DIRECTORIES),
        Member("init", stat.S_IFREG | 0o755, init),
        Member("bin/busybox", stat.S_IFREG | 0o755, busybox),
        *(Member(f"bin/{name}", stat.S_IFLNK | 0o777, b"busybox") for name in APPLETS),
        Member("modules/order", stat.S_IFREG | 0o644, order),
        *(Member(f"modules/{n}.ko", stat.S_IFREG | 0o644, code) for n, code in ordered.items()),
    )


def _in_order(wanted: Iterable[str], kernel: Path) -> dict[str, bytes]:
    """The modules after those that they depend on: names and contents."""
    files = {_name(path): path for path in kernel.rglob("*.ko*")}
    builtin = {_name(Path(line)) for line in (kernel / "modules.builtin").read_text().split()}
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        if name in loaded or name in builtin:
            return
        if name not in files:
            raise FileNotFoundError(f"there is no module {name} in {kernel}")
        code = _code(files[name])
        for dependency in _depends(code):
            load(dependency)
        loaded[name] = code

    for name in wanted:
        load(name)
    return loaded


def _name(path: Path) -> str:
    return path.name.partition(".")[0].replace("-", "_")


def _code(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def _depends(code: bytes) -> list[str]:
    """The dependencies in a module's section .modinfo, whose entries end with a NUL (modpost)."""
    found = re.search(rb"\0depends=([^\0]*)\0", code)
    return (
        [name.replace("-", "_") for name in found[1].decode().split(",") if name] if found else []
    )


def _archive(*members: Member) -> bytes:
    """In the format newc: Documentation/driver-api/early-userspace/buffer-format.rst."""
    parts = [_entry(number, member) for number, member in enumerate(members, 1)]
    return b"".join([*parts, _entry(0, Member("TRAILER!!!", 0))])


def _entry(inode: int, member: Member) -> bytes:
    name = member.path.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, device twice, name's length, check
    fields = (inode, member.mode, 0, 0, 1, 0, len(member.content), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return _padded(head) + _padded(member.content)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 4)
