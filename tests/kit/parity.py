"""Random configurations of a reader beside the real one of DALI, which is the oracle."""

import inspect
import json
import os
import shutil
import wave
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, tfrecord, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from PIL import Image

from dali_storage import readers
from tests.kit import versions
from tests.kit.coco import write_numbered as write_numbered_images
from tests.kit.containers import (
    write_numbered_recordios,
    write_numbered_tars,
    write_numbered_tfrecords,
)
from tests.kit.databases import write_numbered
from tests.kit.shards import write_numbered_litdata, write_numbered_mds
from tests.kit.tables import write_numbered_tables
from tests.kit.tiers import by_tier

Operator = Callable[..., Any]
Sample = tuple[str, tuple[int, ...], bytes]
"""The type, shape and bytes of one tensor."""

RUNS = int(os.environ.get("PARITY", "0"))
"""How many configurations of each reader a long run compares; 0 for as many as a test has time."""


def seeds(few: int) -> range:
    """The numbers of the configurations: PARITY=1000 for 1,000 of them, PARITY_FROM for others."""
    start = int(os.environ.get("PARITY_FROM", "0"))
    return range(start, start + (RUNS or few))


def build(operator: Operator, batch_size: int, options: dict[str, Any], **arguments: Any) -> Any:
    """A pipeline of all outputs of the operator; `options` are the pipeline's."""
    pipeline = Pipeline(batch_size, **{"num_threads": 1, "device_id": None} | options)
    with pipeline:
        found = operator(**arguments)
        found = [*found.values()] if isinstance(found, dict) else found
        pipeline.set_outputs(*(found if isinstance(found, (tuple, list)) else [found]))
    pipeline.build()
    return pipeline


def take(pipeline: Pipeline, batches: int) -> list[list[list[Sample]]]:
    """The samples of some batches: by batch, output and sample."""
    return [[_samples(output) for output in pipeline.run()] for _ in range(batches)]


def _samples(output: Any) -> list[Sample]:
    arrays = [np.asarray(output[position]) for position in range(len(output))]
    return [(str(array.dtype), array.shape, array.tobytes()) for array in arrays]


def contents(pipeline: Pipeline) -> list[list[bytes]]:
    """The bytes of the samples of a batch, by output."""
    return [[sample[2] for sample in output] for output in take(pipeline, 1)[0]]


def numbers(pipeline: Pipeline, batches: int) -> list[list[int]]:
    """The samples of some batches, if the first output has one number for each."""
    return [np.asarray(pipeline.run()[0].as_array()).ravel().tolist() for _ in range(batches)]


BACKENDS: list[tuple[str, dict[str, Any]]] = [
    ("memory", {}),
    ("python-file", {}),
    ("python-file", {"direct": True}),
    ("python-file", {"io": "preadv"}),
]
"""Backends and options that each reader is tried with, at most."""

# --- Random configurations -----------------------------------------------------------------------


def some_order(
    random: Random, size: int, *, by_container: bool, by_epoch: bool = True
) -> dict[str, Any]:
    """Arguments of the order; a few ask for more shards than `size` samples allow.

    `by_epoch`: whether the reader has `shuffle_after_epoch` in DALI.
    """
    shards = random.choice([1, 1, min(2, size), random.randint(1, size + random.choice([0, 0, 1]))])
    order: dict[str, Any] = {
        "num_shards": shards,
        "shard_id": random.randrange(shards),
        "pad_last_batch": random.random() < 0.4,
        "prefetch_queue_depth": random.randint(1, 3),
        "dont_use_mmap": random.random() < 0.5,
    }
    shuffle = random.choice(["none", "window", "epoch"] * 2 + ["both"])
    if shuffle == "both" and not by_container:
        shuffle = "window"
    if not by_epoch or (by_container and not versions.has("2.2")):
        shuffle = {"epoch": "none", "both": "window"}.get(shuffle, shuffle)
    if shuffle in ("window", "both"):
        order |= {"random_shuffle": True, "initial_fill": random.choice([1, 2, 5, 20, 1024])}
    if shuffle in ("epoch", "both"):
        order["shuffle_after_epoch"] = True
        if random.random() < 0.5 and versions.has("2.1"):
            order["shuffle_after_epoch_seed"] = random.choice([0, 5, -3, 2**40])
    else:
        order["stick_to_shard"] = random.random() < 0.5
    if random.random() < 0.5:
        order["seed"] = random.choice([-1, 0, 7, 2**31 - 1])
    return order


