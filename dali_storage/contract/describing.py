"""Formats with outputs of which more is known when the samples are found."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .catalog import Catalog
from .format import Format, Output


@runtime_checkable
class Describes(Protocol):
    """A format with outputs that depend on the samples."""

    def described(self, catalog: Catalog) -> Sequence[Output]:
        """Return `Format.outputs` with all that is known of the samples of a catalog."""


def described(fmt: Format, catalog: Catalog) -> Sequence[Output]:
    """Return the outputs of a format, with all that is known of the samples of a catalog."""
    return fmt.described(catalog) if isinstance(fmt, Describes) else fmt.outputs
