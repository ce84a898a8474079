"""The state of a Loader in plain types, which JSON and `torch.load(weights_only=True)` take."""

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

_VERSION = 1
_SAME = {
    "samples": "a data set of {} samples",
    "names": "samples whose names, labels and index have the CRC-32 {:#x}",
    "batch_size": "a batch size of {}",
    "world": "{} shards",
    "last_batch": "last_batch={!r}",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What a state may be loaded into: the same, except for the rank.

    Attributes:
        samples: number of samples of the data set.
        names: CRC-32 of the names and labels of the samples, and of their places in containers.
        batch_size: samples of a batch.
        world: number of shards.
        rank: the shard in the first epoch.
        last_batch: as in Loader.
    """

    samples: int
    names: int
    batch_size: int
    world: int
    rank: int
    last_batch: str


@dataclass(frozen=True, slots=True)
class State(Identity):
    """Where the epochs of a Loader are.

    Attributes:
        epoch: the epoch of the next batch.
        given: how many batches of it have been given.
        pipeline: the checkpoint of the pipeline, in base64.
        version: of this format.
    """

    epoch: int
    given: int
    pipeline: str
    version: int = _VERSION

    @classmethod
    def save(cls, identity: Identity, epoch: int, given: int, checkpoint: bytes) -> dict[str, Any]:
        """The state as plain types."""
        pipeline = base64.b64encode(checkpoint).decode()
        return asdict(cls(**asdict(identity), epoch=epoch, given=given, pipeline=pipeline))

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> "State":
        """Check what `save()` returned.

        Raises:
            TypeError, ValueError: it is something else; says what.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of a Loader is a mapping, not {type(state).__name__}")
        types = {field.name: field.type for field in fields(cls)}
        if set(state) != set(types):
            odd = ", ".join(sorted(map(str, set(state) ^ set(types))))
            raise ValueError(f"no state of a Loader: it lacks, or has too much: {odd}")
        if state["version"] != _VERSION:
            raise ValueError(
                f"the state has version {state['version']!r}, and this dali_storage reads version "
                f"{_VERSION}: load it with the version that saved it"
            )
        for name, kind in types.items():
            value = state[name]
            if type(value) is not kind or (kind is int and value < 0):
                raise ValueError(f"no state of a Loader: {name} is {value!r}")
        return cls(**state)

    def checkpoint(self) -> bytes:
        """The checkpoint of the pipeline.

        Raises:
            ValueError: it is not base64.
        """
        try:
            return base64.b64decode(self.pipeline, validate=True)
        except ValueError as error:
            raise ValueError(f"no state of a Loader: pipeline is not base64 ({error})") from None

    def require(self, **here: Any) -> None:
        """Refuse a state of something else; `here` has attributes of the identity.

        Raises:
            ValueError: names what differs.
        """
        for name, words in _SAME.items():
            if name in here and getattr(self, name) != here[name]:
                was, now = words.format(getattr(self, name)), words.format(here[name])
                raise ValueError(
                    f"the state was saved with {was}, and this Loader has {now}: load it into a "
                    "Loader of the same data set and options"
                )
