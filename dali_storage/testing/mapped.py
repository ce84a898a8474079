"""The promises of a reader with an extent map."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ..contract.catalog import Catalog
from ..contract.errors import StaleMapError
from ..contract.reader import Reader
from ..samples.discovery import from_directory
from .contract import SnapshotReaderTests, only
from .probes import raises_naming
from .ranges import append, rewrite
from .reading import fill, make_batch, read


def _replace(path: Path) -> None:
    twin = path.with_name("twin")
    twin.write_bytes(path.read_bytes())
    os.replace(twin, path)


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _rewrite_and_keep_mtime(path: Path) -> None:
    """Rewrite as `rsync --inplace --times` does: only the ctime changes."""
    status = path.stat()
    rewrite(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


_CHANGES: dict[str, Callable[[Path], None]] = {
    "rewrite": rewrite,
    "keep mtime": _rewrite_and_keep_mtime,
    "append": append,
    "replace": _replace,
    "mkdir": _make_directory,
    "unlink": os.unlink,
    "touch": os.utime,
    "truncate": lambda path: os.truncate(path, 5),
    "empty": lambda path: os.truncate(path, 0),
}


class MappedReaderTests(SnapshotReaderTests):
    """The promises of a reader with an extent map, which refuses changed files.

    `open()` maps the current state of the catalog's root.
    """

    @pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
    @pytest.mark.parametrize("known", [False, True], ids=["at first use", "later"])
    def test_a_changed_file_is_refused(
        self, catalog: Catalog, contents: list[bytes], change: Callable[[Path], None], known: bool
    ) -> None:
        changed = 6
        with self.open(catalog) as reader:
            if known:
                read(reader, np.arange(len(contents)), catalog)
            change(self.file(catalog, changed))
            for _ in range(2):  # the second time, too
                with raises_naming(StaleMapError, catalog.path(changed)):
                    read(reader, np.array([2, changed, 4]), catalog)
            self.others_are_right(reader, catalog, contents, broken=changed)

    def test_a_file_that_changes_between_sizes_and_read_is_refused(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            batch = make_batch(reader, np.array([2, 6, 4]), catalog)
            append(self.file(catalog, 6))
            with raises_naming(StaleMapError, catalog.path(6)):
                fill(reader, batch)

    def test_the_first_changed_sample_of_a_batch_is_named(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            for changed in (4, 10):
                append(self.file(catalog, changed))
            with raises_naming(StaleMapError, catalog.path(10)):
                read(reader, np.array([2, 10, 4, 6]), catalog)

    @only("files")
    def test_a_sample_not_in_the_map_is_refused(self, catalog: Catalog, directory: Path) -> None:
        with self.open(catalog) as reader:
            (directory / "class" / "new").write_bytes(b"bytes")
            grown = from_directory(directory, file_filters="*")
            with pytest.raises(StaleMapError, match="1 of 14 samples are not in the map"):
                self.reopen(reader, grown)

    def reopen(self, reader: Reader, catalog: Catalog) -> Reader:
        """Open another reader with the map of `reader`; every subclass overrides this."""
        raise NotImplementedError
