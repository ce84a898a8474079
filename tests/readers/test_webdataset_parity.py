"""Random WebDatasets and arguments: `readers.webdataset` beside `fn.readers.webdataset`.

`PARITY=2000 pytest tests/readers/test_webdataset_parity.py` runs so many configurations of a new
seed, which is printed if one fails; `PARITY_SEED` sets it.
"""

from __future__ import annotations

import gc
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from dali_storage import readers
from tests.kit.containers import split_name, write_tar

pytestmark = pytest.mark.usefixtures("pipelines_end")

LONG = bool(os.environ.get("PARITY"))
COUNT = int(os.environ.get("PARITY", 120))
SEED = int(os.environ.get("PARITY_SEED", Random().randrange(10**9) if LONG else 12))
PER_SET = 6  # configurations of each data set

EXTENSIONS = ["jpg", "cls", "json", "JPG", "seg.png", "x;y", "n", ""]
OUTPUTS = [
    "jpg",
    "cls",
    "json;cls",
    "JPG;jpg",
    "SEG.png",
    "seg.png",
    "png",
    "n",
    "",
    ";n",
    "json;",
    "jpg;;cls",
    "n",
]
NOT_FILES = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
DTYPES = [
    *(types.UINT8, types.INT8, types.UINT16, types.INT16, types.UINT32, types.INT32),
    *(types.UINT64, types.INT64, types.FLOAT16, types.FLOAT, types.FLOAT64),
]

PADDED = {types.UINT8, types.INT8, types.INT16, types.INT32, types.INT64, types.FLOAT}

Rows = list[list[tuple[str, int, int, str]]]
"""Of each sample of an index: extension, offset, size and name of its components."""


# --- data sets -----------------------------------------------------------------------------------


def some_name(random: Random, sample: int, flavour: int) -> str:
    base = random.choice(["a", "b", "dir/a", "./c", "/abs", "../a", "up/../a", "d.d/f", "é", "x y"])
    if base == "é" and flavour == tarfile.PAX_FORMAT:  # DALI does not read pax headers
        base = "e"
    if flavour == tarfile.GNU_FORMAT and random.random() < 0.1:
        base = "long/" * 21 + base.lstrip("/.")
    if random.random() < 0.03:
        return random.choice([".hidden", "dir/.hidden", "nodot", "dir/nodot"])
    return f"{base}{sample}.{random.choice(EXTENSIONS)}"


def some_tar(random: Random, path: Path, samples: int, unit: int) -> None:
    """A tar with regular files and others; most sizes are multiples of `unit`."""
    flavour = random.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(path, "w", format=flavour) as tar:
        for sample in range(samples):
            for _ in range(random.choice([1, 2, 2, 3])):
                info = tarfile.TarInfo(some_name(random, sample, flavour))
                info.type = random.choice([tarfile.REGTYPE] * 8 + [tarfile.AREGTYPE, b"7"])
                info.mtime = random.choice([0, 1.5])
                info.size = unit * random.choice([0, 1, 1, 2, 70]) + (random.random() < 0.005)
                tar.addfile(info, io.BytesIO(random.randbytes(info.size)))
            if random.random() < 0.2:
                info = tarfile.TarInfo(f"other{sample}.jpg")
                info.type, info.linkname = random.choice(NOT_FILES), "a0.jpg"
                tar.addfile(info)
    content = path.read_bytes()
    end = len(content.rstrip(b"\0")) // 512 * 512 + 512  # or up to a block of data less
    if content.rstrip(b"\0") and (join := random.random()) < 0.3:
        path.write_bytes(content[:end] + bytes(512 * random.randrange(4)) * (join < 0.2) + content)


def rows_of(tar: Path) -> Rows:
    """The components that an index can have: extensions are words."""
    samples: Rows = []
    last = None
    with tarfile.open(tar) as members:
        for member in members:
            base, extension = split_name(member.name)
            if member.isreg() and base and extension:
                samples += [[]] if base != last else []
                last = base
                row = extension, member.offset_data, member.size, member.name.replace(" ", "_")
                samples[-1].append(row)
    return samples


