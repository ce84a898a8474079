"""`python -m dali_storage unpack FILE... -o DIR`: rewrites Parquet files for `readers.parquet`.

The columns of bytes are written without compression and in PLAIN encoding; the others keep their
compression, and the schema its metadata, such as the features of datasets. Row groups stay. The
exit status is 0 if all files are written, else 1.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from bmap_tools import console
from bmap_tools.atomic import replacing

from ..formats.parquet.catalog import footer_of
from ..formats.parquet.footer import chunks_of, codec_name, number_of, numbers_of_bytes

_CODECS = {"uncompressed": "none", "lz4_raw": "lz4"}  # other names in pyarrow
_DICTIONARY = {2, 8}  # encodings


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the files; errors go to stderr. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dali_storage unpack",
        description="Write each FILE, a Parquet file, to DIR, with its images or sounds "
        "uncompressed and in PLAIN encoding: readers.parquet then reads each of them alone.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a Parquet file")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="where to write")
    parser.add_argument(
        "--column",
        action="append",
        metavar="NAME",
        help="a column to unpack, such as image; may be given several times. Default: all of bytes",
    )
    given = parser.parse_args(arguments)
    targets = {os.path.join(given.output, os.path.basename(file)): file for file in given.files}
    if len(targets) < len(given.files):
        parser.error("two files have the same name: unpack them one by one")
    failed = 0
    with console.bar("unpacking", len(targets)) as tick:
        for done, (target, file) in enumerate(targets.items()):
            try:
                unpack(file, target, given.column)
                print(f"{target!r}: {file!r}, unpacked")
            except (OSError, ValueError) as error:
                print(f"error: {error}", file=sys.stderr)
                failed += 1
            tick(done + 1)
    return 1 if failed else 0


def unpack(file: str, target: str, columns: Sequence[str] | None = None) -> None:
    """Write a file to `target`, with `columns` plainly stored; None: all columns of bytes.

    Raises:
        ValueError: the file is not Parquet, is damaged or encrypted, or lacks a column of bytes.
        OSError: it cannot be read, or the target cannot be written.
    """
    footer = footer_of(os.fsencode(file))
    try:
        if os.path.exists(target) and os.path.samefile(file, target):
            raise ValueError("it would be overwritten; give another directory")
        plain = [number_of(footer, it) for it in columns or ()] or numbers_of_bytes(footer)
        codecs, dictionaries = dict.fromkeys(footer.leaves, "none"), []
        others = [it for n, it in enumerate(footer.leaves) if n not in plain]
        for path in others:
            for it in chunks_of(footer, footer.leaves.index(path))[:1]:
                codecs[path] = _CODECS.get(name := codec_name(it.codec).lower(), name)
                dictionaries += [path] if it.encodings & _DICTIONARY else []
        options = {"compression": codecs, "use_dictionary": dictionaries}
        options["write_statistics"] = others  # else the headers of pages have values
        with (
            pq.ParquetFile(file) as source,
            replacing(target) as output,
            pq.ParquetWriter(output, source.schema_arrow, **options) as writer,
        ):
            for group in range(source.num_row_groups):
                writer.write_table(source.read_row_group(group))
    except (ValueError, pa.ArrowException) as error:
        raise ValueError(f"{file!r}: {error}") from None
    except OSError as error:
        raise error if error.errno else ValueError(f"{file!r}: {error}") from None
