"""Quantities are read exactly as apimachinery reads them."""

from __future__ import annotations

import pytest

from kubekit import quantity
from kubekit.errors import QuantityError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10Gi", 10 * 2**30),
        ("1M", 10**6),
        ("0.5", 1),
        ("500m", 1),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        (".5k", 500),
        ("+5", 5),
        ("-5M", -5 * 10**6),
        (250, 250),
    ],
)
def test_integers_round_up_like_value(text: str | int, value: int) -> None:
    assert quantity.parse_int(text) == value


@pytest.mark.parametrize(("text", "milli"), [("1", 1000), ("250m", 250), ("0.1", 100), ("1u", 1), ("2k", 2_000_000)])
def test_millis_round_up_like_milli_value(text: str, milli: int) -> None:
    assert quantity.parse_milli(text) == milli


@pytest.mark.parametrize("text", ["", "ten", "10 M", "1KB", "1e", "--1", "0x10", "1e99999", "Mi", "NaN", "1ki"])
def test_other_texts_are_refused_with_the_text_in_the_error(text: str) -> None:
    with pytest.raises(QuantityError, match="quantity") as caught:
        quantity.parse(text)
    assert repr(text) in str(caught.value)


def test_values_beyond_64_bits_are_refused() -> None:
    with pytest.raises(QuantityError, match="64 bits"):
        quantity.parse_int("1e30")
