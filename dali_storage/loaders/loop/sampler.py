"""What training loops expect of the sampler of a loader."""

import warnings

from .pipeline_factory import PipelineFactory
from .progress import Progress


class EpochSampler:
    """The `sampler` of a Loader; training loops call its `set_epoch()`."""

    def __init__(self, progress: Progress, supply: PipelineFactory) -> None:
        self._progress = progress
        self._supply = supply

    def set_epoch(self, epoch: int) -> None:
        """Make every `iter()` begin this epoch until the next call; the epoch under way goes on.

        The first `iter()` goes on from a loaded state, if its epoch is this one; if not, it warns.
        """
        self._progress.set_epoch(epoch, fix=True)
        loaded, given = self._progress.restored or (epoch, 0)
        if epoch < loaded or (epoch > loaded and given):
            effect = "left out" if epoch > loaded else "repeated"
            warnings.warn(
                f"the loaded state is in epoch {loaded}, after {given} batches, but the training "
                f"loop begins epoch {epoch}: the batches in between are {effect}; to go on from "
                f"the state, call set_epoch({loaded})",
                stacklevel=2,
            )

    @property
    def batch_size(self) -> int:
        """Number of samples in a full batch; makes the pipeline."""
        return self._supply.batches().identity.batch_size
