"""What a queue runs: commands that submit themselves and take their completions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..._types import IntArray

UNDER_WAY, NOTHING_TO_DO = 0, 1


class Commands(ABC):
    """Commands for a queue to run, identified by index.

    Attributes:
        count: the number of commands.
    """

    count: int

    @abstractmethod
    def submit(self, indices: list[int], contexts: list[int]) -> Sequence[int]:
        """Submit commands, each in its context, whose head still holds an older command.

        Returns:
            One code per command: UNDER_WAY, NOTHING_TO_DO, or -errno if libxnvme rejects it.
        """

    @abstractmethod
    def complete(
        self, indices: IntArray, results: IntArray, statuses: npt.NDArray[np.uint16]
    ) -> list[int]:
        """Take the completions of commands.

        Args:
            indices: int64[k], of the commands.
            results: int64[k], as the implementation reports them: bytes, mostly.
            statuses: uint16[k], SCT << 8 | SC; 0 is success.

        Returns:
            Indices of the commands to submit again.
        """

    @abstractmethod
    def reject(self, index: int, error: int) -> None:
        """Called for a command that cannot be submitted; `error` is an errno."""

    @abstractmethod
    def will_wait(self) -> None:
        """Called when there is nothing to do but to wait for completions."""
