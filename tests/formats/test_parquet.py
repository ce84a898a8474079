"""Where the values of columns of Parquet files are. The oracle is pyarrow's own reading."""

import os
import struct
import threading
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dali_storage.formats.files import LOCAL, Files
from dali_storage.formats.parquet import catalog, pages
from tests.kit.tables import write_table
from tests.kit.tiers import by_tier


class Store:
    """A store in which the URLs of files begin with https://x."""

    def heads(self, urls):
        return np.array([os.path.getsize(url[9:]) for url in urls]), np.full(len(urls), b"1")

    def contents(self, parts):
        return [Path(os.fsdecode(it[9:])).read_bytes()[at:][:size] for it, at, size in parts]


def found(path, columns="image", **given):
    """The values that are found in a file, by row, and in the same file in a store."""
    table = catalog.find([os.fsencode(path)], [columns], **given)
    url = b"https://x" + os.fsencode(path)
    there = catalog.find([url], [columns], files=Files(Store()), **given)
    assert there.ranges.starts.tolist() == table.ranges.starts.tolist()
    assert there.ranges.sizes.tolist() == table.ranges.sizes.tolist()
    content, ranges = Path(path).read_bytes(), table.ranges
    places = zip(ranges.starts.tolist(), ranges.sizes.tolist(), strict=True)
    return [content[start : start + size] for start, size in places]


KINDS = {
    "binary": pa.binary(),
    "large": pa.large_binary(),
    "view": pa.binary_view(),
    "fixed": pa.binary(16),
    "struct": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
    "nested": pa.struct({"left": pa.struct({"path": pa.string(), "bytes": pa.large_binary()})}),
    "required": pa.binary(),
}


def column(random, kind):
    """Values of a column, some of which may be null, and an array of them."""
    count, longest = random.choice([1, 7, 8, 9, 100, 700]), random.choice([0, 5, 300, 5000])
    nulls = random.choice([0, 0, 0.1, 0.9]) if kind != "required" else 0
    values = [None if random.random() < nulls else b"" for _ in range(count)]
    values = [it if it is None else random.randbytes(random.randint(0, longest)) for it in values]
    if random.random() < 0.4:
        values = [random.choice(values[:20]) for _ in range(count)]
    if kind == "fixed":
        values = [it if it is None else it.ljust(16)[:16] for it in values]
    cells = values
    if kind in ("struct", "nested"):
        inner = [{"bytes": it, "path": "x"} for it in values]
        cells = [it if it["bytes"] or random.random() < 0.5 else None for it in inner]
        values = [it["bytes"] if it else None for it in cells]
    if kind == "nested":
        cells = [{"left": it} if it or random.random() < 0.5 else None for it in cells]
    return values, pa.array(cells, KINDS[kind])


def some_options(random):
    return {
        "version": random.choice(["1.0", "2.6"]),
        "use_dictionary": random.random() < 0.5,
        "data_page_version": random.choice(["1.0", "2.0"]),
        "data_page_size": random.choice([100, 5000, 1 << 20]),
        "write_batch_size": random.choice([1, 10, 1024]),
        "row_group_size": random.choice([5, 64, 1000]),
        "write_page_checksum": random.random() < 0.3,
        "write_statistics": random.random() < 0.5,
        "write_page_index": random.random() < 0.5,
        "dictionary_pagesize_limit": random.choice([50, 1000, 1 << 20]),
        "use_content_defined_chunking": random.random() < 0.3,
    }


def some_file(random, path):
    """A column of a random file, and its values."""
    kind = random.choice([*KINDS])
    values, array = column(random, kind)
    fields = [pa.field("id", pa.int64()), pa.field("image", array.type, kind != "required")]
    table = pa.table([pa.array(range(len(values))), array], pa.schema(fields))
    write_table(path, table, **some_options(random))
    return {"nested": "image.left"}.get(kind, "image"), values


