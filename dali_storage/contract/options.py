"""Options of backends in one form, and checks of values with one form of message for all."""

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Annotated, Any, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

import numpy as np

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Option:
    """The values of an option: `lanes: Annotated[int, Option(range(1, 65))] = 3`.

    None is valid if it is the default. The docstring explains the option, below "Args:".

    Attributes:
        within: integers; or a tuple of flags, of names, of powers of two, or of the least number, a
            float, and the greatest; or words, if the backend itself checks the value.
        unit: the unit of numbers.
        backend: the name of the backend; `check_options()` sets this, `name` and `default`.
        name: the name of the option.
        default: `inspect.Parameter.empty` if the option is required.
    """

    within: range | tuple[Any, ...] | str
    unit: str = ""
    backend: str = ""
    name: str = ""
    default: Any = inspect.Parameter.empty

    def __str__(self) -> str:
        if isinstance(self.within, str):
            return self.within
        first, last, step = self.within[0], self.within[-1], getattr(self.within, "step", 0)
        if isinstance(first, bool):
            return "True or False"
        if isinstance(first, str):
            return f"one of {', '.join(map(str, self.within))}"
        integer = {0: "a power of two", 1: "an integer"}.get(step, f"a multiple of {step}")
        what = "a number" if isinstance(first, float) else integer
        return f"{what} from {first} to {last} {self.unit}".rstrip()

    def check(self, value: Any) -> None:
        """Raise ValueError, or TypeError for a flag, if the option cannot have this value."""
        if isinstance(self.within, str) or (value is None and self.default is None):
            return
        first, last, kind = self.within[0], self.within[-1], type(self.within[0])
        good = isinstance(value, (kind, int)) and isinstance(value, bool) is (kind is bool)
        if not (good and (first <= value <= last if kind is float else value in self.within)):
            what = f"{self.backend}: {self.name} must be {self}, not {value!r}"
            raise TypeError(what) if kind is bool else ValueError(what)


class Choice(NamedTuple, Generic[_T]):
    """The value of an option that was not given, as a rule chose it, and the reason."""

    value: _T
    why: str

    def __str__(self) -> str:
        return f"{self.value} ({self.why})"


Flag: TypeAlias = Annotated[bool, Option((True, False))]
Lanes: TypeAlias = Annotated[int, Option(range(1, 65))]


def check_options(backend: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a function check its annotated options, and show their values in its docstring."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature, plain = inspect.signature(function, eval_str=True), []
        options, text = dict[str, Option](), function.__doc__ or ""
        for it in signature.parameters.values():
            for option in getattr(it.annotation, "__metadata__", ()):
                if not isinstance(option, Option):
                    continue
                option = replace(option, backend=backend, name=it.name, default=it.default)
                text = re.sub(rf"(?m)^( +{it.name}):", rf"\1 ({option}):", text)
                options[it.name] = option
                it = it.replace(annotation=it.annotation.__origin__)
            plain.append(it)

        @functools.wraps(function)
        def checked(*arguments: _P.args, **given: _P.kwargs) -> _R:
            require_options(
                checked, dict(zip(signature.parameters, arguments, strict=False)) | given
            )
            return function(*arguments, **given)

        shown: Any = checked
        shown.__doc__, shown.__signature__ = text, signature.replace(parameters=plain)
        shown.options = options
        return checked

    return decorate


def require_options(function: Any, given: Mapping[str, Any]) -> None:
    """Check values for the options that `check_options()` found for a function, if any."""
    options: Mapping[str, Option] = getattr(function, "options", {})
    for name in filter(options.__contains__, given):
        options[name].check(given[name])


def require_integer(where: str, name: str, value: Any, known: range) -> None:
    """Raise ValueError unless an argument is an integer in the range `known`."""
    Option(known, backend=where, name=name).check(value)


def dali_integer(argument: str, value: Any, *, bits: int = 64) -> int:
    """Convert an argument of the operator by `int()`, as in DALI: "2" is 2, 1.9 is 1.

    Raises:
        TypeError: `int()` cannot convert it.
        ValueError: more than `bits` bits are needed. DALI would drop the upper ones, or the
            argument.
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{argument} must be an integer, not {value!r}") from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(f"{argument} must fit in {bits} bits, not {value!r}")
    return number


def dali_number(argument: str, value: Any) -> float:
    """Convert an argument of the operator by `float()`, as in DALI; TypeError if impossible."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{argument} must be a number, not {value!r}") from None


def dali_flag(argument: str, value: Any, default: bool = False) -> bool:
    """Return the truth value of a number, as in DALI; None is the default. "False" is refused."""
    if value is None or isinstance(value, (Real, np.bool_)):
        return default if value is None else bool(value)
    raise TypeError(f"{argument} must be True or False, not {value!r}")


def stall_seconds(value: Any) -> float | None:
    """Check the argument stall_after; ValueError unless it is None or some seconds."""
    if value is None:
        return None
    if not isinstance(value, bool) and isinstance(value, Real):
        with contextlib.suppress(OverflowError):  # of float()
            if 0 < (seconds := float(value)) < math.inf:
                return seconds
    what = "stall_after must be a number of seconds above 0, or None for no warnings"
    raise ValueError(f"{what}, not {value!r:.80}")
