"""Saved places in plain types, which JSON takes, and what they are places of.

A *checkpoint* is what a rank puts into that of DALI: it goes on with everything as it was. A
*state* is one for all ranks, and goes on with any number of them.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from . import OrderOptions

VERSION = 1

_NONE = type(None)
_ORDER: dict[str, tuple[type, ...]] = {
    field.name: (type(field.default) if field.default is not None else int,)
    for field in fields(OrderOptions)
}
_DATA: dict[str, tuple[type, ...]] = {"version": (int,), "samples": (int,), "names": (int,)}
_CHECKPOINT = _DATA | _ORDER | {"batch_size": (int,), "batches": (int,), "resumed": (dict, _NONE)}
_STATE = _DATA | {"epoch": (int,), "given": (int,)} | _ORDER | {"seed": (int, _NONE)}
_COUNTS = "epoch", "given", "batches"
for _of_one_rank in ("shard_id", "pad_last_batch"):
    del _STATE[_of_one_rank]

_SAME = "give the reader the same arguments"
_REMEDIES = {  # in order of precedence
    "samples": "take the data set that it was made with",
    "names": "take the data set that it was made with",
    "num_shards": "other numbers of shards go on with resume=, see readers.state()",
    "batch_size": "other batch sizes go on with resume=, see readers.state()",
    "shard_id": "give every rank the checkpoint of its own",
    "checkpointing": "make the pipeline with the same enable_checkpointing",
    "seed": "give the reader the same seed",
}
_FOLLOWS = {  # what then differs in any case
    "samples": ("names",),
    "num_shards": ("shard_id",),
    "random_shuffle": ("initial_fill", "seed"),
    "shuffle_after_epoch": ("shuffle_after_epoch_seed", "checkpointing"),
}
_WORDS = {
    "samples": "{} samples",
    "names": "samples whose names, labels and index have the CRC-32 {:#x}",
    "batch_size": "a batch size of {}",
    "checkpointing": "enable_checkpointing={}",
}


def identity(samples: int, names: int, options: OrderOptions) -> dict[str, Any]:
    """What the order of a data set depends on; what makes no difference is set to a default.

    `samples` is their number, `names` is `Catalog.checksum()`.
    """
    window, reshuffled = options.random_shuffle, options.shuffle_after_epoch
    seed = options.shuffle_after_epoch_seed
    order = replace(
        options,
        initial_fill=options.initial_fill if window else 1024,
        seed=options.seed & 0xFFFF_FFFF if window else 0,
        shuffle_after_epoch_seed=(524287 if seed is None else seed) if reshuffled else 0,
        checkpointing=options.checkpointing and reshuffled and not options.by_container,
    )
    return {"version": VERSION, "samples": samples, "names": names} | asdict(order)


def make_state(here: Mapping[str, Any], **place: Any) -> dict[str, Any]:
    """The state of an `epoch`, of which so many samples were `given`; `here` is an identity."""
    values = {**here, **place}
    return {name: values[name] for name in _STATE}


def read_state(what: str, state: Any) -> dict[str, Any]:
    """Check what `make_state()` returned; `what` begins the message of an error.

    Raises:
        TypeError, ValueError: it is something else; says what.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"{what}: it is {state!r}")
    read = _read(what, state, _STATE)
    for name, most in (("given", read["samples"] - 1), ("num_shards", read["samples"])):
        if read[name] > most:
            raise ValueError(f"{what}: {name} is {read[name]}")
    try:
        began(read)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    return read


def read_checkpoint(what: str, checkpoint: Any) -> dict[str, Any]:
    """Check what `Source.checkpoint()` returned; `what` begins the message of an error.

    Raises:
        ValueError: it is something else; says what.
    """
    return _read(what, checkpoint, _CHECKPOINT)


def began(state: Mapping[str, Any]) -> OrderOptions:
    """The order of the ranks that began the epoch of a state."""
    order = {name: state[name] for name in _STATE if name in _ORDER}
    return OrderOptions(**order, pad_last_batch=True)


def require_same(what: str, saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse a place of something else; compares what both have.

    Raises:
        ValueError: names what differs.
    """
    both = saved.keys() & here.keys()
    differs = [name for name in saved if name in both and saved[name] != here[name]]
    if differs:
        noise = {each for name in differs for each in _FOLLOWS.get(name, ())}
        differs = [name for name in differs if name not in noise]
        was, now = [
            ", ".join(_WORDS.get(name, f"{name}={{}}").format(each[name]) for name in differs)
            for each in (saved, here)
        ]
        remedy = next((_REMEDIES[name] for name in _REMEDIES if name in differs), _SAME)
        raise ValueError(f"{what} was made with {was}, and here it is {now}: {remedy}")


def _read(what: str, saved: Any, known: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    if not isinstance(saved, Mapping):
        raise ValueError(f"{what}: it is {saved!r}")
    if saved.get("version") != VERSION:
        version = f"version {saved['version']!r}" if "version" in saved else "no version"
        raise ValueError(
            f"{what}, or one of another dali_storage: it has {version}, and this "
            f"dali_storage reads version {VERSION}: take the dali_storage that saved it"
        )
    if odd := sorted(map(str, saved.keys() ^ known.keys())):
        raise ValueError(f"{what}: it lacks, or has too much: {', '.join(odd)}")
    for name, kinds in known.items():
        if type(saved[name]) not in kinds or (name in _COUNTS and saved[name] < 0):
            raise ValueError(f"{what}: {name} is {saved[name]!r}")
    return dict(saved)
