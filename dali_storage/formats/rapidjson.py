"""Numbers as parsed by RapidJSON without full precision, which is DALI's parser of JSON.

With more than 15 digits, the result may be a few units in the last place off the nearest double.
See ParseNumber() in rapidjson/reader.h.
"""

from __future__ import annotations

_SHORT = 16  # characters; with a point, these are 15 digits
_LIMIT = "9007199254740992"  # 2**53
_TENS = [float(f"1e{power}") for power in range(309)]
_LOW, _HIGH = 1 - 1e-14, 1 + 1e-14
_SPLIT = 2.0**29 + 1


def real(text: str) -> float:
    """Parse a number with a point or an exponent; raise OverflowError if RapidJSON refuses it."""
    if len(text) <= _SHORT and "e" not in text and "E" not in text:
        return float(text)  # less than 2**53, by an exact power of ten: rounded once
    mantissa, _, power = text.lstrip("-").lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    if len(whole) < 19 or int(whole[:400]) <= _largest(text):
        number, used = _decimal(whole, fraction)
    else:  # RapidJSON ignores the fraction
        number, used = _beyond(whole, _largest(text)), 0
    given = max(-1e9, min(float(power or 0), 1e9))  # as an int, it might have too many digits
    exponent = int(given) - used
    if exponent > 308:
        raise OverflowError(text)
    if exponent < -308:
        number, exponent = number / 1e308, exponent + 308
    if exponent < -308:
        return -0.0 if text[0] == "-" else 0.0
    number = number * _TENS[exponent] if exponent >= 0 else number / _TENS[-exponent]
    return _signed(number, text)


def single(text: str) -> float:
    """Return a number that is equal to `real()` in float32, in less time."""
    if len(text) <= _SHORT and "e" not in text and "E" not in text:
        return float(text)
    number = float(text)
    if len(text) < 40 and 1e-37 < abs(number) < 1e38:
        # Is the result equal for all doubles around? A product by _SPLIT leaves 24 bits [1].
        # [1] Veltkamp's splitting, in Dekker: A floating-point technique, 1971
        low, high = number * _LOW, number * _HIGH
        if low * _SPLIT - (low * _SPLIT - low) == high * _SPLIT - (high * _SPLIT - high):
            return number
    return real(text)


def integer(text: str) -> int | float:
    """Parse a number without point and exponent; a double if it has more than 64 bits."""
    if len(text) < 19 or (len(text) < 400 and abs(int(text)) <= _largest(text)):
        return int(text)
    return _signed(_beyond(text.lstrip("-"), _largest(text)), text)


def _largest(text: str) -> int:
    """Return the largest integer of this sign, without the sign."""
    return 1 << 63 if text[0] == "-" else (1 << 64) - 1


def _signed(number: float, text: str) -> float:
    if number - number:  # infinity
        raise OverflowError(text)
    return -number if text[0] == "-" else number


def _decimal(whole: str, fraction: str) -> tuple[float, int]:
    """Return the digits as a number, and how many of the fraction are in the number."""
    digits = whole + fraction
    significant = digits.lstrip("0")
    zeros = len(digits) - len(significant)
    # Digits go into an integer until 2**53, then into a double, 17 in all without the first.
    end = max(len(whole), zeros + 16 + (significant[:16] < _LIMIT))
    number = float(int(significant[: end - zeros] or 0))
    last = zeros + 17 + (not zeros)
    for digit in digits[end:last]:
        number = number * 10.0 + int(digit)
    return number, min(max(end, last), len(digits)) - len(whole)


def _beyond(whole: str, largest: int) -> float:
    """Return an integer beyond 64 bits: the first digits as an integer, others into a double."""
    end = len(str(largest))
    end -= int(whole[:end]) > largest
    number = float(int(whole[:end]))
    for digit in whole[end:400]:  # infinity from 310 on
        number = number * 10.0 + int(digit)
    return number
