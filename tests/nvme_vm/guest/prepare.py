"""Copies files to a disk and maps them: `python -m tests.nvme_vm.guest.prepare`."""

import sys
from pathlib import Path

from tests.kit.devices import make_file_system, mounted, run
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers


def main() -> None:
    """Make a file system, fill it, and save its map in the shared directory."""
    node = controllers.disk(plan.MAPPED)
    make_file_system("ext4", node)
    root, bmap = f"{plan.MOUNT}/{plan.FILES}", controllers.DIRECTORY / plan.BMAP
    with mounted(node, Path(plan.MOUNT)):
        run("cp", "-r", str(controllers.DIRECTORY / plan.FILES), root)
        run(sys.executable, "-m", "bmap_tools", "create", root, "-o", str(bmap))


if __name__ == "__main__":
    main()