def some_options(random: Random) -> dict[str, Any]:
    """Options of a pipeline."""
    return {
        "seed": random.randrange(2**31),
        "enable_checkpointing": random.random() < 0.4,
        "prefetch_queue_depth": random.randint(1, 2),
        "exec_dynamic": random.random() < 0.5,
    }


def compare(random: Random, real: Operator, ours: Operator, arguments: dict[str, Any]) -> str:
    """Compare three epochs. Returns what was compared.

    What DALI refuses must be refused. Some pipelines are restored from a checkpoint half-way.
    """
    batch_size, options = random.randint(1, 9), some_options(random)
    arguments = {**arguments, "name": "R"}
    try:
        oracle = build(real, batch_size, options, **arguments)
        # Before the first batch: DALI's readers of containers count their samples without a lock.
        meta, size = oracle.reader_meta("R"), oracle.epoch_size("R")
        per_epoch = -(-meta["epoch_size_padded"] // (meta["number_of_shards"] * batch_size))
        count = 3 * per_epoch + 1
        expected = take(oracle, count)
    except RuntimeError as error:
        # Three epochs of at most 100 samples must not pass.
        with pytest.raises((ValueError, OSError)):
            take(build(ours, batch_size, options, **arguments), 301)
            pytest.fail(f"not refused: {error}")
        return "refused"
    try:
        mine = build(ours, batch_size, options, **arguments)
    except ValueError as error:  # DALI delivers what has no bytes
        if "no sample has any component" not in str(error):
            raise
        assert not any(data for batch in expected for output in batch for _, _, data in output)
        return "empty"
    assert mine.reader_meta("R") == meta
    assert mine.epoch_size("R") == size
    if not options["enable_checkpointing"]:
        assert take(mine, count) == expected
        return "equal"
    cut = random.randint(0, count)
    assert take(mine, cut) == expected[:cut]
    restored = build(ours, batch_size, {**options, "checkpoint": mine.checkpoint()}, **arguments)
    assert take(restored, count - cut) == expected[cut:]
    return "restored"


# --- Samples that are their own numbers ----------------------------------------------------------

_WRITERS = {
    "webdataset": write_numbered_tars,
    "tfrecord": write_numbered_tfrecords,
    "mxnet": write_numbered_recordios,
}
_OF_COUNTS: dict[str, Callable[[Path, Sequence[int]], dict[str, Any]]] = {
    "coco": lambda directory, counts: (
        write_numbered_images(directory, sum(counts)) | {"image_ids": True}
    ),
    "litdata": write_numbered_litdata,
    "mds": write_numbered_mds,
    "parquet": write_numbered_tables,
}
_DATABASES = ("lmdb", "caffe", "caffe2")
_NUMBERED = "columns", "file", "manifest", "mix", "mxnet", "nemo_asr", "parquet", "records"
OUTPUT = {"tfrecord": "n", "coco": 3} | dict.fromkeys(_NUMBERED + _DATABASES, 1)
"""The output that is a number; of others the only one."""


def numbered(reader: str, directory: Path, counts: Sequence[int]) -> Callable[[Any], Operator]:
    """Makes readers of the modules fn.readers and dali_storage.readers, which deliver numbers.

    Those are of the samples in containers that have so many each, or in as many files.
    """
    given = written(reader, directory, counts)

    def of_module(module: Any) -> Operator:
        def read(**arguments: Any) -> Any:
            found = getattr(module, reader)(**given | arguments)
            return found[OUTPUT[reader]] if reader in OUTPUT else found

        return read

    return of_module


def written(reader: str, directory: Path, counts: Sequence[int]) -> dict[str, Any]:
    """The arguments of a reader of numbered samples, which are written to the directory."""
    directory.mkdir(exist_ok=True)
    is_container = reader in _WRITERS or reader in _DATABASES
    return (of_containers if is_container else _of_files)(reader, directory, counts)


def of_containers(reader: str, directory: Path, counts: Sequence[int]) -> dict[str, Any]:
    if reader in _DATABASES:
        return write_numbered(reader, directory, counts)
    files, indexes = _WRITERS[reader](directory, counts)
    if reader == "webdataset":
        return {"paths": files, "index_paths": indexes, "ext": ["n"], "dtypes": types.INT64}
    if reader == "mxnet":
        if len(files) > 1:
            versions.require("2.2", "it takes records of several RecordIO files from wrong ones")
        return {"path": files, "index_path": indexes}
    features = {"n": tfrecord.FixedLenFeature([1], tfrecord.int64, 0)}
    return {"path": files, "index_path": indexes, "features": features}


def _of_files(reader: str, directory: Path, counts: Sequence[int]) -> dict[str, Any]:
    if reader in _OF_COUNTS:
        return _OF_COUNTS[reader](directory, counts)
    files = [str(directory / f"{number}.bin") for number in range(len(counts))]
    each = [path for path, count in zip(files, counts, strict=True) for _ in range(count)]
    if reader in ("manifest", "nemo_asr"):
        return _of_manifest(reader, directory / "manifest.json", files, each)
    for path, count in zip(files, counts, strict=True):
        Path(path).write_bytes(bytes(count) or b"x")  # DALI does not map empty files
    labels = [*range(len(each))]
    if reader in ("file", "columns"):
        return {"files": each if reader == "file" else [each], "labels": labels}
    if reader == "mix":
        parts = {"a": slice(counts[0]), "b": slice(counts[0], None)}
        sources = {name: {"files": each[it], "labels": labels[it]} for name, it in parts.items()}
        return {"sources": sources, "labels": "own"}
    if reader == "records":
        offsets = [start for count in counts for start in range(count)]
        ids = np.repeat(range(len(counts)), counts)
        return {"files": files, "file_ids": ids, "offsets": offsets, "sizes": 1}
    if reader == "sequence":
        (directory / "stream").mkdir(exist_ok=True)
        for number in labels:
            pixel = Image.new("L", (1, 1), number)
            pixel.save(directory / f"stream/{number:03}.png")
        return {"file_root": str(directory), "sequence_length": 1, "image_type": types.GRAY}
    save, ending, members = {"npz": (np.savez, "npz", {"members": "arr_0"})}.get(
        reader, (np.save, "npy", {})
    )
    for number in labels:
        save(directory / f"{number:03}.{ending}", np.array([number]))
    return {"file_root": str(directory), "file_filter": f"*.{ending}", **members}


def _of_manifest(
    reader: str, manifest: Path, files: Sequence[str], each: Sequence[str]
) -> dict[str, Any]:
    for path in files:
        with wave.open(path, "wb") as file:
            file.setparams((1, 2, 8000, 1, "NONE", ""))
            file.writeframes(b"12")
    lines = [{"audio_filepath": path, "n": number} for number, path in enumerate(each)]
    manifest.write_text("\n".join(map(json.dumps, lines)))
    if reader == "manifest":
        return {"manifests": str(manifest), "columns": {"n": int}}
    rest = {"read_sample_rate": False, "read_text": False, "read_idxs": True}
    return {"manifest_filepaths": str(manifest), **rest}


# --- The promises --------------------------------------------------------------------------------

POLICIES = [LastBatchPolicy.FILL, LastBatchPolicy.DROP, LastBatchPolicy.PARTIAL]


def epochs(
    operator: Operator, policy: LastBatchPolicy, cut: int, *, auto_reset: bool = True, **order: Any
) -> Any:
    """What an iterator of DALI gives in three epochs; one restored after `cut` batches goes on.

    It is over the pipelines of all shards if the order has no `shard_id`.
    """
    shards = [order["shard_id"]] if "shard_id" in order else range(order.get("num_shards", 1))

    def make(checkpoints: Sequence[str | None]) -> Any:
        pipelines = []
        for shard, checkpoint in zip(shards, checkpoints, strict=True):
            options = {"enable_checkpointing": True, "checkpoint": checkpoint}
            arguments = {"name": "R", **order, "shard_id": shard}
            pipelines.append(build(operator, 4, options, **arguments))
        pytorch = pytest.importorskip("nvidia.dali.plugin.pytorch")
        return pytorch.DALIGenericIterator(
            pipelines, ["number"], reader_name="R", last_batch_policy=policy, auto_reset=auto_reset
        )

    try:
        iterator = make([None] * len(shards))
    except (RuntimeError, ValueError):  # more shards than samples, or all is dropped
        return "refused"
    seen: list[Any] = []
    lengths: list[int] = []  # of what is left of the epoch that the iterator is in
    for _ in range(3):
        lengths.append(len(iterator))
        for outputs in iterator:
            seen.append([output["number"].tolist() for output in outputs])
            if len(seen) == cut:
                iterator = make(iterator.checkpoints())
                break
        else:
            if not auto_reset:
                iterator.reset()
    return lengths, seen


@dataclass(frozen=True)
class Case:
    """Arguments of both readers, and those that only DALI's or only ours is given."""

    arguments: dict[str, Any]
    real: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)


