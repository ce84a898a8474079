"""The samples of a WebDataset, and their components for each output.

The rules follow DALI's loader/webdataset_loader.cc: a sample is a sequence of files with equal
names up to the first dot in the last component; the rest is the extension.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...contract._types import IntArray
from .archive import Member

_LISTED = 20  # extensions in a message

Sample: TypeAlias = list[tuple[bytes, Member]]
"""The components of a sample: the extension and the file of each."""


def samples(found: Iterable[Member]) -> Iterator[Sample]:
    """Yield the samples of a tar with these files; as in DALI, the last one may be empty."""
    last: bytes | None = None
    sample: Sample = []
    for member in found:
        base, extension = split_name(member.name)
        last = base if last is None else last  # a hidden first file opens a sample, too
        if not base:
            continue
        if base != last:
            yield sample
            last, sample = base, []
        sample.append((extension, member))
    yield sample


def split_name(name: bytes) -> tuple[bytes, bytes]:
    """Split a name into sample and extension. Without a dot, both are the whole name."""
    dot = name.find(b".", name.rfind(b"/") + 1)
    return (name, name) if dot < 0 else (name[:dot], name[dot + 1 :])


class Group(NamedTuple):
    """Samples with the same extensions.

    Attributes:
        extensions: the extensions of the c components, in their order.
        samples: int64[n], indices in the block.
        places: int64[n, c, 2], bytes: offset and size of each component.
    """

    extensions: tuple[bytes, ...]
    samples: IntArray
    places: IntArray


class Block(NamedTuple):
    """Consecutive samples.

    Attributes:
        size: the number of samples.
        groups: the samples, grouped by their extensions.
        probes: the samples and files of an index to compare with the tar.
    """

    size: int
    groups: list[Group]
    probes: Sequence[tuple[int, Member]] = ()


def grouped(samples: Iterable[tuple[tuple[bytes, ...], Iterable[int]]]) -> Block:
    """Make a block from the extensions of each sample, and its components' offsets and sizes."""
    found: dict[tuple[bytes, ...], tuple[list[int], list[int]]] = {}
    number = -1
    for number, (extensions, numbers) in enumerate(samples):
        which, places = found.setdefault(extensions, ([], []))
        which.append(number)
        places.extend(numbers)
    groups = [
        Group(extensions, np.array(which), np.array(places, np.int64).reshape(len(which), -1, 2))
        for extensions, (which, places) in found.items()
    ]
    return Block(number + 1, groups)


@dataclass(slots=True, eq=False)
class Selection:
    """The outputs of a reader.

    Attributes:
        ext: the extensions of each output, separated by semicolons. The first component of a
            sample with one of them is the output.
        dtypes: the type of each output.
        missing: "empty", "skip" or "error", for a sample with fewer components than outputs. A
            component of several outputs counts once.
        case_sensitive: whether upper and lower case of ASCII letters differ in extensions.
        matched: whether a component has been an output.
        seen: some of the extensions in the tars.
    """

    ext: Sequence[bytes]
    dtypes: Sequence[np.dtype[Any]]
    missing: str = "empty"
    case_sensitive: bool = True
    matched: bool = False
    seen: dict[bytes, None] = field(default_factory=dict)
    _wanted: dict[bytes, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for output, alternatives in enumerate(self.ext):
            parts = self._folded(alternatives).split(b";")
            if not parts[-1]:  # like C++'s getline(): nothing after the last semicolon
                parts.pop()
            for extension in dict.fromkeys(parts):
                self._wanted.setdefault(extension, []).append(output)

    def choose(
        self, block: Block, first: int, where: Callable[[int], str]
    ) -> tuple[IntArray, IntArray]:
        """Choose the outputs of the samples of a block, without skipped samples.

        Args:
            block: the samples.
            first: the index of the block's first sample in its container.
            where: the place of a sample of the container, for messages.

        Returns:
            int64[n, outputs, 2]: offset and size, both 0 for a missing component. int64[n]: the
            samples' indices in the container.

        Raises:
            ValueError: a size is not a multiple of the item size of the dtype; or a component is
                missing, with missing="error".
        """
        rows = np.zeros((block.size, len(self.ext), 2), np.int64)
        kept = np.ones(block.size, bool)
        for extensions, samples, places in block.groups:
            picked = self._pick(extensions)
            rows[samples[:, None], [*picked]] = places[:, [*picked.values()]]
            if len({*picked.values()}) < len(self.ext):  # DALI counts components, not outputs
                kept[samples] = self.missing != "skip"
                if self.missing == "error":
                    lacks = [extension for i, extension in enumerate(self.ext) if i not in picked]
                    what = f"nothing for {texts(lacks)}" if lacks else "a component is two outputs"
                    about = where(first + int(samples[0]))
                    raise ValueError(f"{about}: {what}; it has {texts(extensions)}")
        items = np.array([dtype.itemsize for dtype in self.dtypes])
        for sample, output in np.argwhere(rows[:, :, 1] % items)[:1].tolist():
            what = f"{rows[sample, output, 1]:,} bytes for {texts([self.ext[output]])}"
            what += f", not a multiple of the size of {self.dtypes[output]}"
            raise ValueError(f"{where(first + sample)}: {what}")
        return rows if kept.all() else rows[kept], first + np.flatnonzero(kept)

    def _pick(self, extensions: tuple[bytes, ...]) -> dict[int, int]:
        """Return the component of each output, for a sample with these extensions."""
        picked: dict[int, int] = {}
        for component, extension in enumerate(map(self._folded, extensions)):
            for output in self._wanted.get(extension, ()):
                picked.setdefault(output, component)
        if len(self.seen) <= _LISTED:
            self.seen.update(dict.fromkeys(extensions))
        if picked:  # several threads may be here
            self.matched = True
        return picked

    def refuse_nothing(self, count: int) -> None:
        """Raise ValueError if no sample was kept (`count` is 0), or none has any output.

        Samples without any component are accepted if there are no others.
        """
        if count and (self.matched or not any(self.ext) or not self.seen):
            return
        which = "all components" if self.matched else "any component"
        what = f"no sample has {which} of {texts(self.ext)}; the tars have {texts(self.seen)}"
        raise ValueError(f"ext: {what}")

    def _folded(self, extension: bytes) -> bytes:
        return extension if self.case_sensitive else extension.lower()


def texts(extensions: Iterable[bytes]) -> str:
    """Return extensions as text for messages."""
    found = [repr(os.fsdecode(extension)) for extension in extensions]
    return ", ".join(found[:_LISTED] + (["..."] if len(found) > _LISTED else [])) or "no extensions"
