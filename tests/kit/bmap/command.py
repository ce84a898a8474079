"""What the tests of the commands share: running them, and reading the map as plain JSON."""

import io
import json
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from bmap_tools.__main__ import main
from tests.kit.devices import Disk, run
from tests.kit.paths import ROOT


def tool(*arguments: object) -> int:
    """The exit status, also where argparse ends the program."""
    try:
        return main(
            [os.fspath(part) if isinstance(part, Path) else str(part) for part in arguments]
        )
    except SystemExit as stop:
        return int(stop.code or 0)


def program(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "bmap_tools", *map(str, arguments)]
    environment = os.environ | environment
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def fill(root: Path, sizes: tuple[int, ...] = (700, 0, 4096, 9000), classes: int = 2) -> list[Path]:
    generator = np.random.default_rng(1)
    paths = []
    for number, size in enumerate(sizes):
        path = root / f"c{number % classes}" / f"{number:02d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(generator.bytes(size))
        paths.append(path)
    return paths


def load(bmap: Path) -> dict[str, Any]:
    """The map as any JSON reader sees it."""
    content = json.loads(bmap.read_text("ascii"))
    assert isinstance(content, dict)
    return content


def entries(bmap: Path) -> dict[str, list[Any]]:
    """Path -> what else is in its row."""
    return {path: rest for path, *rest in load(bmap)["files"]}


def through_the_image(made: Disk, bmap: Path) -> dict[str, bytes]:
    """The bytes of the mapped files, as their extents find them in the image of the whole disk."""
    run("sync", "--file-system", str(made.mount))
    content, found = load(bmap), {}
    with open(made.image, "rb") as image:
        for path, size, *_, extents in content["files"]:
            written = bytearray(-(-size // 4096) * 4096)
            for logical, physical, length in extents if isinstance(extents, list) else ():
                if physical is not None:
                    image.seek(content["device"]["start"] + physical)
                    written[logical : logical + length] = image.read(length)
            found[path] = bytes(written[:size])
    return found


def printed(status: int, *arguments: object) -> tuple[str, str]:
    """What the command prints and says, without a traceback; it ends with this exit status."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as said:
        assert tool(*arguments) == status, said.getvalue()
    assert "Traceback" not in said.getvalue()
    return out.getvalue(), said.getvalue()


def shows(*arguments: object) -> str:
    return printed(0, "show", *arguments)[0]


def says(status: int, *arguments: object) -> str:
    return printed(status, *arguments)[1]


def refused(*arguments: object) -> str:
    """The one line that is said when a command can do nothing."""
    said = [line for line in says(2, *arguments).splitlines() if not line.startswith("  ")]
    assert said[-1].startswith("bmap_tools: ")
    return said[-1]


def settle() -> None:
    """Let what was written become older than a tick of the kernel's clock."""
    time.sleep(0.06)


def rewrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"x")