def test_values_are_those_that_pyarrow_reads(tmp_path):
    seen = Counter()
    for seed in range(by_tier(60, 600)):
        name, values = some_file(Random(seed), tmp_path / "x")
        assert [it or b"" for it in values] == found(tmp_path / "x", name, missing="empty"), seed
        some = [it for it in values if it is not None]
        if not some:
            with pytest.raises(ValueError, match="has no rows with values"):
                found(tmp_path / "x", name, missing="skip")
            continue
        assert found(tmp_path / "x", name, missing="skip") == some, seed
        about = pq.ParquetFile(tmp_path / "x").metadata.row_group(0).column(1)
        seen.update([*about.encodings, "nulls" if len(some) < len(values) else "none"])
    assert {"PLAIN", "RLE_DICTIONARY", "nulls", "none"} <= {*seen}


def test_flipped_bits_are_refused_or_give_places_within_the_file(tmp_path):
    seen = Counter()
    path = tmp_path / "x"
    for seed in range(by_tier(40, 400)):
        random = Random(seed)
        name, _ = some_file(random, path)
        content, metadata = path.read_bytes(), pq.read_metadata(path)
        for _ in range(10):
            group = metadata.row_group(random.randrange(metadata.num_row_groups)).column(1)
            first = group.dictionary_page_offset or group.data_page_offset
            at = random.randrange(first, first + group.total_compressed_size)
            if random.random() < 0.5:  # mostly in the footer
                at = len(content) - 1 - random.randrange(metadata.serialized_size + 100)
                at = max(at, 0)
            flipped = bytes([content[at] ^ 1 << random.randrange(8)])
            path.write_bytes(content[:at] + flipped + content[at + 1 :])
            where, files = os.fsencode(path), LOCAL
            if random.random() < 0.5:
                where, files = b"https://x" + where, Files(Store())
            try:
                table = catalog.find([where], [name], "id", missing="empty", files=files)
            except ValueError as error:
                seen["refused" if str(path) in str(error) else str(error)] += 1
            else:
                assert table.ranges.first_outside(np.array([len(content)])) is None
                seen["found"] += 1
    assert {*seen} == {"refused", "found"}
    assert min(seen.values()) > 50


# --- pages made by hand, as the format says -----------------------------------------------------


def number(value, field=b"\x15"):
    """A field of Thrift's compact protocol that is the next one: an integer, in zigzag."""
    parts, rest = bytearray(), value << 1
    while rest > 127:
        parts.append(rest & 127 | 128)
        rest >>= 7
    return field + bytes(parts) + bytes([rest])


def page(values, levels=b"", *, more=b"", coding=3, kind=0, extra=b"", count=None):
    """A data page v1 (or of another kind) of plain values, with `more` after them."""
    body = levels + b"".join(struct.pack("<I", len(it)) + it for it in values) + more
    head = number(kind) + number(len(body)) + number(len(body))
    inner = number(len(values) if count is None else count)
    inner += number(0) + number(coding) + number(coding) + extra
    return head + b"\x2c" + inner + b"\0\0" + body


def indices(body, levels):
    """A dictionary of two values, and a page v2 of indices that claims `levels` bytes of levels."""
    values = b"".join(struct.pack("<I", 1) + it for it in (b"a", b"b"))
    head = number(2) + number(len(values)) + number(len(values))
    dictionary = head + b"\x4c" + number(2) + number(0) + b"\0\0" + values
    head = number(3) + number(len(body)) + number(len(body))
    inner = number(3) + number(0) + number(3) + number(8) + number(levels) + number(0)
    return dictionary + head + b"\x5c" + inner + b"\0\0" + body


def walked(content, rows, level=0):
    chunks = [pages.Chunk(0, len(content), rows, 0, frozenset())]
    leaf = pages.Leaf("x", level, 0, chunks)

    def run(walks):
        return pages.in_turn(walks, lambda at, size: content[at : at + size])

    starts, sizes = pages.find(leaf, run, 64)
    places = zip(starts.tolist(), sizes.tolist(), strict=True)
    return [None if size < 0 else content[start : start + size] for start, size in places]


