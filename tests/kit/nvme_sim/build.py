"""Builds the kernel for the host, and the simulated controller, with g++."""

import subprocess
from pathlib import Path

from dali_storage.backends.gpu import layout

COMPILER = "g++"
FLAGS = ["-std=c++17", "-Wall", "-shared", "-fPIC", "-pthread"]
# Without memory that the loader allocates for each thread and frees in another, which
# ThreadSanitizer takes for a race: it does not see the loader's locks.
FLAGS += ["-ftls-model=initial-exec"]
FAST = ["-O2"]
SANITIZED = ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan"]
FOLDER = Path(__file__).parent


def sources() -> dict[str, str]:
    """The texts of the kernel for the host, by the names of their files."""
    asserted = "\n".join(
        f'static_assert(__builtin_offsetof({struct}, {name}) == {offset}, "layout.py");\n'
        f'static_assert(sizeof({struct}::{name}) == {kind.itemsize}, "layout.py");'
        for struct, dtype in (("QueuePair", layout.QUEUE_PAIR), ("Batch", layout.BATCH))
        for name, (kind, offset, *_) in dtype.fields.items()
        if name != "padding"
    )
    return {
        "submit.cu": f"{layout.source()}\n{asserted}\n",
        **{name: (FOLDER / name).read_text() for name in ("host.h", "host.cpp")},
    }


def build_kernel(
    folder: Path, lanes: int, *, flags: list[str] = FAST, texts: dict[str, str] | None = None
) -> Path:
    """The kernel with so many lanes, as a library in a new folder."""
    folder.mkdir()
    for name, text in (texts or sources()).items():
        (folder / name).write_text(text)
    return _build(folder / "host.cpp", folder / "kernel.so", [*flags, f"-DLANES={lanes}"])


def build_controller(folder: Path, *, flags: list[str] = FAST) -> Path:
    """The simulated controller, as a library in a new folder."""
    folder.mkdir()
    return _build(FOLDER / "controller.cpp", folder / "controller.so", flags)


def _build(source: Path, target: Path, flags: list[str]) -> Path:
    command = [COMPILER, *FLAGS, *flags, "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target
