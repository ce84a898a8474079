"""The slot for the handling of bad samples, with none in it: they are errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.format import Format
from ..contract.views import Contents

_T = TypeVar("_T")

Members: TypeAlias = Callable[[int], "IntArray | range"]
"""The delivered samples, ascending, from which the replacement of a sample is chosen."""


class Substitute:
    """Leaves bad samples errors. `bad_samples.replacement` delivers others in their place.

    Attributes:
        replaces: True if other samples are delivered.
        bad: the errors of the known bad samples.
        only: the samples of every batch, to find bad ones; None: as in the order.
    """

    replaces: ClassVar[bool] = False
    bad: Mapping[int, Exception] = {}
    only: IntArray | None = None

    @property
    def found(self) -> list[tuple[int, str, str]]:
        """Index, path and reason of the bad samples."""
        return []

    def read(self, samples: IntArray, read: Callable[[IntArray], _T]) -> _T:
        """Call `read` for `samples`, with others in place of bad ones; return the result."""
        return read(samples)

    def chosen(self, samples: IntArray) -> IntArray:
        """Return `samples`, or a copy with other samples in place of known bad ones."""
        return samples

    def add(self, found: Mapping[int, Exception]) -> None:
        """Note bad samples and their errors, which the caller has found."""
        raise next(iter(found.values()))

    def check(self, fmt: Format, samples: IntArray, outputs: Sequence[Contents]) -> None:
        """Raise an error of a sample if the outputs of a batch are bad."""

    def handles(self, error: Exception) -> bool:
        """Return True if another sample may be delivered after this error."""
        return False


class Handling(Protocol):
    """The wishes of a user about bad samples, see `bad_samples.replacement.OnError`.

    Attributes:
        replace: True if another sample is delivered in place of a bad one.
    """

    @property
    def replace(self) -> bool:
        """See above."""

    def substitute(self, catalog: Catalog, members: Members) -> Substitute:
        """Make what handles the bad samples of a catalog."""
