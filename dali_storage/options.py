"""How a backend refuses a wrong option: by its own name, with the value and what would be right."""

from __future__ import annotations


def require_integer(backend: str, option: str, value: int, known: range) -> None:
    """Refuse what is not an integer of a range.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value not in known:
        step = f", a multiple of {known.step}" if known.step > 1 else ""
        raise ValueError(
            f"{backend}: {option} must be an integer from {known[0]} to {known[-1]}{step}, "
            f"not {value!r}"
        )


def require_flag(backend: str, option: str, value: bool) -> None:
    """Refuse what is neither True nor False.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{backend}: {option} must be True or False, not {value!r}")
