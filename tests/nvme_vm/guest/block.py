"""The backend block on /dev/nvmeXn1: hostile layouts, compared with the files."""

import numpy as np
import pytest

from dali_storage.backends.block import BlockReader
from dali_storage.testing import read


@pytest.mark.parametrize("max_transfer", [64 << 10, 1 << 20])
def test_hostile_layouts_are_read_right(layout, max_transfer):
    samples, options = np.arange(len(layout.catalog)), {"max_transfer": max_transfer}
    for uri in (None, layout.node, layout.disk):
        with BlockReader(layout.catalog, bmap=layout.bmap, uri=uri, **options) as reader:
            assert read(reader, samples) == layout.contents
