"""The annotation with latencies is decoded as it was encoded, and written only after large changes."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from netperf.latencies import (
    MAX_TEXT_BYTES,
    Latencies,
    apply_hysteresis,
    decode_latencies,
    encode_latencies,
    round_up_error,
)

ZONES = st.lists(st.text(min_size=1, max_size=6), min_size=2, max_size=6, unique=True)


@st.composite
def any_latencies(draw: st.DrawFn) -> Latencies:
    zones = draw(ZONES)
    pairs = [(a, b) for a in zones for b in zones]
    us_by_pair = draw(st.dictionaries(st.sampled_from(pairs), st.integers(1, 10**8)))
    errors = {pair: draw(st.integers(0, 10**6)) for pair in us_by_pair}
    unreachable_pairs = draw(st.sets(st.sampled_from(pairs)))
    return Latencies(us_by_pair, errors, frozenset(unreachable_pairs))


@given(any_latencies())
def test_encoded_latencies_are_decoded_unchanged(latencies: Latencies) -> None:
    assert decode_latencies(encode_latencies(latencies)) == latencies


@given(st.text() | st.sampled_from(['{"zones":["a"],"us":[]}', "[]", '{"zones":["a","b"],"us":[[1,2]]}']))
def test_an_invalid_annotation_has_no_latencies_and_a_problem(text: str) -> None:
    latencies = decode_latencies(text)
    assert not latencies
    assert bool(latencies.problem) == bool(text)


def test_a_zero_is_not_the_best_latency() -> None:
    latencies = decode_latencies('{"zones":["a","b"],"us":[[null,0],[7,null]]}')
    assert latencies.latency_us("a", "b") is None
    assert latencies.latency_us("b", "a") == 7


def test_a_hundred_zones_fit_an_annotation_with_their_error_bars() -> None:
    rng, zones = random.Random(1), [f"europe-north1-{i:03}" for i in range(100)]
    pairs = [(a, b) for a in zones for b in zones if a != b]
    latencies = Latencies(
        {p: rng.randint(100, 400_000) for p in pairs}, {p: round_up_error(rng.randint(5, 9000)) for p in pairs}
    )
    assert 10_000 < len(encode_latencies(latencies)) < MAX_TEXT_BYTES * 3 // 4


def test_error_bars_round_up_to_two_significant_figures() -> None:
    assert [round_up_error(us) for us in (0.0, 1.2, 10.4, 101.0, 1999.0)] == [1, 2, 11, 110, 2000]


def test_small_changes_are_written_only_together_with_a_large_one() -> None:
    written = Latencies({("a", "b"): 1000, ("b", "a"): 1000, ("a", "c"): 100_000})
    with_small_changes = Latencies({("a", "b"): 1029, ("b", "a"): 985, ("a", "c"): 102_900}, {("a", "b"): 5})
    assert apply_hysteresis(written, with_small_changes) is written
    with_large_change = Latencies({("a", "b"): 1031, ("b", "a"): 990, ("a", "c"): 102_000})
    changed_us = apply_hysteresis(written, with_large_change).latency_us_by_pair
    assert changed_us == {("a", "b"): 1031, ("b", "a"): 1000, ("a", "c"): 102_000}
    with_unreachable_pair = Latencies({("a", "b"): 1000, ("b", "a"): 1000}, unreachable_pairs=frozenset({("a", "c")}))
    assert apply_hysteresis(written, with_unreachable_pair) == with_unreachable_pair