class ParityTests:
    """What a reader promises that DALI has, too. A subclass gives its name and random cases."""

    reader: str
    new = frozenset(
        {"backend", "backend_options", "buffer_bytes", "pinned", "resume", "return_index"}
    )
    new |= {"bad_samples", "check", "max_replaced", "on_error"}
    new |= {"epoch_size", "order", "receipt", "source_info", "stall_after", "weights"}
    lacks = frozenset[str]()  # what DALI's reader does not take, and all of ours do
    other_defaults = frozenset({"seed", "bytes_per_sample_hint"})
    cases = 15, 100  # in `make test` and in `make test-all`
    rounds = 2, 20  # of iterators

    def some_case(self, random: Random, directory: Path) -> Case:
        """Data in the directory, which is new, and arguments."""
        raise NotImplementedError

    def some_order(self, random: Random, size: int) -> dict[str, Any]:
        """Arguments of the order of `size` samples."""
        return some_order(random, size, by_container=False)

    def operators(self, case: Case) -> tuple[Operator, Operator]:
        """DALI's reader and ours."""
        real, ours = getattr(fn.readers, self.reader), getattr(readers, self.reader)
        return partial(real, **case.real), partial(ours, **case.ours)

    @pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.soak)])
    def test_random_data_sets_are_read_as_dali_reads_them(self, many: bool, tmp_path: Path) -> None:
        found = Counter[str]()
        runs = seeds(5000 if many else by_tier(*self.cases))
        for seed in runs:
            random, directory = Random(seed), tmp_path / str(seed)
            directory.mkdir()
            case = self.some_case(random, directory)
            try:
                found[compare(random, *self.operators(case), case.arguments)] += 1
            except BaseException as error:
                error.add_note(f"PARITY=1 PARITY_FROM={seed} repeats it: {case}")
                raise
            shutil.rmtree(directory)
        if len(runs) >= 20:
            assert found["equal"] + found["restored"] > len(runs) / 2
            assert found["restored"] > len(runs) / 10

    @pytest.mark.parametrize("policy", POLICIES, ids=str)
    def test_iterators_of_dali_give_the_same(self, policy: Any, tmp_path: Path) -> None:
        made, refused = numbered(self.reader, tmp_path / "numbered", [3, 5, 6, 2]), 0
        runs = seeds(by_tier(*self.rounds))
        for seed in runs:
            random = Random(f"{seed} {policy}")
            arguments = self.some_order(random, 16)
            arguments = {"seed": 5, **arguments, "cut": random.randrange(1, 6)}
            arguments = {it: arguments[it] for it in arguments.keys() - self.lacks}
            arguments["auto_reset"] = random.random() < 0.5
            if random.random() < 0.5:
                arguments |= {"num_shards": 3}
                del arguments["shard_id"]
            expected = epochs(made(fn.readers), policy, **arguments)
            assert epochs(made(readers), policy, **arguments) == expected, (seed, arguments)
            refused += expected == "refused"
        assert refused < len(runs) or len(runs) < 3

    @versions.SHUFFLED_CONTAINERS
    def test_every_argument_of_dalis_reader_is_there(self) -> None:
        real = inspect.signature(getattr(fn.readers, self.reader)).parameters
        ours = inspect.signature(getattr(readers, self.reader)).parameters
        assert real.keys() - ours.keys() == set()
        assert ours.keys() - real.keys() == self.new | self.lacks
        for name in real.keys() - self.other_defaults:
            given = [each[name].default for each in (ours, real)]
            assert [list(it) if isinstance(it, tuple) else it for it in given] == given[1:] * 2


class ContainerParityTests(ParityTests):
    """The same of a reader of containers, which also shuffles single samples."""

    new = ParityTests.new | {"shuffle"}
    by_epoch = True

    def some_order(self, random: Random, size: int) -> dict[str, Any]:
        return some_order(random, size, by_container=True, by_epoch=self.by_epoch)

    @pytest.mark.parametrize("order", [{"random_shuffle": True}, {"shuffle_after_epoch": True}])
    def test_single_samples_are_shuffled_as_files_are(
        self, order: dict[str, Any], tmp_path: Path
    ) -> None:
        arguments = {"seed": 3, "initial_fill": 8, **order}
        made = [numbered(each, tmp_path / each, [7, 9, 14]) for each in (self.reader, "file")]
        expected = numbers(build(made[1](fn.readers), 4, {}, **arguments), 20)
        ours = build(made[0](readers), 4, {}, shuffle="samples", **arguments)
        assert numbers(ours, 20) == expected
        assert numbers(build(made[0](readers), 4, {}, **arguments), 20) != expected
