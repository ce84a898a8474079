"""The containers that `packing` makes, as the legs read them."""

import os
from dataclasses import dataclass

import numpy as np

from dali_storage import IntArray

DIRECTORY = "shards"
"""Where they are in the directory of a data set: in one directory for each format."""
SUFFIXES = {"webdataset": ".tar", "tfrecord": ".tfrecord"}
"""How the names of containers end, by format."""


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """Containers of one format. Their samples are those of `readers.file`, in list order.

    Attributes:
        files: their paths.
        indexes: the path of the index of each.
        counts: int64[files], how many samples each has.
    """

    files: list[str]
    indexes: list[str]
    counts: IntArray


def find(directory: str, form: str) -> Shards:
    """The containers of a format in the directory of a data set; an OSError if there are none."""
    folder = os.path.join(directory, DIRECTORY, form)
    names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIXES[form]))
    files = [os.path.join(folder, name) for name in names]
    indexes = [os.path.splitext(file)[0] + ".idx" for file in files]
    return Shards(files, indexes, np.array([len(rows(index)) for index in indexes], np.int64))


def rows(index: str) -> list[list[str]]:
    """The words of each sample in an index."""
    with open(index, encoding="ascii") as lines:
        words = [line.split() for line in lines]
    return words[1:] if words and words[0][0].startswith("v") else words
