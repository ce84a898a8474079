"""The promises of a reader of objects, named by URLs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from ..contract.catalog import Catalog
from ..contract.errors import ObjectReplacedError
from .contract import ReaderTests, only
from .probes import raises_naming
from .reading import fill, make_batch, make_known_batch, read


class ObjectTests(ReaderTests):
    """The promises of `dali_storage.contract.reader`, about objects.

    The objects are files, and a server answers each request with their current bytes. Subclasses
    override `published()`, which returns a catalog of their URLs, and `file()`. A reader of ranges
    inherits from `RangeTests`, too.
    """

    connections: ClassVar[int] = 64
    directory_error: ClassVar[type[OSError]] = FileNotFoundError  # stores have no directories
    # A replaced object has no new size, but an error: see the next two tests.
    test_a_changed_size_is_reported_and_then_known = None  # type: ignore[assignment]

    @only("files")
    @pytest.mark.parametrize("new", [b"", b"x", bytes(513), None], ids=lambda it: str(it)[:7])
    @pytest.mark.parametrize("known", [False, True], ids=["when it is read", "later"])
    def test_an_object_that_was_replaced_is_refused(
        self, catalog: Catalog, contents: list[bytes], new: bytes | None, known: bool
    ) -> None:
        changed = 6
        replaced = bytes(len(contents[changed])) if new is None else new
        with self.open(catalog) as reader:
            make = make_known_batch if known else make_batch
            batch = make(reader, np.array([2, changed, 4]), catalog)
            self.file(catalog, changed).write_bytes(replaced)
            for _ in range(2):  # the second time, too
                with raises_naming(ObjectReplacedError, catalog.path(changed)):
                    fill(reader, batch)
            self.others_are_right(reader, catalog, contents, broken=changed)

    @only("files")
    @pytest.mark.parametrize("empty", [True, False])
    @pytest.mark.parametrize("change", [os.unlink, lambda path: path.write_bytes(b"other")])
    def test_an_empty_object_is_compared_too(
        self, catalog: Catalog, contents: list[bytes], empty: bool, change: Callable[[Path], None]
    ) -> None:
        sample = next(i for i, content in enumerate(contents) if (not content) == empty)
        with self.open(catalog) as reader:
            assert read(reader, np.array([sample]), catalog) == [contents[sample]]
            change(self.file(catalog, sample))
            with raises_naming((ObjectReplacedError, FileNotFoundError), catalog.path(sample)):
                read(reader, np.array([sample]), catalog)

    @only("files")
    def test_the_first_object_of_a_batch_that_was_replaced_is_named(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            batch = make_known_batch(reader, np.array([2, 10, 4, 6]), catalog)
            for changed in (4, 10):
                self.file(catalog, changed).write_bytes(b"other")
            with raises_naming(ObjectReplacedError, catalog.path(10)):
                fill(reader, batch)
