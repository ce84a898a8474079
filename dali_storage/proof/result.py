"""The result of a check."""

from collections.abc import Sequence
from dataclasses import dataclass, field

_MOST_SHOWN = 5


@dataclass(slots=True)
class Check:
    """A check and its result.

    Attributes:
        name: the subject of the check.
        samples: the number of compared samples; 0: the check could not run.
        compared: the same as text, with the kind of comparison, or why there was none.
        differences: the number of differences.
        first: a line for each of the first differences.
        seconds: the time of the check.
    """

    name: str
    samples: int = 0
    compared: str = ""
    differences: int = 0
    first: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def differs(self, what: str) -> None:
        """Note a difference."""
        self.differences += 1
        if len(self.first) < _MOST_SHOWN:
            self.first.append(what)

    def same(self, where: str, got: Sequence[object], wanted: Sequence[object]) -> None:
        """Compare the name, the label and the CRC-32 of a sample."""
        each = zip(("name", "label", "CRC-32"), got, wanted, strict=True)
        if wrong := [f"{what} {a!r} instead of {b!r}" for what, a, b in each if a != b]:
            self.differs(f"{where}: {', '.join(wrong)}")


def counted(samples: int) -> str:
    """Return a number of samples as text."""
    return f"{samples:,} sample" + "s" * (samples != 1)
