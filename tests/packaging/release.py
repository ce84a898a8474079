"""Checks what `make release` has built.

python -m tests.packaging.release DIST [TAG]
"""

import io
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

from tests.kit.paths import ROOT

PACKAGES = {it: it for it in ("dali_storage", "bmap_tools")} | {"backends": "dali_storage/backends"}


def check(dist: Path, tag: str) -> None:
    """Raises SystemExit with the first fault."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if tag not in ("", f"v{version}"):
        sys.exit(f"the tag {tag} is not of version {version}")
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    base = f"dali_storage-{version}"
    if (sdist.name, wheel.name) != (f"{base}.tar.gz", f"{base}-py3-none-any.whl"):
        sys.exit(f"unexpected names: {sdist.name}, {wheel.name}")
    expected = {
        f"{name}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, name in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if packed != expected:
        sys.exit(f"the wheel lacks or adds: {sorted(packed ^ expected)}")
    with tarfile.open(fileobj=io.BytesIO(sdist.read_bytes())) as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts
            if parts[0] != base or ".." in parts:
                sys.exit(f"the sdist has a file beside its directory: {member.name}")
            if member.issym() or member.islnk():
                sys.exit(f"the sdist has a link: {member.name} to {member.linkname}")
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := (expected | {"pyproject.toml", "README.md", "LICENSE"}) - names:
        sys.exit(f"the sdist lacks: {sorted(missing)}")


if __name__ == "__main__":
    check(Path(sys.argv[1]), "".join(sys.argv[2:]))
    print("the sdist and the wheel have the right files")
