"""Random TFRecords and arguments: `readers.tfrecord` beside `fn.readers.tfrecord`, the oracle.

`PARITY=1000 pytest tests/readers/test_tfrecord_parity.py` compares so many configurations.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn, tfrecord

from dali_storage import readers
from tests.kit.containers import (
    bytes_feature,
    float_feature,
    int64_feature,
    message,
    tf_record,
    varint,
)
from tests.kit.parity import POLICIES, build, epochs, seeds, some_options, some_order, take

pytestmark = pytest.mark.usefixtures("pipelines_end")

UNKNOWN = [
    message(9, b"unknown"),
    varint(9 << 3) + varint(-1),
    varint(9 << 3 | 1) + bytes(8),
    varint(9 << 3 | 5) + bytes(4),
    varint(9 << 3 | 3) + message(1, b"in a group") + varint(9 << 3 | 4),
]
FIXED = {"label": [], "size": [2], "box": (2, 2)}  # shapes of features that have all their values


@dataclass(frozen=True)
class Case:
    """What is the same for both readers, and what only ours has."""

    features: dict[str, Any]
    arguments: dict[str, Any]
    ours: dict[str, Any]
    batch_size: int
    options: dict[str, Any]
    records: int
    regular: bool
    batches: int


def some_value(random: Random, name: str) -> bytes:
    """A feature as it would be written."""
    packed = random.random() < 0.7
    if name in FIXED:
        count = int(np.prod(FIXED[name], dtype=int))
    else:
        count = random.choice([0, 1, 1, 2, 5, 40]) * (3 if name == "triples" else 1)
    if name == "image":
        several = [random.randbytes(random.choice([0, 1, 9])) for _ in range(random.randrange(3))]
        return bytes_feature([random.randbytes(random.choice([0, 1, 200, 9000])), *several])
    if name in ("box", "weights", "triples"):
        return float_feature([random.uniform(-9, 9) for _ in range(count)], packed=packed)
    many = [0, 1, 127, 128, 2**31, 2**63 - 1, -1, -(2**63), random.randrange(-999, 999)]
    return int64_feature([random.choice(many) for _ in range(count)], packed=packed)


def some_feature(random: Random, name: str) -> bytes:
    """The same, sometimes strangely written."""
    value = some_value(random, name)
    if name in ("ids", "weights") and random.random() < 0.2:  # a list in two parts; another kind
        other = some_value(random, random.choice(["image", name]))
        value = random.choice([other + value, value + other, value, b""])
    if random.random() < 0.1:
        value = random.choice([bytes_feature([b"dropped"]) + value, value + random.choice(UNKNOWN)])
    return value


def some_entry(random: Random, name: str) -> bytes:
    fields = [message(1, name.encode()), message(2, some_feature(random, name))]
    if random.random() < 0.1:
        fields.insert(random.randrange(3), random.choice(UNKNOWN))
    if random.random() < 0.1:
        random.shuffle(fields)
    return message(1, b"".join(fields))


def some_payload(random: Random, names: Sequence[str]) -> bytes:
    """A tf.train.Example, sometimes with features twice or in parts."""
    entries = [some_entry(random, name) for name in names]
    if random.random() < 0.5:
        entries.append(message(1, message(1, "ñ".encode()) + message(2, int64_feature([7]))))
        random.shuffle(entries)
    if random.random() < 0.1:
        entries.append(some_entry(random, random.choice(names)))
    if random.random() < 0.1:
        return b"".join(message(1, entry) for entry in entries) + random.choice(UNKNOWN)
    return message(1, b"".join(entries))


def some_file(random: Random, path: Path, names: Sequence[str], strange: bool) -> tuple[int, bool]:
    """Write a file and its index; how many records this has, and whether it is needed."""
    pairs, content = [], b""
    for _ in range(random.choice([0, 1, 2, 5, 9])):
        record = tf_record(some_payload(random, names))
        if strange and random.random() < 0.2:
            record = record[:8] + random.randbytes(4) + record[12:-4] + random.randbytes(4)
        pairs.append((len(content), len(record)))
        content += record
    path.write_bytes(content)
    regular = pairs[:]
    if pairs and random.random() < 0.3:
        pairs = random.choices(pairs, k=random.randint(1, 9))
        position, size = pairs[0]  # more bytes than the record has are ignored
        pairs[0] = position, random.randint(size, len(content) - position)
    space = random.choice(["\n", "\n", "\r\n", " ", "\t\n ", "\n\n"])
    tail = random.choice(["", "", "", "12", "x", " 0.5 3", "99999999999999999999 4", "-"])
    text = space.join(f"{start} {size}" for start, size in pairs)
    path.with_suffix(".idx").write_text(f"{text}{space}{tail}" if pairs or tail != "12" else tail)
    return len(pairs), pairs != regular


def wanted(random: Random, names: Sequence[str]) -> dict[str, Any]:
    """Some of what may be asked for, or `names`; "nowhere" is in no record."""
    float32, int64, string = tfrecord.float32, tfrecord.int64, tfrecord.string
    features = {
        "image": tfrecord.FixedLenFeature(random.choice([(), [1]]), string, ""),
        "label": tfrecord.FixedLenFeature(FIXED["label"], int64, 5),
        "size": tfrecord.FixedLenFeature(FIXED["size"], int64, 5),
        "box": tfrecord.FixedLenFeature(FIXED["box"], float32, 5.0),
        "ids": tfrecord.VarLenFeature(int64, 5),
        "weights": tfrecord.VarLenFeature(float32, 5.0),
        "triples": tfrecord.VarLenFeature([3], float32, 5.0),
        "nowhere": tfrecord.FixedLenFeature([3], int64, 5),
    }
    names = names or random.sample(sorted(features), random.randint(1, 6))
    return {name: features[name] for name in names}


def some_case(random: Random, directory: Path, names: Sequence[str] = ()) -> Case:
    features = wanted(random, names)
    written = {*features, random.choice(["label", "image", "ids"])} - {"nowhere"}
    strange, records, needed, paths = random.random() < 0.3, 0, False, list[Path]()
    while not records:
        for _ in range(random.randint(1, 4)):
            paths.append(directory / f"{len(paths)}.tfrecord")
            more, is_needed = some_file(random, paths[-1], sorted(written), strange)
            records, needed = records + more, needed or is_needed
    indexes = [str(path.with_suffix(".idx")) for path in paths]
    arguments = {
        "path": [*map(str, paths)],
        "features": features,
        **some_order(random, records, by_container=True),
    }
    ours = {
        "index_path": indexes if needed or random.random() < 0.5 else None,
        "backend": random.choice(["memory", "python-file"]),
        "verify": not strange and random.random() < 0.3,
    }
    batch_size = random.choice([1, 2, 3, 7, 16])
    batches = 3 * -(-records // arguments["num_shards"] // batch_size) + 3
    options = some_options(random)
    arguments["index"] = indexes
    return Case(features, arguments, ours, batch_size, options, records, not needed, batches)


def operators(case: Case) -> list[Callable[..., Any]]:
    """DALI's and ours, which return the nodes in a tuple."""
    arguments = {name: value for name, value in case.arguments.items() if name != "index"}

    def dali(**more: Any) -> tuple[Any, ...]:
        index = case.arguments["index"]
        return tuple(fn.readers.tfrecord(**arguments, **more, index_path=index).values())

    def ours(**more: Any) -> tuple[Any, ...]:
        outputs = readers.tfrecord(**arguments, **more, **case.ours)
        assert list(outputs) == list(case.features)
        return tuple(outputs.values())

    return [dali, ours]


