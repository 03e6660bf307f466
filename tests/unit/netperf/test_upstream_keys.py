"""Latencies of other components, in the format that upstream's scheduler plugins read, are decoded and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netperf.measurement import Percentile
from netperf.results import decode_results, encode_samples, sample_key
from netperf.sample import NodeLocation
from netperf.upstream_keys import MAX_KEY_LENGTH, upstream_key
from tests.unit.netperf.zone_samples import encode_sample, locate, make_node_sample

LOCATIONS = {name: locate(name) for name in ("a1", "a2", "b1.example", "c1")}
P90: tuple[Percentile, ...] = ("p90",)
NAMES_WITH_DOTS = st.text(alphabet="ab.1-", min_size=1, max_size=30)
NODE_NAMES = st.text(alphabet="abz09-.", min_size=1, max_size=253)


@given(NODE_NAMES, NODE_NAMES)
def test_keys_of_all_names_of_nodes_have_a_legal_length_or_are_left_out(origin: str, destination: str) -> None:
    key = upstream_key(origin, destination, "p90")
    assert key is None or len(key) <= MAX_KEY_LENGTH


@given(st.lists(NAMES_WITH_DOTS, min_size=2, max_size=2, unique=True))
def test_keys_of_names_with_dots_are_decoded(names: list[str]) -> None:
    origin, destination = names
    key = upstream_key(origin, destination, "p90")
    assert key is not None
    locations = {origin: NodeLocation(origin, "z1"), destination: NodeLocation(destination, "z2")}
    (sample,) = decode_results({key: "7"}, locations).samples.values()
    assert (sample.origin.node, sample.destination.node) == (origin, destination)
    assert sample.measurement.p90_us == 7000


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "in reverse order"])
def test_both_spellings_are_decoded_and_microseconds_have_precedence(order: int) -> None:
    value_by_key = {
        "netperf.p90.latency.milliseconds.origin.a1.destination.b1.example": "7",
        "netperf_p90_latency_microseconds.origin.a1.destination.b1.example": "6543",
        "netperf.p50.latency.milliseconds.origin.a1.destination.b1.example": "5",
        "netperf.p99.latency.milliseconds.origin.a1.destination.b1.example": "8.1041999999999996",
    }
    (sample,) = decode_results(dict(list(value_by_key.items())[::order]), LOCATIONS).samples.values()
    assert sample.measurement.prober == "external"
    assert sample.measurement.p50_us == 5000
    assert sample.measurement.p90_us == 6543
    assert sample.measurement.p99_us == pytest.approx(8104.2)


def test_written_keys_have_milliseconds_and_our_sample_has_precedence() -> None:
    data = encode_sample(
        make_node_sample("a1", "b1.example", 1700, p50_us=3, p99_us=2400), upstream=("p50", "p90", "p99")
    )
    key = "netperf.{}.latency.milliseconds.origin.a1.destination.b1.example"
    assert [data[key.format(percentile)] for percentile in ("p50", "p90", "p99")] == ["1", "2", "2"], "at least 1"
    assert [sample.measurement.prober for sample in decode_results(data, LOCATIONS).samples.values()] == ["netperf"]


def test_keys_of_flagged_samples_are_not_written_and_keys_of_missing_numbers_are_removed() -> None:
    flagged = make_node_sample("a1", "b1.example", 1700, quality_flags=("throttled",))
    assert not any(key.startswith("netperf.") for key in encode_samples([flagged], P90))
    patch = encode_samples([make_node_sample("a1", "b1.example", 1700, p90_us=None)], P90)
    assert patch["netperf.p90.latency.milliseconds.origin.a1.destination.b1.example"] is None


@pytest.mark.parametrize(
    ("origin", "destination", "is_refused"),
    [
        pytest.param("a1", "c1", False, id="planned"),
        pytest.param("c1", "a1", True, id="reverse direction"),
        pytest.param("a2", "c1", True, id="another node of the zone"),
        pytest.param("a1", "d1", True, id="unplanned pair of a measured zone"),
        pytest.param("d1", "e1", False, id="zones without agents"),
    ],
)
def test_unplanned_keys_are_refused_in_zones_that_agents_measure(
    origin: str, destination: str, is_refused: bool
) -> None:
    locations = {name: NodeLocation(name, name[0]) for name in ("a1", "a2", "c1", "d1", "e1")}
    key = upstream_key(origin, destination, "p90")
    assert key is not None
    planned_keys = {sample_key(locations["a1"], locations["c1"], "TCP_RR")}
    results = decode_results({key: "7"}, locations, planned_keys)
    assert len(results.samples) == (not is_refused)
    assert [(r.reason, r.writer) for r in results.refusals] == ([("unplanned", origin)] if is_refused else [])
    for no_planned_keys in (None, set[str]()):
        assert len(decode_results({key: "7"}, locations, no_planned_keys).samples) == 1


@pytest.mark.parametrize(
    "value",
    ["12ms", "-1", "1e9", "nan", "NaN", "inf", "", " ", "0", "0.0", "１２", "1_000", "0x10", "+5", "9" * 12, "9" * 40],
)
@pytest.mark.parametrize("kind", ["netperf.p90.latency.milliseconds", "netperf_p90_latency_microseconds"])
def test_invalid_numbers_are_refused_with_a_reason(kind: str, value: str) -> None:
    key = f"{kind}.origin.a1.destination.c1"
    results = decode_results({key: value}, LOCATIONS)
    assert results.samples == {}
    assert [(r.key, r.reason) for r in results.refusals] == [(key, "bad-value")]
    assert results.refusal_counts == {"bad-value": 1}


def test_ambiguous_keys_are_refused() -> None:
    names = ("a", "b.destination.c", "a.destination.b", "c")
    locations = {name: NodeLocation(name, f"z{i}") for i, name in enumerate(names)}
    key = "netperf.p90.latency.milliseconds.origin.a.destination.b.destination.c"
    assert decode_results({key: "5"}, locations).refusal_counts == {"ambiguous-key": 1}
