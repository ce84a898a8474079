"""Whether storage, pipeline or model is the bottleneck."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Times of one epoch, or of its part until now.

    Attributes:
        batches: how many batches were given.
        samples: how many samples were in them; repeated ones do not count.
        seconds: from the request for the first batch until the last request was answered.
        wait_seconds: how long the training loop waited for batches.
        storage_seconds: how long, of these, the pipeline waited for the storage.
    """

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    storage_seconds: float = 0.0

    @property
    def bound(self) -> Literal["model", "storage", "pipeline"]:
        """What to make faster."""
        raise NotImplementedError