def comparable(case: Case, batches: list[list[list[Any]]]) -> list[list[list[Any]]]:
    """Without the values of what is nowhere: in DALI they have no meaning."""
    for batch in batches:
        for name, samples in zip(case.features, batch, strict=True):
            if name == "nowhere":
                samples[:] = [sample[:2] for sample in samples]
    return batches


def observe(case: Case, operator: Callable[..., Any]) -> Any:
    """What a user sees of a reader: metadata, batches, and those of a restored pipeline."""
    try:
        pipeline = build(operator, case.batch_size, case.options, name="Reader")
        seen = [pipeline.reader_meta("Reader"), comparable(case, take(pipeline, case.batches))]
    except (RuntimeError, ValueError):  # more shards than samples
        return "refused"
    checkpoint = pipeline.checkpoint() if case.options["enable_checkpointing"] else None
    seen.append(comparable(case, take(pipeline, case.batches)))
    # DALI reads from a wrong place when it is restored in an index that does not ascend.
    if checkpoint and (case.regular or operator.__name__ == "ours"):
        options = {**case.options, "checkpoint": checkpoint}
        restored = build(operator, case.batch_size, options, name="Reader")
        assert comparable(case, take(restored, case.batches)) == seen[-1]
    return seen


@pytest.mark.parametrize("part", range(4))
def test_random_data_sets_are_read_as_dali_reads_them(part: int, tmp_path: Path) -> None:
    compared, mine = 0, list(seeds(80))[part::4]
    for seed in mine:
        random, directory = Random(seed), tmp_path / str(seed)
        directory.mkdir()
        case = some_case(random, directory)
        dali, ours = (observe(case, operator) for operator in operators(case))
        assert ours == dali, f"configuration {seed}: {case}"
        compared += dali != "refused"
        gc.collect()
    assert compared > len(mine) / 2


@pytest.mark.parametrize("policy", POLICIES)
def test_iterators_see_the_same_also_restored(policy: Any, tmp_path: Path) -> None:
    compared = 0
    for seed in list(seeds(12))[POLICIES.index(policy) :: 3]:
        random, directory = Random(-1 - seed), tmp_path / str(seed)
        directory.mkdir()
        case = some_case(random, directory, ["label"])
        case.arguments.setdefault("seed", seed)
        cut = random.randrange(1, 5)

        def outcome(operator: Callable[..., Any], case: Case = case, cut: int = cut) -> Any:
            try:
                return epochs(operator, policy, cut if case.regular else -1)
            except (RuntimeError, ValueError):  # more shards than samples; all is dropped
                return "refused"

        dali, ours = map(outcome, operators(case))
        assert ours == dali, f"configuration {seed}: {case}"
        compared += dali != "refused"
        gc.collect()
    assert compared
