"""Saved positions in plain types, fit for JSON, with the identity of data set and order.

A *checkpoint* is the part of one rank in DALI's checkpoint; resuming needs the same setup. A
*state* is common to all ranks, and any number of ranks can resume from the state.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from ...contract.catalog import Catalog
from ..options import OrderOptions
from ..ordering import Ordering
from ..shards import rounds
from .history import require_history, resumed
from .resume import Rest, StreamRest

VERSION = 1

_NONE = type(None)
_ORDER: dict[str, tuple[type, ...]] = {
    field.name: (type(field.default) if field.default is not None else int,)
    for field in fields(OrderOptions)
}
_DATA: dict[str, tuple[type, ...]] = {"version": (int,), "samples": (int,), "names": (int,)}
_DATA |= {"stream": (str,), "changes": (list,), "history": (list,), "receipt": (list, _NONE)}
_NOT_SAVED: dict[str, Any] = {"shuffle_bits": 64, "stream": "DALI's", "changes": []}
_NOT_SAVED |= {"history": [], "receipt": None}
_CHECKPOINT = _DATA | _ORDER | {"batch_size": (int,), "batches": (int,), "resumed": (dict, _NONE)}
_STATE_ORDER = [name for name in _ORDER if name not in ("shard_id", "pad_last_batch")]
_STATE = _DATA | {"epoch": (int,), "given": (int,)} | {name: _ORDER[name] for name in _STATE_ORDER}
_STATE["seed"] = int, _NONE
_COUNTS = "epoch", "given", "batches", "batch_size", "world", "rank"

_SAME = "give the reader the same arguments"
_REMEDIES = {  # in order of precedence
    "samples": "resume with the same data set",
    "names": "resume with the same data set",
    "num_shards": "use as many shards; on another number, resume a pipeline from readers.state()",
    "batch_size": "use the same size; with another, resume a pipeline from readers.state()",
    "shard_id": "give every rank its own checkpoint",
    "shuffle_bits": "use the same version of DALI; before 2.2, DALI shuffles by 32 bits",
    "checkpointing": "make the pipeline or reader with the same enable_checkpointing",
    "seed": "give the reader the same seed",
    "stream": "give the reader the same weights, order, epoch_size and seed",
}
_FOLLOWS = {  # entries that then differ in any case
    "samples": ("names",),
    "num_shards": ("shard_id",),
    "random_shuffle": ("initial_fill", "seed"),
    "shuffle_after_epoch": ("shuffle_after_epoch_seed", "checkpointing", "shuffle_bits"),
}
_WORDS = {
    "samples": "{} samples",
    "names": "samples whose names, labels, texts and index have the CRC-32 {:#x}",
    "batch_size": "a batch size of {}",
    "shuffle_bits": "a shuffle_after_epoch of {} bits",
    "checkpointing": "enable_checkpointing={}",
    "stream": "the order: {}",
}


class SavedPositions:
    """Checkpoints and states of positions in one stream of batches."""

    def __init__(
        self,
        reader: str,
        catalog: Catalog,
        order: OrderOptions,
        batch_size: int,
        shared_seed: bool,
        ordering: Ordering,
    ) -> None:
        """Describe the stream of a reader.

        `reader` begins the messages. `shared_seed`: all ranks have the seed of `order`.
        """
        self._reader, self._order, self._batch_size = reader, order, batch_size
        self._shared_seed = shared_seed or not order.random_shuffle
        self._identity, self._ordering = _identity(catalog, order), ordering
        self._size = ordering.epoch_size
        self._resumed: dict[str, Any] = {}
        world = order.num_shards
        self._history = [[0, 0, world, world, batch_size]]  # see `history`

    def checkpoint(self, position: int, rest: Rest | None) -> dict[str, Any]:
        """The checkpoint of the batch at a position; `rest` is of the last `read_state()`."""
        # At the end of the rest, too: there an iterator still has the numbers of the rest.
        resumed = rest is not None and position <= rest.stop
        return {
            **self._identity,
            **self._ordering.described(position // self._rounds),
            "batch_size": self._batch_size,
            "batches": position,
            "history": self._history,
            "resumed": dict(self._resumed) if resumed else None,
        }

    def read_checkpoint(self, checkpoint: Any) -> dict[str, Any]:
        """Check a checkpoint: `batches` is the position, `resumed` the state of its rest, if any.

        Raises:
            ValueError: not a checkpoint, or of another data set or order; names the difference.
        """
        saved = read_checkpoint(f"{self._reader}: not a checkpoint of such a reader", checkpoint)
        here = self._identity | {"batch_size": self._batch_size}
        here |= self._comparable(saved, saved["batches"] // self._rounds)
        _require_same(f"{self._reader}: the checkpoint", saved, here)
        self._history = saved["history"]
        return saved

    def state(self, position: int, rest: Rest | None) -> dict[str, Any]:
        """The state of the batch at a position; the seed is None if ranks may differ in seeds.

        Raises:
            ValueError: the reader does not pad its last batches.
        """
        self._require_padding("a state")
        world = self._order.num_shards
        if rest is not None and rest.start <= position < rest.stop:
            epoch, given, world = rest.epoch, rest.given_at(position), rest.began.num_shards
        else:
            epoch, batches = divmod(position, self._rounds)
            given = batches * self._batch_size * world
        values = self._identity | self._ordering.described(epoch)
        values |= {"epoch": epoch, "given": given, "num_shards": world, "history": self._history}
        values |= {} if self._shared_seed or world == 1 else {"seed": None}
        return {name: values[name] for name in _STATE if name in values}

    def read_state(self, state: Any) -> tuple[int, Rest | None, dict[str, Any]]:
        """The position, the rest of its epoch if other ranks began the epoch, and the state.

        Raises:
            TypeError, ValueError: the state is damaged, or of another data set or order.
        """
        what = f"{self._reader}: resume is not a state of readers.state()"
        saved, began = read_state(what, state, self._ordering.dealt)
        self._require_padding("resume")
        dealt = self._ordering.dealt
        rest = (StreamRest if dealt else Rest)(
            size=self._size if dealt else saved["samples"],
            began=began,
            epoch=saved["epoch"],
            given=saved["given"],
            world=self._order.num_shards,
            batch_size=self._batch_size,
        )
        same = rest.same
        here = self._identity | {"num_shards": saved["num_shards"]}
        here |= {"seed": None} if saved["seed"] is None else {}
        here |= self._comparable(saved, saved["epoch"])
        _require_same(f"{self._reader}: the state to resume from", saved, here)
        if rest.given >= rest.size:
            raise ValueError(f"{what}: given is {rest.given}")
        if saved["seed"] is None and same is None:
            raise ValueError(
                f"{self._reader}: the state has no common seed (each rank used its pipeline's); "
                f"resume with {rest.began.num_shards} shards and the same batch size, or set the "
                "reader's seed= before saving"
            )
        self._resumed = {it: saved[it] for it in saved if it in state and it != "receipt"}
        self._history = resumed(saved, self._order.num_shards, self._batch_size)
        return (rest.start, rest, self._resumed) if same is None else (same, None, self._resumed)

    @property
    def _rounds(self) -> int:
        return rounds(self._size, self._order.num_shards, self._batch_size)

    def _comparable(self, saved: Mapping[str, Any], epoch: int) -> dict[str, Any]:
        """Describe an epoch for a comparison, in which changes while running may differ."""
        stream = {"stream": _NOT_SAVED["stream"]} | self._ordering.described(epoch)
        return stream | {"changes": saved["changes"]}

    def _require_padding(self, what: str) -> None:
        if not self._order.pad_last_batch:
            otherwise = "otherwise an epoch begins within a batch"
            raise ValueError(f"{self._reader}: {what} needs pad_last_batch=True; {otherwise}")


def _identity(catalog: Catalog, options: OrderOptions) -> dict[str, Any]:
    """Everything that determines the order of a data set; defaults for unused options."""
    window, reshuffled = options.random_shuffle, options.shuffle_after_epoch
    seed = options.shuffle_after_epoch_seed
    order = replace(
        options,
        initial_fill=options.initial_fill if window else 1024,
        seed=options.seed & 0xFFFF_FFFF if window else 0,
        shuffle_after_epoch_seed=(524287 if seed is None else seed) if reshuffled else 0,
        checkpointing=options.checkpointing and reshuffled and not options.by_container,
        shuffle_bits=options.shuffle_bits if reshuffled and not options.by_container else 64,
    )
    data = {"version": VERSION, "samples": catalog.delivered, "names": catalog.checksum()}
    return data | asdict(order)


def read_state(what: str, state: Any, dealt: bool) -> tuple[dict[str, Any], OrderOptions]:
    """Check a state, and return its entries and the order of the ranks that began the epoch.

    `dealt`: a stream has the epoch, which may be longer than the data set.

    Raises:
        TypeError, ValueError: not a state; says why, after `what`.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"{what} but {state!r:.80}")
    read = _read(what, state, _STATE)
    for name, most in (("given", read["samples"] - 1), ("num_shards", read["samples"])):
        if read[name] > most and not dealt:
            raise ValueError(f"{what}: {name} is {read[name]}")
    try:
        began = OrderOptions(**{name: read[name] for name in _STATE_ORDER}, pad_last_batch=True)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    return read, began


