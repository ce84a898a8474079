"""The bytes of MDS, litData and Parquet by their own packages: DALI has no readers of them.

Nothing is decoded, and no pickle is loaded: each value is the bytes that a package finds in a file.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

from ..contract.faces import explained
from .result import Check, counted
from .subject import CannotCompareError, Subject, values_of

_Values: TypeAlias = Iterator[Mapping[str, Any]]

PACKAGES = {"mds": "mosaicml-streaming", "litdata": "litdata", "parquet": "pyarrow"}


class Package(NamedTuple):
    """A data set as the package of its format reads it.

    Attributes:
        name: the package and its version, or why it is not there.
        arguments: those of our reader, for all columns that it reads.
        total: the number of samples; None: the package is not there.
        values: the bytes of each column, sample by sample, in the order of the list.
    """

    name: str
    arguments: dict[str, Any]
    total: int | None = None
    values: _Values = iter(())


def find(call: str, root: str, files: Sequence[str]) -> Package:
    """Return the data set of our reader `call`.

    Raises:
        CannotCompareError: the package fails. A damaged data set raises as our reader.
    """
    given: dict[str, Any] = {"path": root}
    with explained():
        if call == "parquet":
            from ..formats.parquet.catalog import footer_of, stored

            given = {"paths": files, "label": None, "missing": "empty"}
            footer = footer_of(os.fsencode(files[0]))
            names, columns = footer.leaves, [it.path for it in stored(footer)]
        else:
            from ..formats.shards import litdata, mds
            from ..formats.shards.records import read

            found = read(os.fsencode(root), (mds if call == "mds" else litdata).parse).columns
            names, columns = [it.name for it in found], [it.name for it in found if not it.refused]
    given["columns"] = columns
    try:
        package = {"mds": _mds, "litdata": _litdata, "parquet": _parquet}[call](given, names)
    except ModuleNotFoundError as error:
        return Package(f"its hashes alone ({error}: pip install {PACKAGES[call]})", given)
    except Exception as error:
        raise CannotCompareError(f"{PACKAGES[call]} fails: {error!r}") from None
    others = ", ".join(it for it in names if it not in columns)
    return package._replace(name=package.name + f", without the columns {others}" * bool(others))


def _index(root: str) -> Any:
    with open(os.path.join(root, "index.json"), "rb") as file:
        return json.load(file)


def _mds(given: dict[str, Any], names: Sequence[str]) -> Package:
    streaming, formats = map(import_module, ("streaming", "streaming.base.format"))
    rows = _index(given["path"])["shards"]
    shards = [formats.reader_from_json(given["path"], None, it) for it in rows]
    for each in shards:  # so that nothing is decoded
        each.column_encodings = ["bytes"] * len(each.column_names)
    values = (each[number] for each in shards for number in range(len(each)))
    return Package(f"streaming {streaming.__version__}", given, sum(map(len, shards)), values)


def _litdata(given: dict[str, Any], names: Sequence[str]) -> Package:
    litdata, serializers = map(import_module, ("litdata", "litdata.streaming.serializers"))
    tree: Any = import_module("torch.utils._pytree")
    # All abstract methods, of which one is called.
    own = {"deserialize": lambda _, data: bytes(data), "serialize": None, "can_serialize": None}
    raw = type("Raw", (serializers.Serializer,), own)
    formats = _index(given["path"])["config"]["data_format"]
    kinds = {it.partition(":")[0]: raw() for it in formats}
    samples = litdata.StreamingDataset(given["path"], serializers=kinds)
    leaves = (tree.tree_flatten(samples[number])[0] for number in range(len(samples)))
    values = (dict(zip(names, each, strict=True)) for each in leaves)
    return Package(f"litdata {litdata.__version__}", given, len(samples), values)


def _parquet(given: dict[str, Any], names: Sequence[str]) -> Package:
    pyarrow, parquet = map(import_module, ("pyarrow", "pyarrow.parquet"))

    def values(path: str) -> _Values:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(64, columns=given["columns"]):
                table = pyarrow.Table.from_batches([batch])
                while any(map(pyarrow.types.is_struct, table.schema.types)):
                    table = table.flatten()
                yield from table.to_pylist()

    total = sum(parquet.read_metadata(path).num_rows for path in given["paths"])
    every = chain.from_iterable(map(values, given["paths"]))
    return Package(f"pyarrow {pyarrow.__version__}", given, total, every)


def compare_values(check: Check, subject: Subject, package: Package) -> dict[str, int]:
    """Compare an epoch in the order of the list with what a package reads.

    Returns the names of the samples, and the CRC-32 of the package's bytes.
    """
    known, columns = dict[str, int](), subject.arguments["columns"]
    with subject.our_errors(opening=True), subject.batches([], subject.at_once) as ours:
        subject.total = ours.catalog.delivered
        if package.total is None:
            check.compared = "nothing: the package is missing"
            return {}
        for batch in ours:
            try:
                wanted = [*islice(package.values, len(batch))]
            except Exception as error:
                raise CannotCompareError(f"{package.name} fails: {error!r}") from None
            for file, got, right in zip(batch.names, values_of(batch), wanted, strict=False):
                name = f"sample {check.samples} of {file}"
                its = [right[column] or b"" for column in columns]
                for column, one, other in zip(columns, got, its, strict=True):
                    if one.tobytes() != other:
                        what = f"{zlib.crc32(one):08x} instead of {zlib.crc32(other):08x}"
                        check.differs(f"{name}, column {column!r}: CRC-32 {what}")
                known[name] = zlib.crc32(b"".join(its))
                check.samples += 1
            if subject.is_late():
                break
    if subject.total != package.total:
        check.differs(f"{counted(subject.total)} instead of {package.total:,}")
    check.compared = f"{check.samples:,} of {counted(package.total)}"
    return known
