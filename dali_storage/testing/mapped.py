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
from .reading import fill, in_other_files, make_batch, names_path, read


def _rewrite(path: Path) -> None:
    with open(path, "r+b") as file:  # in place, with the same size
        file.write(b"other")


def _append(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


def _replace(path: Path) -> None:
    twin = path.with_name("twin")
    twin.write_bytes(path.read_bytes())
    os.replace(twin, path)


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


class MappedReaderTests(SnapshotReaderTests):
    """The promises of a reader with an extent map, which refuses files that have changed.

    `open()` maps the catalog's root as it is at that moment.
    """

    @pytest.mark.parametrize(
        "change",
        [
            *(_rewrite, _append, _replace, _make_directory, os.unlink, os.utime),
            lambda path: os.truncate(path, 5),
            lambda path: os.truncate(path, 0),
        ],
        ids=["rewrite", "append", "replace", "mkdir", "unlink", "touch", "truncate", "empty"],
    )
    @pytest.mark.parametrize("known", [False, True], ids=["at first use", "later"])
    def test_a_changed_file_is_refused(
        self, catalog: Catalog, contents: list[bytes], change: Callable[[Path], None], known: bool
    ) -> None:
        changed = 6
        with self.open(catalog) as reader:
            if known:
                read(reader, np.arange(len(contents)), catalog)
            change(Path(os.fsdecode(catalog.path(changed))))
            for _ in range(2):  # the second time, too
                with pytest.raises(StaleMapError) as caught:
                    read(reader, np.array([2, changed, 4]), catalog)
                assert names_path(caught.value, catalog.path(changed))
            samples = in_other_files(catalog, changed)
            assert read(reader, samples, catalog) == [contents[sample] for sample in samples]

    def test_a_file_that_changes_between_sizes_and_read_is_refused(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            batch = make_batch(reader, np.array([2, 6, 4]), catalog)
            _append(Path(os.fsdecode(catalog.path(6))))
            with pytest.raises(StaleMapError) as caught:
                fill(reader, batch)
            assert names_path(caught.value, catalog.path(6))

    def test_the_first_changed_sample_of_a_batch_is_named(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            for changed in (4, 10):
                _append(Path(os.fsdecode(catalog.path(changed))))
            with pytest.raises(StaleMapError) as caught:
                read(reader, np.array([2, 10, 4, 6]), catalog)
            assert names_path(caught.value, catalog.path(10))

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
