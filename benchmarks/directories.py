"""Directories that are made whole or not at all."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def make_whole(
    directory: str,
    part: str,
    names: Iterable[str],
    fill: Callable[[str], None],
    complete: Callable[[str], bool] = os.path.isdir,
) -> str:
    """Make `directory/part` with the files `names`, unless it is complete, and return its path.

    The files are written to another directory, which is then renamed, so that an interrupt leaves
    nothing. Files of the user are never deleted.

    Args:
        directory: is made if it is not there.
        part: the name of the directory.
        names: the paths of all files, in `directory/part`.
        fill: writes the files to the directory of its argument.
        complete: whether the files of the directory are the right ones, if their names are.
    """
    path, expected = os.path.join(directory, part), set(names)
    found = {str(file.relative_to(path)) for file in Path(path).rglob("*") if not file.is_dir()}
    if found - expected:
        raise FileExistsError(errno.EEXIST, "there are other files than those of the demo", path)
    if found == expected and complete(path):
        return path
    os.makedirs(directory, exist_ok=True)
    making = tempfile.mkdtemp(prefix=".making-", dir=directory)
    try:
        fill(making)
        os.chmod(making, 0o755)  # mkdtemp makes it private
        shutil.rmtree(path, ignore_errors=True)
        os.rename(making, path)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return path