def some_index(random: Random, tar: Path, path: Path) -> bool:
    """An index with its lines in any order, some twice, some not at all; False if there is none."""
    samples = rows_of(tar)
    if not samples:
        return False
    change = random.random()
    if change < 0.2:
        samples = random.choices(samples, k=len(samples) + 2)
    elif change < 0.4:
        random.shuffle(samples)
    version = random.choice(["v1.1", "v1.2"])
    blank = random.choice([" ", " ", "\t", "  "])
    lines = [f"{version} {len(samples)}"]
    for sample in samples:
        words = [map(str, row if version == "v1.2" else row[:3]) for row in sample]
        lines.append(blank.join(blank.join(row) for row in words))
    lines += ["what stands behind is ignored"] * random.choice([0, 0, 1])
    end = random.choice(["\n", "\n", "\r\n"])
    path.write_bytes((end.join(lines) + random.choice(["", end])).encode())
    return True


def some_set(random: Random, directory: Path, unit: int) -> dict[str, Any]:
    directory.mkdir()
    tars = [directory / f"{number}.tar" for number in range(random.choice([1, 2, 3, 5]))]
    for tar in tars:
        some_tar(random, tar, random.choice([0, 1, 3, 8]), unit)
    indexes = [directory / f"{tar.stem}.idx" for tar in tars]
    arguments: dict[str, Any] = {"paths": [str(tar) for tar in tars]}
    with_index = [some_index(random, *pair) for pair in zip(tars, indexes, strict=True)]
    if all(with_index) and random.random() < 0.7:
        arguments["index_paths"] = [str(index) for index in indexes]
    return arguments


def some_outputs(random: Random, unit: int) -> dict[str, Any]:
    ext = random.choices(OUTPUTS, k=random.choice([1, 2, 2, 3]))
    if random.random() < 0.8:  # one component of several outputs is always one too few
        ext = list(dict.fromkeys(ext))
    arguments: dict[str, Any] = {"ext": ext}
    if random.random() < 0.5:
        fitting = [t for t in DTYPES if unit % np.dtype(types.to_numpy_type(t)).itemsize == 0]
        arguments["dtypes"] = random.choices(fitting, k=len(ext))
    if random.random() < 0.5:
        arguments["missing_component_behavior"] = random.choice(["", "Empty", "SKIP", "error"])
    if random.random() < 0.3:
        arguments["case_sensitive_extensions"] = False
    return arguments


def some_order(random: Random) -> dict[str, Any]:
    shards = random.choice([1, 1, 2, 3])
    order: dict[str, Any] = {"num_shards": shards, "shard_id": random.randrange(shards)}
    order |= {"pad_last_batch": random.random() < 0.3}
    if random.random() < 0.6:
        order |= {"random_shuffle": True, "initial_fill": random.choice([1, 3, 1024])}
        order |= {"seed": random.randrange(1000)}
    if random.random() < 0.3:
        order |= {"shuffle_after_epoch": True}
        order |= {"shuffle_after_epoch_seed": 5} if random.random() < 0.5 else {}
    else:
        order |= {"stick_to_shard": random.random() < 0.3}
    return order


# --- what they deliver ---------------------------------------------------------------------------


def build(operator: Any, batch_size: int, checkpoint: Any, **arguments: Any) -> Pipeline:
    pad = arguments.pop("pad")
    pipeline = Pipeline(
        batch_size,
        1,
        None,
        enable_checkpointing=checkpoint is not None,
        checkpoint=checkpoint or None,
    )
    with pipeline:
        nodes = operator(name="R", **arguments)
        nodes = nodes if isinstance(nodes, (list, tuple)) else [nodes]
        pipeline.set_outputs(*(fn.pad(node) if pad else node for node in nodes))
    pipeline.build()
    return pipeline


def take(pipeline: Pipeline, batches: int) -> list[Any]:
    found = []
    for _ in range(batches):
        for output in pipeline.run():
            arrays = [np.array(sample) for sample in output]
            found.append([(str(output.dtype), a.dtype.str, a.shape, a.tobytes()) for a in arrays])
    return found


def iterate(pipeline: Pipeline, outputs: int, policy: LastBatchPolicy) -> list[Any]:
    names = [str(number) for number in range(outputs)]
    iterator = DALIGenericIterator([pipeline], names, reader_name="R", last_batch_policy=policy)
    found: list[Any] = []
    for _ in range(3):
        found.append(len(iterator))
        for batch in iterator:
            arrays = [batch[0][name].numpy() for name in names]
            found.append([(array.dtype, array.shape, array.tobytes()) for array in arrays])
        iterator.reset()
    return found


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (RuntimeError, ValueError) as error:
        return error


