"""DALI's index of a WebDataset tar, versions 1.1 and 1.2, as its ParseIndexFile() reads it.

The first line is the version and the number of samples. A line for each sample follows: for each
component its extension, offset and size and, in v1.2, its name. Any white space separates. Text
after the last sample is ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import BinaryIO

import numpy as np

from .archive import BLOCK, REGULAR, Member, header, matches, members
from .components import Block, Group, grouped, samples

_WIDTHS = {b"v1.1": 3, b"v1.2": 4}  # words of a component
_BYTES = 4 << 20  # of lines that are parsed at a time
_LINE = 4096  # bytes of the first line, at most
_LONG = 100  # bytes: no room for a longer name in a header
_LARGE = 8 << 30  # bytes: no room for more in twelve octal digits
_BEFORE = 4096  # bytes before a file's data to search for its pax header or long name
_PLAIN = re.compile(rb"[0-9A-Za-z_.,=@%+-]+")  # names that tar(1) lists unchanged
_NUMBER = re.compile(rb"[+-]?0*[0-9]{1,18}")


def blocks(path: bytes, file: BinaryIO) -> Iterator[Block]:
    """Yield the samples of an index, which is open at its start.

    Lines with the same extensions, as in most blocks, are parsed as columns: 0.7 us a line.

    Raises:
        ValueError: the index has another version, fewer samples than its first line says, a line
            of another form, or an impossible place; names the line.
        OSError: the index cannot be read.
    """
    head = file.readline(_LINE)
    version, number = (*head.split(None, 2), b"", b"")[:2]
    if version not in _WIDTHS or not _NUMBER.fullmatch(number) or int(number) <= 0:
        what = f"expected v1.1 or v1.2 and the number of samples, not {head!r:.80}"
        raise line_error(path, -1, what)
    width, count, done = _WIDTHS[version], int(number), 0
    while done < count:
        lines = file.readlines(_BYTES)[: count - done]
        if not lines:
            raise line_error(path, done, f"the line is missing: line 1 says {count:,} samples")
        block = _columns(lines, width) or grouped(_words(path, lines, done, width))
        for _, which, places in block.groups:
            for what, wrong in (
                (f"an offset is not a multiple of {BLOCK}", places[:, :, :1] % BLOCK != 0),
                ("an offset or a size is negative", places < 0),
            ):
                for sample in which[wrong.any(axis=(1, 2))][:1].tolist():
                    raise line_error(path, done + sample, what)
        yield block._replace(probes=[*_probes(lines, done, width)])
        done += len(lines)


def _probes(lines: list[bytes], done: int, width: int) -> Iterator[tuple[int, Member]]:
    """Yield the files of the first and the last line, and of the line with the longest name.

    The longest name shows the error of wds2idx: the place of a GNU long name instead of the file.
    """
    long = [sample for sample, line in enumerate(lines) if len(line) > _LONG]
    long.sort(key=lambda sample: max(map(len, lines[sample].split()[width - 1 :: width])))
    for sample in sorted({0, *long[-1:], len(lines) - 1}):
        words = lines[sample].split()
        for at in range(0, len(words), width):
            name = words[at + 3] if width == 4 else b""
            yield done + sample, Member(name, int(words[at + 1]), int(words[at + 2]))


def names(file: BinaryIO) -> dict[int, bytes]:
    """Return the name of each file in an index that `blocks()` accepts, by offset; v1.1: empty."""
    version, count = file.readline(_LINE).split(None, 2)[:2]
    width, lines = _WIDTHS[version], map(bytes.split, islice(file, int(count)))
    parts = (line[at : at + width] for line in lines for at in range(0, len(line), width))
    return {int(part[1]): b"".join(part[3:]) for part in parts}


def index(path: bytes, progress: Callable[[int], object]) -> list[bytes]:
    """Return the lines of the index of a tar, v1.2.

    Raises:
        ValueError: as `archive.members()`; or an index cannot have such samples.
    """
    about, lines = repr(os.fsdecode(path)), [b""]
    for sample in samples(members(path, progress)):
        fields = [b"%b %d %d %b" % (ext, file.offset, file.size, file.name) for ext, file in sample]
        for field, (_, file) in zip(fields, sample, strict=True):
            if len(field.split()) != 4:
                what = "white space or no extension in a name, which an index cannot have"
                remedy = "rename the file, or read the tar without index_paths"
                raise ValueError(f"{about}, {os.fsdecode(file.name)!r}: {what}; {remedy}")
        lines += [b" ".join(fields) + b"\n"] if fields else []
    if len(lines) == 1:
        raise ValueError(f"{about}: the tar has no samples")
    lines[0] = b"v1.2 %d\n" % (len(lines) - 1)
    return lines


def line_error(path: bytes, sample: int, what: str) -> ValueError:
    """Return the error of a wrong line: of a sample, or the first line for -1."""
    remedy = "rebuild the index (python -m dali_storage index)"
    return ValueError(f"{line(path, sample)}: {what}; {remedy}")


def line(path: bytes, sample: int) -> str:
    """Return the line of a sample as text for messages; in a database, the sample."""
    where = f"sample {sample}" if b".sqlite, " in path else f"line {sample + 2}"
    return f"index {os.fsdecode(path)!r}, {where}"


def _columns(lines: list[bytes], width: int) -> Block | None:
    """Parse lines with the same extensions and plain numbers; return None for others."""
    count, per = len(lines), len(lines[0].split())
    text = b"".join(lines)
    if not per or per % width or b"\0" in text:
        return None
    # A word marks the end of each line: equal sums do not prove equal lengths of lines.
    words = (text.rstrip(b"\n") + b"\n").replace(b"\n", b" \0 ").split()
    step = per + 1
    if len(words) != step * count or words[per::step].count(b"\0") != count:
        return None
    extensions = tuple(words[:per:width])
    if any(words[i * width :: step].count(e) != count for i, e in enumerate(extensions)):
        return None
    places = np.empty((count, len(extensions), 2), np.int64)
    for component in range(len(extensions)):
        for column in (0, 1):
            numbers = b" ".join(words[component * width + 1 + column :: step])
            if numbers.translate(None, b"0123456789 "):
                return None
            places[:, component, column] = np.fromstring(numbers, np.int64, sep=" ")
    return Block(count, [Group(extensions, np.arange(count), places)])


def _words(
    path: bytes, lines: list[bytes], done: int, width: int
) -> Iterator[tuple[tuple[bytes, ...], list[int]]]:
    """Yield the extensions and numbers of any lines, the first one of the sample `done`."""
    for sample, line in enumerate(lines, done):
        words = line.split()
        if not words or len(words) % width:
            each = "extension, offset, size" + (" and name" if width == 4 else "")
            raise line_error(path, sample, f"expected {each} of each component, not {line!r:.80}")
        numbers = [
            word for first in range(1, len(words), width) for word in words[first : first + 2]
        ]
        if wrong := [word for word in numbers if not _NUMBER.fullmatch(word)]:
            raise line_error(path, sample, f"{wrong[0]!r:.40} should be a number")
        yield tuple(words[::width]), [*map(int, numbers)]


def before(member: Member) -> tuple[int, int]:
    """Return the position and length, in its tar, of a file's header and the records before."""
    start = max(member.offset - _BEFORE, 0)
    return start, member.offset - start


def contradiction(before: bytes, member: Member) -> str | None:
    """Describe how the header of a file contradicts an index; None if it does not.

    An index by wds2idx of a file with a long GNU name gives the place of the name.
    `before` has the bytes at `before()`. `member.name` may be empty, and is not compared if a
    record before the header changes the name.
    """
    if len(before) < BLOCK:
        return "there is no tar header"
    try:
        found = header(before[-BLOCK:])
    except ValueError as error:
        return str(error)
    if found.kind not in REGULAR:
        return f"the header there is of type {chr(found.kind)!r}, not of a file"
    if found.size != member.size and not (member.size >= _LARGE and found.size == 0):
        return f"the file there has {found.size:,} bytes"
    name, expected = found.name.rpartition(b"/")[2], member.name.rpartition(b"/")[2]
    if not expected or name == expected or not _PLAIN.fullmatch(name) or len(found.name) >= _LONG:
        return None
    first = len(before) % BLOCK
    blocks = (before[at : at + BLOCK] for at in range(first, len(before) - BLOCK, BLOCK))
    if any(block[156] in b"xL" and matches(block) for block in blocks):  # pax, or a long name
        return None
    return f"the file there is {os.fsdecode(name)!r}"
