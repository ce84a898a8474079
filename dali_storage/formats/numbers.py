"""Numbers of JSON, as DALI's parser reads them: by RapidJSON, without full precision.

With more than 15 digits, a double may be a few units in the last place off the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable

from ..contract.faces import explained


def parser() -> Callable[[str], float]:
    """Return what parses the text of a number, to an `int` if it is an integer of up to 64 bits.

    It raises OverflowError for a number that RapidJSON refuses, because float64 lacks it.

    Raises:
        BackendUnavailable: the package python-rapidjson is not installed.
    """
    with explained():
        from rapidjson import NM_NATIVE, Decoder
    parse = Decoder(number_mode=NM_NATIVE)

    def number(text: str) -> float:
        try:
            return parse(text)  # type: ignore[no-any-return]
        except ValueError:
            raise OverflowError(text) from None

    return number
