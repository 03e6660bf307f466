"""The annotation with latencies is decoded as it was encoded, and written only after large changes."""

from __future__ import annotations

import itertools
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
def draw_latencies(draw: st.DrawFn) -> Latencies:
    zones = draw(ZONES)
    pairs = st.tuples(st.sampled_from(zones), st.sampled_from(zones))
    latency_us_by_pair = draw(st.dictionaries(pairs, st.integers(1, 10**8)))
    error_us_by_pair = {pair: draw(st.integers(0, 10**6)) for pair in latency_us_by_pair}
    return Latencies(latency_us_by_pair, error_us_by_pair, draw(st.frozensets(pairs)))


@given(draw_latencies())
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
    rng, zones = random.Random(1), [f"europe-north1-{number:03}" for number in range(100)]
    pairs = list(itertools.permutations(zones, 2))
    latency_us_by_pair = {pair: rng.randint(100, 400_000) for pair in pairs}
    error_us_by_pair = {pair: round_up_error(rng.randint(5, 9000)) for pair in pairs}
    assert 10_000 < len(encode_latencies(Latencies(latency_us_by_pair, error_us_by_pair))) < MAX_TEXT_BYTES * 3 // 4


def test_error_bars_round_up_to_two_significant_figures() -> None:
    assert [round_up_error(us) for us in (0.0, 1.2, 10.4, 101.0, 1999.0)] == [1, 2, 11, 110, 2000]


def test_small_changes_are_written_only_together_with_a_large_one() -> None:
    """A change of more than 3 % is large; together with one, changes of more than 1.5 % are written too."""
    written = Latencies({("a", "b"): 1000, ("b", "a"): 1000, ("a", "c"): 100_000})
    with_small_changes = Latencies({("a", "b"): 1029, ("b", "a"): 985, ("a", "c"): 102_900}, {("a", "b"): 5})
    assert apply_hysteresis(written, with_small_changes) is written
    with_large_change = Latencies({("a", "b"): 1031, ("b", "a"): 990, ("a", "c"): 102_000})
    latency_us_by_pair = apply_hysteresis(written, with_large_change).latency_us_by_pair
    assert latency_us_by_pair == {("a", "b"): 1031, ("b", "a"): 1000, ("a", "c"): 102_000}


def test_a_pair_that_becomes_unreachable_is_written() -> None:
    written = Latencies({("a", "b"): 1000, ("b", "a"): 1000, ("a", "c"): 100_000})
    with_unreachable_pair = Latencies({("a", "b"): 1000, ("b", "a"): 1000}, unreachable_pairs=frozenset({("a", "c")}))
    assert apply_hysteresis(written, with_unreachable_pair) == with_unreachable_pair
