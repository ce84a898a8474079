"""The values that a map consists of."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmap_tools import (
    load,
)

from .documents import (
    document,
    write,
)


def test_the_name_of_a_file_by_its_index(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, document()))
    assert [loaded.name(0), loaded.name(2), loaded.name(-1)] == [
        b"in the root",
        b"a/two",
        "b/deep/\udcff é 日本".encode("utf-8", "surrogateescape"),
    ]
    for file in (6, -7):
        with pytest.raises(IndexError):
            loaded.name(file)
