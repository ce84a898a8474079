"""Random configurations of a reader beside the real one of DALI, which is the oracle."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from nvidia.dali import Pipeline
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

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
    pipeline = Pipeline(batch_size, num_threads=1, device_id=None, **options)
    with pipeline:
        found = operator(**arguments)
        pipeline.set_outputs(*(found if isinstance(found, (tuple, list)) else [found]))
    pipeline.build()
    return pipeline


def take(pipeline: Pipeline, batches: int) -> list[list[list[Sample]]]:
    """The samples of some batches: by batch, output and sample."""
    return [[_samples(output) for output in pipeline.run()] for _ in range(batches)]


def _samples(output: Any) -> list[Sample]:
    arrays = [np.asarray(output[position]) for position in range(len(output))]
    return [(str(array.dtype), array.shape, array.tobytes()) for array in arrays]


def some_order(random: Random, size: int, *, by_container: bool) -> dict[str, Any]:
    """Arguments of the order; a few ask for more shards than `size` samples allow."""
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
    if shuffle in ("window", "both"):
        order |= {"random_shuffle": True, "initial_fill": random.choice([1, 2, 5, 20, 1024])}
    if shuffle in ("epoch", "both"):
        order["shuffle_after_epoch"] = True
        if random.random() < 0.5:
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


POLICIES = [LastBatchPolicy.FILL, LastBatchPolicy.DROP, LastBatchPolicy.PARTIAL]


def epochs(operator: Operator, policy: LastBatchPolicy, cut: int, **arguments: Any) -> list[Any]:
    """What an iterator of DALI gives in three epochs; one restored after `cut` batches goes on.

    The tensors of a batch have one shape and a type that PyTorch has.
    """

    def make(checkpoint: str | None) -> Any:
        options = {"enable_checkpointing": True, "checkpoint": checkpoint}
        pipeline = build(operator, 4, options, name="R", **arguments)
        names = [f"output{number}" for number in range(pipeline.num_outputs)]
        return DALIGenericIterator(
            [pipeline], names, reader_name="R", last_batch_policy=policy, auto_reset=True
        )

    iterator = make(None)
    seen: list[Any] = [len(iterator)]
    for _ in range(3):
        for (outputs,) in iterator:
            seen.append({name: tensor.tolist() for name, tensor in outputs.items()})
            if len(seen) == cut + 1:
                (checkpoint,) = iterator.checkpoints()
                iterator = make(checkpoint)
                break
    return seen


def compare(
    random: Random, real: Operator, ours: Operator, arguments: dict[str, Any], **more: Any
) -> str:
    """Compare three epochs; `more` are arguments of ours only. Returns what was compared.

    What DALI refuses must be refused. Some pipelines are restored from a checkpoint half-way.
    """
    batch_size, options = random.randint(1, 9), some_options(random)
    arguments = {**arguments, "name": "R"}
    try:
        oracle = build(real, batch_size, dict(options), **arguments)
        # Before the first batch: DALI's readers of containers count their samples without a lock.
        meta, size = oracle.reader_meta("R"), oracle.epoch_size("R")
        per_epoch = -(-meta["epoch_size_padded"] // (meta["number_of_shards"] * batch_size))
        count = 3 * per_epoch + 1
        expected = take(oracle, count)
    except RuntimeError as error:
        assert_refused(ours, batch_size, dict(options), {**arguments, **more}, str(error))
        return "refused"
    mine = build(ours, batch_size, dict(options), **arguments, **more)
    assert mine.reader_meta("R") == meta
    assert mine.epoch_size("R") == size
    if not options["enable_checkpointing"]:
        assert take(mine, count) == expected
        return "equal"
    cut = random.randint(0, count)
    assert take(mine, cut) == expected[:cut]
    again = dict(options, checkpoint=mine.checkpoint())
    restored = build(ours, batch_size, again, **arguments, **more)
    assert take(restored, count - cut) == expected[cut:]
    return "restored"


def assert_refused(
    operator: Operator,
    batch_size: int,
    options: dict[str, Any],
    arguments: dict[str, Any],
    reason: str,
) -> None:
    """Three epochs of at most 100 samples must not pass."""
    try:
        take(build(operator, batch_size, options, **arguments), 301)
    except (ValueError, OSError):
        return
    raise AssertionError(f"not refused: {reason}")
