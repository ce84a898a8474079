"""Checks of option and argument values, with one form of message for all of them."""

from numbers import Real
from typing import Any

import numpy as np


def require_integer(backend: str, option: str, value: int, known: range) -> None:
    """Raise ValueError unless a backend's option is an integer in the range `known`."""
    if not isinstance(value, int) or isinstance(value, bool) or value not in known:
        step = f", a multiple of {known.step}" if known.step > 1 else ""
        raise ValueError(
            f"{backend}: {option} must be an integer from {known[0]} to {known[-1]}{step}, "
            f"not {value!r}"
        )


def require_number(backend: str, option: str, value: float, low: float, high: float) -> None:
    """Raise ValueError unless a backend's option is a number from `low` to `high`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(
            f"{backend}: {option} must be a number from {low} to {high}, not {value!r}"
        )


def require_flag(backend: str, option: str, value: bool) -> None:
    """Raise TypeError unless a backend's option is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{backend}: {option} must be True or False, not {value!r}")


def dali_integer(argument: str, value: Any, *, bits: int = 64) -> int:
    """An argument of the operator, converted by `int()` as in DALI: "2" is 2, 1.9 is 1.

    Raises:
        TypeError: `int()` cannot convert it.
        ValueError: it has more than `bits` bits. DALI would drop the upper ones, or the argument.
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{argument} must be an integer, not {value!r}") from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(f"{argument} must fit in {bits} bits, not {value!r}")
    return number


def dali_flag(argument: str, value: Any) -> bool:
    """The truth value of a number, as in DALI; None is False. DALI would take "False" for True."""
    if value is None or isinstance(value, (Real, np.bool_)):
        return bool(value)
    raise TypeError(f"{argument} must be True or False, not {value!r}")
