"""A backend of somebody else that reads ranges, too: that of its page in docs and 30 lines."""

import os
from typing import Any

import numpy as np

from dali_storage import Catalog, ContainerChangedError
from dali_storage.contract.catalog import state_of
from dali_storage.testing import RangeTests, ReaderTests
from tests.kit.pages import snippets

names: dict[str, Any] = {}
exec(snippets("docs/write-a-backend.md", "python")[0], names)
PreadReader: Any = names["PreadReader"]


class SpanReader(PreadReader):
    """Reads each span by one system call, and remembers every container."""

    reads_ranges = True

    def __init__(self, catalog: Catalog, *, lanes: int = 4) -> None:
        super().__init__(catalog, lanes=lanes)
        found = () if catalog.states is None else enumerate(catalog.states.tolist())
        self._known = {file: state for file, state in found if any(state)}

    def read(self, batch, lane):
        if self._catalog.ranges is None:
            super().read(batch, lane)
            return
        memory, spans = memoryview(batch.buffer), batch.spans
        for span in np.argsort(spans.slots).tolist():  # the first that fails is named
            file, offset = int(spans.files[span]), int(spans.offsets[span])
            path = os.fsdecode(self._catalog.file_path(file))
            into = memory[offset : offset + int(spans.sizes[span])]
            fd = os.open(path, os.O_RDONLY)
            try:
                known = self._known.setdefault(file, state_of(os.fstat(fd)))
                got = os.preadv(fd, [into], int(spans.starts[span]))
                now = state_of(os.fstat(fd))
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from None
            finally:
                os.close(fd)
            if now != known or got < spans.needed[span] or self._catalog.altered([file]):
                what = "the container has changed; rebuild its index and the pipeline"
                raise ContainerChangedError(os.fsencode(path), what)


class TestSpanBackend(RangeTests, ReaderTests):
    packings = ("ranges",)  # whole files are read as on the page, and tested in test_docs
    batches = 50

    def open(self, catalog):
        return SpanReader(catalog)
