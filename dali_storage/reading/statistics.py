"""What a reader has done, as numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """What a reader has given to DALI since its pipeline began to read.

    Attributes:
        batches: how many batches DALI took; those that it had to ask for twice count twice.
        bytes: the sum of the sizes of their samples, or of the parts that were read of them.
        wait_seconds: how long, in all, the pipeline waited for the storage: from when DALI asked
            for a batch until it had been read. DALI asks ahead of the user, so a wait delays the
            training only when the pipeline's own queue runs empty.
        depth: how many batches are read ahead.
        ready: how many of these had been read when DALI asked for the next batch, on average: near
            `depth`, the storage is fast enough; near 0, it is the bottleneck.
        replaced: how many samples were found to be bad, with on_error="replace".
    """

    batches: int = 0
    bytes: int = 0
    wait_seconds: float = 0.0
    depth: int = 0
    ready: float = 0.0
    replaced: int = 0
