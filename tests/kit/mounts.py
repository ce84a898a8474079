"""Our reader beside DALI's on a mount; tests/backends/files/test_mounts.py runs it in a namespace.

python -m tests.kit.mounts KIND ROOT DIRECTORY
"""

import errno
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

KINDS = ("fuse", "overlay")
REFUSED = 77
BATCHES = 25  # of 4 samples: more than an epoch


def mount(kind: str, root: Path, target: Path) -> None:
    """Mount the samples below `root` at `target`."""
    if kind == "fuse":
        image = target.with_name("image")
        subprocess.run(["mkfs.ext4", "-q", "-d", root, image, "64M"], check=True)
        subprocess.run(["fuse2fs", "-o", "ro", image, target], check=True)
    else:  # the last of the classes is in the layer below
        below = target.with_name("below")
        below.mkdir()
        shutil.move(max(root.iterdir()), below)
        layers = f"lowerdir={root}:{below}"
        subprocess.run(["mount", "-t", "overlay", "-o", layers, "none", target], check=True)


def main(kind: str, root: str, directory: str) -> int:
    target = Path(directory, "mount")
    target.mkdir()
    try:
        mount(kind, Path(root), target)
    except (OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return REFUSED

    from nvidia.dali import fn

    from dali_storage import readers
    from tests.kit.parity import build, take

    order = {"file_root": str(target), "random_shuffle": True, "initial_fill": 9, "seed": 3}
    order["dont_use_mmap"] = True  # DALI cannot map empty files
    expected = take(build(fn.readers.file, 4, {}, name="R", **order), BATCHES)
    assert any(len(content) > 8192 for batch in expected for _, _, content in batch[0])
    for io, direct in product(("preadv", "aio", "io_uring"), (False, True)):
        options = {"io": io, "direct": direct}
        try:
            found = take(build(readers.file, 4, {}, backend_options=options, **order), BATCHES)
        except OSError as error:
            if not direct or error.errno != errno.EINVAL:
                raise
        else:
            assert found == expected, options
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
