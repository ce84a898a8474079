"""What training loops expect of a loader's sampler."""

import warnings

from .pipeline_factory import PipelineFactory
from .progress import Progress


class EpochSampler:
    """The `sampler` of a Loader; training loops call its `set_epoch()`."""

    def __init__(self, progress: Progress, supply: PipelineFactory) -> None:
        """Set the epochs of this Progress, whose batches come from `supply`."""
        self._progress = progress
        self._supply = supply

    def set_epoch(self, epoch: int) -> None:
        """Make every `iter()` begin this epoch until the next call, as torch's samplers do.

        The epoch under way goes on. If the state that was just loaded is in this epoch, the first
        `iter()` goes on from the state; if not, a warning says what is left out or repeated.

        Raises:
            ValueError: not an epoch.
        """
        self._progress.set_epoch(epoch, fix=True)
        loaded, given = self._progress.restored or (epoch, 0)
        if epoch < loaded or (epoch > loaded and given):
            effect = "left out" if epoch > loaded else "repeated"
            warnings.warn(
                f"the loaded state is in epoch {loaded}, after {given} batches, but the training "
                f"loop begins epoch {epoch}: the batches between the two are {effect}; to go on "
                f"from the state, call set_epoch({loaded})",
                stacklevel=2,
            )

    @property
    def batch_size(self) -> int:
        """Number of samples in a full batch; makes the pipeline."""
        return self._supply.batches().identity.batch_size