VALUES = [b"one", b"", b"three" * 50]


@pytest.mark.parametrize(
    "content",
    [
        page(VALUES),
        page(VALUES, more=bytes(8)),  # of fastparquet, which also codes missing levels as 4
        page(VALUES, coding=4),
        page([], kind=1, more=b"index") + page(VALUES[:1]) + page(VALUES[1:]),
        page(VALUES, extra=b"\x1c\x18\xf0\x2e" + b"s" * 6000 + b"\0"),  # statistics
        page(VALUES, extra=b"\x19\xf5\x10" + b"\x02" * 16 + b"\x17" + bytes(8) + b"\x11\x13\x07"),
    ],
    ids=["plain", "zeros", "no levels", "two pages", "long header", "fields of all types"],
)
def test_pages_are_read_as_the_format_says(content):
    assert walked(content, 3) == VALUES


def test_levels_are_runs_or_groups_of_bits():
    run, bits = b"\x06\x01\x02\x00", b"\x03\x07"  # 3 times 1, then 0; 1 1 1 0 0 ...
    for coded in (run, bits):
        levels = struct.pack("<I", len(coded)) + coded
        assert walked(page(VALUES, levels, count=4), 4, level=1) == [*VALUES, None]


def test_indices_lead_to_the_values_of_the_dictionary():
    run = b"\x06\x01"  # 3 times 1
    for coded, found in ((b"\x01\x03\x05", b"bab"), (b"\x01" + run, b"bbb"), (b"\0", b"aaa")):
        values = [found[n : n + 1] for n in range(3)]
        assert walked(indices(coded, 0), 3) == values
        assert walked(indices(run + coded, 2), 3, level=1) == values


BAD = {
    "levels beyond the page": (indices(b"\x01\x03\x05", 99), 0, "values beyond its end"),
    "index beyond": (indices(b"\x02\x03\x08\0", 0), 0, "an index beyond its dictionary"),
    "wide indices": (indices(b"\x21\x03" + bytes(99), 0), 0, "integers of 33 bits"),
    "nine zeros": (page(VALUES, more=bytes(9)), 0, "do not add up to its size"),
    "eight others": (page(VALUES, more=b"1" * 8), 0, "has more bytes than its values"),
    "coded levels": (page(VALUES, coding=4), 1, "the levels of the page at 0 are coded as 4"),
    "other rows": (page([*VALUES, b""]), 0, "have other values than the footer says"),
    "fewer rows": (page(VALUES[1:]), 0, "1 values are missing in the pages that end at"),
    "a page of pages": (b"\x1c" * 5000, 0, "the page header at 0 is wrong"),
    "long number": (b"\x15" + b"\xff" * 11, 0, "a number has more than 64 bits"),
    "empty run": (page(VALUES, b"\x02\0\0\0\0\1"), 1, "a run is empty, or beyond the end"),
    "short levels": (page(VALUES, b"\x01\0\0\0\x80"), 1, "of the page at 0 end early"),
    "very many values": (page([], count=3), 0, "the page at 0 has fewer bytes than 3 values"),
}


@pytest.mark.parametrize(("content", "level", "message"), BAD.values(), ids=BAD)
def test_pages_that_contradict_themselves_are_refused(content, level, message):
    with pytest.raises(ValueError, match=message):
        walked(content, 3, level)


def test_an_error_of_an_object_does_not_wait_for_others():
    hangs, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    class Store:
        heads = staticmethod(lambda urls: (np.full(len(urls), 1000), np.zeros(len(urls), "S1")))

        def contents(self, parts):
            if parts[0][0] == b"s3://b/0":
                hangs.wait()
                raise FileNotFoundError(2, "none", "s3://b/0")
            hangs.set()
            go_on.wait(60)
            ended.set()
            raise OSError

    with pytest.raises(FileNotFoundError):
        catalog.find([b"s3://b/0", b"s3://b/1"], ["image"], files=Files(Store()))
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(60)