def compare(random: Random, arguments: dict[str, Any]) -> bool:
    """One configuration; whether both readers deliver something."""
    batch_size, mode = random.choice([1, 2, 3, 7]), random.random()
    checkpoint = "" if mode < 0.3 else None
    alternatives = [word for ext in arguments["ext"] for word in {*ext.lower().split(";")}]
    # Without mmap, DALI dies of a component of several outputs.
    may_read = len(alternatives) == len({*alternatives})
    without_mmap = {"dont_use_mmap": may_read and random.random() < 0.5}
    iterates = 0.3 <= mode < 0.5 and {*arguments.get("dtypes", [])} <= PADDED
    fixed = arguments | {"pad": iterates}
    real = outcome(
        lambda: build(fn.readers.webdataset, batch_size, checkpoint, **fixed, **without_mmap)
    )
    fixed["backend"] = random.choice(["memory", "memory", "python-file"])
    ours = outcome(lambda: build(readers.webdataset, batch_size, checkpoint, **fixed))
    if isinstance(ours, Exception) and "no sample has any component" in str(ours):
        assert isinstance(real, Exception) or not any(
            shape[0] for output in take(real, 10) for _, _, shape, _ in output
        )
        return False
    assert isinstance(real, Exception) == isinstance(ours, Exception), (real, ours)
    if isinstance(real, Exception):
        return False
    assert ours.reader_meta("R") == real.reader_meta("R")
    if iterates:
        policy = random.choice([*LastBatchPolicy])
        outputs = len(arguments["ext"])
        found, expected = (outcome(lambda p=p: iterate(p, outputs, policy)) for p in (ours, real))
        if isinstance(expected, Exception):  # the batch is larger than the shard
            assert type(found) is type(expected)
            return False
        assert found == expected
        return True
    batches = min(3 * real.reader_meta("R")["epoch_size_padded"] // batch_size + 2, 60)
    expected = take(real, batches)
    if checkpoint is None:
        assert take(ours, batches) == expected
        return True
    done = random.randrange(batches)
    first = take(ours, done)
    restored = build(readers.webdataset, batch_size, ours.checkpoint(), **fixed)
    assert first + take(restored, batches - done) == expected
    return True


@pytest.mark.parametrize("part", range(4))
def test_samples_and_errors_are_those_of_the_real_reader(tmp_path: Path, part: int) -> None:
    random = Random(SEED * 10 + part)
    delivered = 0
    for number in range(-(-COUNT // 4 // PER_SET)):
        unit = random.choice([1, 2, 4, 8])
        data = some_set(random, tmp_path / str(number), unit)
        for each in range(PER_SET):
            arguments = data | some_outputs(random, unit) | some_order(random)
            try:
                delivered += compare(random, arguments)
            except BaseException as error:
                error.add_note(f"seed {SEED}, part {part}, data set {number}, {each}: {arguments}")
                raise
        gc.collect()  # pipelines, which have threads
    assert delivered > COUNT // 4 // 3


@pytest.mark.parametrize(
    "names",
    [
        [".hidden", "a.jpg", "b.jpg"],
        ["dir/.hidden", "dir/.jpg", "a.jpg"],
        [".hidden"],
        [],
        ["a.jpg", "../a.cls", "x/../a.n", "/a.json", "a/../../a.seg.png"],
        ["a.jpg", ".hidden", "a.cls"],
        ["nodot", "dir/nodot", "jpg", "dir.jpg/a.jpg"],
        ["a.", "a.jpg", "a..jpg", ".", "..jpg", "b.jpg"],
    ],
    ids=str,
)
@pytest.mark.parametrize("missing", ["empty", "skip"])
def test_names_that_are_unusual(tmp_path: Path, names: list[str], missing: str) -> None:
    tar = write_tar(tmp_path / "t.tar", [(name, name.encode()) for name in names])
    ext = ["jpg", "cls", "n;", ";json", "seg.png", "nodot;jpg", "", ".jpg"][
        : 8 if missing == "empty" else 1
    ]
    arguments = {"paths": str(tar), "ext": ext, "missing_component_behavior": missing, "pad": False}
    real = outcome(lambda: build(fn.readers.webdataset, 2, None, **arguments))
    ours = outcome(lambda: build(readers.webdataset, 2, None, backend="memory", **arguments))
    if isinstance(ours, Exception):
        assert "no sample has any component" in str(ours)
        assert isinstance(real, Exception)
    else:
        assert ours.reader_meta("R") == real.reader_meta("R")
        assert take(ours, 6) == take(real, 6)
