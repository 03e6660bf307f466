"""Parses Kubernetes quantities such as ``10Gi``, ``500m`` and ``1e3``, as apimachinery's resource.Quantity but with blanks around them."""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal, InvalidOperation

from kubekit.errors import QuantityError

_PATTERN = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?\Z"
)
_POWERS_OF_1024 = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_EXPONENTS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def parse(text: str | int) -> Decimal:
    """Parse a quantity. An integer, which JSON allows instead of a text, is taken as is; a text with a suffix has 28 significant digits.

    Raises:
        QuantityError: the text is not a quantity, or its exponent is out of range.
    """
    if isinstance(text, int):
        return Decimal(text)
    match = _PATTERN.match(text.strip())
    if match is None:
        raise QuantityError(
            f"{text!r} is not a quantity: write a number with an optional suffix, such as 500m, 10M or 2Gi"
        )
    suffix = match["suffix"] or ""
    try:
        number = Decimal(match["number"])
        if suffix in _POWERS_OF_1024:
            return number * (1 << 10 * _POWERS_OF_1024[suffix])
        if suffix in _DECIMAL_EXPONENTS:
            return number.scaleb(_DECIMAL_EXPONENTS[suffix])
        return number.scaleb(int(suffix[1:]))
    except InvalidOperation as error:
        raise QuantityError(f"{text!r} is out of the range of quantities") from error


def parse_int(text: str | int) -> int:
    """Parse a quantity as an integer, rounded away from zero as apimachinery's ``Value()`` does.

    Raises:
        QuantityError: the text is not a quantity, or the integer does not fit into 64 bits.
    """
    return _to_int64(parse(text), text)


def parse_int_or_none(text: str | int | None) -> int | None:
    """Parse a quantity as `parse_int` does; None if it is absent, malformed or beyond 64 bits."""
    try:
        return parse_int(text) if text is not None else None
    except QuantityError:
        return None


def parse_milli(text: str | int) -> int:
    """Parse a quantity in thousandths (millicores), rounded away from zero as apimachinery's ``MilliValue()`` does.

    Raises:
        QuantityError: the text is not a quantity, or the integer does not fit into 64 bits.
    """
    return _to_int64(parse(text) * 1000, text)


def _to_int64(value: Decimal, text: str | int) -> int:
    number = value.to_integral_value(rounding=ROUND_UP)
    if not -(1 << 63) <= number < 1 << 63:
        raise QuantityError(f"{text!r} does not fit into 64 bits")
    return int(number)  # after the check, because int() takes seconds for 100,000 digits
