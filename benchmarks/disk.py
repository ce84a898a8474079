"""A disk of the demo's own: ext4 in an image file behind a loop device.

The file system is mounted in a mount namespace of this process, and the image loses its name once
mounted. The kernel frees the mount, the loop device and the space when this process ends.
"""

import ctypes
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .workload import NotHereError

_CLONE_NEWNS = 0x20000  # linux/sched.h
MNT_DETACH = 2  # sys/mount.h
_PRIVATE = 1 << 18 | 1 << 14  # MS_PRIVATE and MS_REC, sys/mount.h
_LOOP_SET_DIRECT_IO = 0x4C08  # linux/loop.h
_PACKAGES = {"mkfs.ext4": "e2fsprogs", "mount": "mount"}


@contextmanager
def mounted(directory: str, size: int) -> Iterator[str]:
    """Mount a new file system of `size` bytes; return its path, `directory/disk`.

    Raises a NotHereError where that is not possible. Only this process and its later children
    see the mount.
    """
    if os.geteuid() != 0:
        raise NotHereError("loop devices need root: sudo make demo")
    for tool, package in _PACKAGES.items():
        if shutil.which(tool, path=_path()) is None:
            raise NotHereError(f"{tool} is not installed: apt-get install {package}")
    libc = own_mounts()
    image, place = os.path.join(directory, "disk.img"), os.path.join(directory, "disk")
    try:
        _mount(image, place, size)
    except OSError as error:
        _remove(image, place)
        raise NotHereError(f"{error.strerror}: make room for {size >> 20} MiB") from error
    except subprocess.CalledProcessError as error:
        _remove(image, place)
        reason = " ".join((error.stderr or str(error)).split()).rstrip(".")
        raise NotHereError(f"{reason} (in a container: docker run --privileged)") from error
    try:
        yield place
    finally:
        # Detached, because a leg that failed may still have files open.
        libc.umount2(os.fsencode(place), MNT_DETACH)
        _remove(image, place)


def own_mounts() -> ctypes.CDLL:
    """Give this process, and its later children, mounts of their own; return libc."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Private, or the mounts would spread to the others.
    if libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _PRIVATE, None):
        reason = os.strerror(ctypes.get_errno())
        raise NotHereError(f"no mount namespace ({reason}): docker run --privileged")
    return libc


def _mount(image: str, place: str, size: int) -> None:
    os.makedirs(place, exist_ok=True)
    with open(image, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)  # fails now if there is no room
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", image)
    _run("mount", "-t", "ext4", "-o", "loop,noatime", image, place)
    os.remove(image)
    device = os.stat(place).st_dev
    name = os.path.basename(os.path.realpath(f"/sys/dev/block/7:{os.minor(device)}"))
    # Otherwise the image is read ahead and cached, too. Not every file system below can do that.
    with suppress(OSError), open(f"/dev/{name}", "rb") as loop:
        fcntl.ioctl(loop, _LOOP_SET_DIRECT_IO, 1)


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # that of a user may lack them


def _run(*command: str) -> None:
    environment = os.environ | {"PATH": _path(), "LC_ALL": "C"}
    subprocess.run(command, env=environment, check=True, stderr=subprocess.PIPE, text=True)


def _remove(image: str, place: str) -> None:
    with suppress(OSError):
        os.remove(image)
    with suppress(OSError):
        os.rmdir(place)
