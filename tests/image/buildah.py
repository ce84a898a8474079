"""Builds and runs images with buildah, which needs neither a daemon nor namespaces of its own."""

import ast
import json
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PIP_SETTINGS = ("cert", "extra-index-url", "index-url", "proxy", "trusted-host")


class Buildah:
    """The images and containers in one directory."""

    def __init__(self, directory: Path) -> None:
        self._storage = (f"--root={directory / 'storage'}", f"--runroot={directory / 'run'}")

    def __call__(self, command: str, *arguments: str | Path) -> str:
        """The standard output of a command that must succeed."""
        done = self.run(command, *arguments)
        assert done.returncode == 0, (
            f"buildah {command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        )
        return done.stdout.strip()

    def run(self, command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """A command that may fail."""
        return subprocess.run(
            ["buildah", *self._storage, command, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )

    def build(
        self, context: Path, tag: str, arguments: Mapping[str, str], volumes: Mapping[Path, str]
    ) -> None:
        """Build the Dockerfile of a directory; `volumes` are mounted for its commands."""
        options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        options += [f"--volume={source}:{target}" for source, target in volumes.items()]
        self("build", "--isolation=chroot", "--network=host", *options, f"--tag={tag}", context)

    def close(self) -> None:
        """Unmount and delete all containers; then the directory can be deleted."""
        self("rm", "--all")

    def import_tar(self, archive: Path, tag: str) -> None:
        """Make an image of one layer."""
        container = self("from", "scratch")
        self("add", "--quiet", container, archive, "/")
        self("commit", "--quiet", "--rm", container, tag)

    def config(self, image: str) -> dict[str, Any]:
        """The OCI image configuration (Entrypoint, Cmd, Env and so on), with the history."""
        described: dict[str, Any] = json.loads(self("inspect", "--type=image", image))["OCIv1"]
        config: dict[str, Any] = described["config"]
        return config | {"history": described["history"]}


@dataclass(frozen=True)
class Container:
    """A container of an image; each call runs its entry point once.

    Attributes:
        root: its file system.
    """

    buildah: Buildah
    name: str
    root: Path
    entry_point: tuple[str, ...]

    def __call__(
        self, user: str, *arguments: str, volumes: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run it as `docker run --user USER --volume ... IMAGE arguments` would.

        The user is "UID:GID", which the image need not know.
        """
        return self.buildah.run(
            "run",
            *("--isolation=chroot", f"--user={user}"),
            *(f"--volume={volume}" for volume in volumes),
            *(self.name, "--", *self.entry_point, *arguments),
        )


def bootstrap(archive: Path) -> None:
    """Make an archive of a minimal Debian of this system's release, unless there is one."""
    if archive.exists():
        return
    directory, unfinished = archive.with_suffix(".making"), archive.with_suffix(".part")
    shutil.rmtree(directory, ignore_errors=True)
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    subprocess.run(
        ["/usr/sbin/debootstrap", "--variant=minbase", release, directory, *_mirror(release)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    for cache in ("var/lib/apt/lists", "var/cache/apt/archives"):  # as official images have them
        shutil.rmtree(directory / cache)
        (directory / cache).mkdir()
    with tarfile.open(unfinished, "w") as tar:
        tar.add(directory, ".")
    shutil.rmtree(directory)
    unfinished.rename(archive)


def _mirror(release: str) -> tuple[str, ...]:
    """The address from which apt gets the packages of a release, if it is configured."""
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)"],
        check=True,
        capture_output=True,
        text=True,
    )
    found = [line.split() for line in targets.stdout.splitlines()]
    return tuple(uri for name, uri in found if name == release)[:1]


def pip_volumes(home: Path) -> dict[Path, str]:
    """Volumes with the settings and the cache of this machine's pip, for pip in a build.

    They are mounted below /root, which every base image has, so that neither the image nor its
    history has a trace of them. Indexes in local directories are left out.

    Args:
        home: a new directory, which becomes the home directory of root.
    """
    settings: dict[str, str] = {}
    for line in _pip("config", "list").splitlines():  # the environment first: it takes precedence
        key, _, value = line.partition("=")
        words = [word for word in str(ast.literal_eval(value)).split() if "file:" not in word]
        settings.setdefault(key.rpartition(".")[2], " ".join(words))
    chosen = {name: settings[name] for name in _PIP_SETTINGS if settings.get(name)}
    for directory in (".config/pip", ".cache/pip"):
        (home / directory).mkdir(parents=True)
    if "cert" in chosen:
        shutil.copyfile(chosen["cert"], home / "certificates.pem")
        chosen["cert"] = "/root/certificates.pem"
    lines = ["[global]", *(f"{name} = {value}" for name, value in chosen.items())]
    (home / ".config" / "pip" / "pip.conf").write_text("\n".join(lines) + "\n")
    cache = Path(_pip("cache", "dir").strip())
    cache.mkdir(parents=True, exist_ok=True)
    return {home: "/root", cache: "/root/.cache/pip"}


def _pip(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments], check=True, capture_output=True, text=True
    ).stdout
