"""The state of a Loader in plain types, for JSON and `torch.load(weights_only=True)`."""

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ...order.resuming.state import require_entries

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Identity:
    """A description of the batches that the pipeline of a Loader delivers.

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
class State:
    """The saved position of a Loader.

    Attributes:
        readers: the state of each reader by its name, see `BatchStream.state()`; the same on all
            ranks after equally many batches.
        batch_size, world, rank, last_batch: the values of the saving Loader, see Identity.
        pipeline: the checkpoint of its pipeline, in base64.
        version: the version of this format.
    """

    readers: dict[str, dict[str, Any]]
    batch_size: int
    world: int
    rank: int
    last_batch: str
    pipeline: str
    version: int = _VERSION

    @classmethod
    def save(
        cls, identity: Identity, readers: dict[str, dict[str, Any]], checkpoint: bytes
    ) -> dict[str, Any]:
        """The state as plain types."""
        values = asdict(identity) | {"readers": readers, "version": _VERSION}
        values["pipeline"] = base64.b64encode(checkpoint).decode()
        return {field.name: values[field.name] for field in fields(cls)}

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> "State":
        """Check the result of `save()`, except for the states of the readers.

        Raises:
            TypeError, ValueError: not the state of a Loader; says why.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of a Loader is a mapping, not {type(state).__name__}")
        version = state.get("version", _VERSION)
        if version != _VERSION:
            raise ValueError(
                f"unsupported state version {version!r} (this release reads version "
                f"{_VERSION}); load it with the release that saved it"
            )
        types: dict[str, Any] = {field.name: (field.type,) for field in fields(cls)}
        require_entries("not a state of a Loader", state, types | {"readers": (dict,)})
        return cls(**state)

    def checkpoint(self) -> bytes:
        """The checkpoint of the pipeline.

        Raises:
            ValueError: the checkpoint is not base64.
        """
        try:
            return base64.b64decode(self.pipeline, validate=True)
        except ValueError as error:
            raise ValueError(f"not a state of a Loader: pipeline is not base64 ({error})") from None

    def differs(self, here: Identity) -> str:
        """Describe how ranks or batches differ from `here`; empty if equal."""
        if (self.world, self.batch_size) != (here.world, here.batch_size):
            return (
                f"{self.world} ranks with batches of {self.batch_size}, but here are {here.world} "
                f"with batches of {here.batch_size}"
            )
        return f"rank {self.rank}, but this is rank {here.rank}" if self.rank != here.rank else ""
