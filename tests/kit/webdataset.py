"""A small WebDataset, its index, and what reads it."""

import os
from typing import Any

import numpy as np
from nvidia.dali import Pipeline

from dali_storage import readers
from dali_storage.contract.catalog import Catalog
from dali_storage.formats.tar import webdataset
from dali_storage.formats.tar.components import Selection
from tests.kit import parity

MEMBERS = [
    *(("1.jpg", b"one"), ("1.cls", b"0001")),
    *(("2.jpg", b"two" * 400), ("2.cls", b"0002"), ("2.txt", b"text")),
    *(("3.jpg", b"three"), ("3.cls", b"0003")),
]
INDEX = """v1.2 3
jpg 512 3 1.jpg cls 1536 4 1.cls
jpg 2560 1200 2.jpg cls 4608 4 2.cls txt 5632 4 2.txt
jpg 6656 5 3.jpg cls 7680 4 3.cls
"""


def build(operator: Any = readers.webdataset, batch_size: int = 3, **arguments: Any) -> Pipeline:
    ours = {"backend": "memory"} if operator is readers.webdataset else {}
    return parity.build(operator, batch_size, {}, **{"name": "R"} | ours | arguments)  # type: ignore[no-any-return]


def find(paths: Any, indexes: Any = None, ext: Any = (b"jpg", b"cls"), **options: Any) -> Catalog:
    dtypes = [np.dtype(dtype) for dtype in options.pop("dtypes", ["u1"] * len(ext))]
    selection = Selection(ext, dtypes, options.pop("missing", "empty"))
    encoded = [[*map(os.fsencode, each)] if each else None for each in (paths, indexes)]
    options = {"may_be_missing": False} | options
    return webdataset.find(encoded[0], encoded[1], selection, **options)  # type: ignore[arg-type]