def read_checkpoint(what: str, checkpoint: Any) -> dict[str, Any]:
    """Check a checkpoint; an error begins with the first argument.

    Raises:
        ValueError: not a checkpoint; says why.
    """
    return _read(what, checkpoint, _CHECKPOINT)


def _require_same(what: str, saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse a position of another data set or order; compare the entries present in both."""
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
        raise ValueError(f"{what} was made with {was}, but this reader has {now}: {remedy}")


def _read(what: str, saved: Any, known: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    if not isinstance(saved, Mapping):
        raise ValueError(f"{what} but {saved!r:.80}")
    if saved.get("version") != VERSION:
        version = f"version {saved['version']!r}" if "version" in saved else "without a version"
        raise ValueError(
            f"{what}: unsupported state {version} "
            f"(this release reads version {VERSION}); load it with the release that saved it"
        )
    read = _NOT_SAVED | dict(saved)
    require_entries(what, read, known)
    require_history(what, read["history"])
    return read


def require_entries(
    what: str, saved: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]
) -> None:
    """Refuse unknown, missing or mistyped entries; an error begins with the first argument.

    Raises:
        ValueError: names the entries.
    """
    if odd := sorted(map(str, saved.keys() ^ known.keys())):
        raise ValueError(f"{what}: missing or unexpected keys: {', '.join(odd)}")
    for name, kinds in known.items():
        if type(saved[name]) not in kinds or (name in _COUNTS and saved[name] < 0):
            raise ValueError(f"{what}: {name} is {saved[name]!r}")
