"""Samples and failures that agents and other components write are decoded, and damaged or unusable ones are refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.settings import YEAR_S
from netperf.configmap_size import MAX_CONFIGMAP_BYTES, ConfigMapTooLargeError
from netperf.measurement import PERCENTILES
from netperf.pairs import PlanOptions, ProbeNode, plan_probes
from netperf.results import (
    MAX_LISTED_REFUSALS,
    MAX_NAME_LENGTH,
    ResultKey,
    check_growth,
    decode_results,
    encode_failure,
    encode_samples,
    find_keys_to_remove,
    list_planned_keys,
    parse_key,
    sample_key,
)
from netperf.sample import Failure, NodeLocation, Sample
from netperf.upstream_keys import MAX_KEY_LENGTH, upstream_key
from tests.unit.netperf.builders import WALL_CLOCK_S, drop_removals, encode_sample, locate, make_node_sample, make_plan

LOCATIONS = {name: locate(name) for name in ("a1", "a2", "b1.example", "c1")}
SAMPLE = make_node_sample("a1", "b1.example", 1700, sequence=3)
EXTERNAL = make_node_sample("a1", "b1.example", 1700, prober="external")
NODE_NAMES = st.text(alphabet="abz09-.", min_size=1, max_size=MAX_NAME_LENGTH)
ALL_NODE_NAMES = st.text(alphabet="abz09-.", min_size=1, max_size=253)
NAMES_WITH_DOTS = st.text(alphabet="ab.1-", min_size=1, max_size=30)
LATENCIES_US = st.floats(min_value=0.01, max_value=6e8).map(lambda us: round(us, 2))


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    p50_us, p90_us, p99_us = sorted(draw(st.lists(LATENCIES_US, min_size=3, max_size=3)))
    return make_node_sample(
        draw(st.sampled_from(["a1", "a2"])),
        draw(st.sampled_from(["b1.example", "c1"])),
        p90_us,
        draw(st.integers(0, 2**40)),
        p50_us=p50_us,
        p99_us=p99_us,
        throttled_us=draw(st.none() | LATENCIES_US),
        loss_ratio=draw(st.none() | st.floats(0, 1).map(lambda ratio: round(ratio, 6))),
        taken_at=round(draw(st.floats(0, 4e9)), 3),
        quality_flags=tuple(draw(st.lists(st.sampled_from(["throttled", "loss", "stalled"]), unique=True, max_size=3))),
    )


def encode_failed_stream(sequence: int) -> dict[str, str]:
    """The key of a failed stream from a1 to c1."""
    failure = Failure(origin=LOCATIONS["a1"], destination=LOCATIONS["c1"], reason="timeout", sequence=sequence)
    return drop_removals(encode_failure(failure, "TCP_STREAM"))


def decode_sequences(sample_sequence: int, failure_sequence: int, now_s: float) -> tuple[list[int], list[int]]:
    """The sequences of the decoded samples and failures, from a sample and a failed stream of one pair of nodes."""
    sample = make_node_sample("a1", "c1", 1700, sample_sequence)
    results = decode_results(encode_sample(sample) | encode_failed_stream(failure_sequence), LOCATIONS, now_s=now_s)
    samples, failures = results.samples.values(), results.failures.values()
    return [sample.sequence for sample in samples], [failure.sequence for failure in failures]


@given(samples())
def test_encoded_samples_are_decoded_unchanged(original: Sample) -> None:
    results = decode_results(encode_sample(original), LOCATIONS)
    assert list(results.samples.values()) == [original]
    assert results.refusal_counts == {}


@given(NODE_NAMES, NODE_NAMES)
def test_keys_are_legal_for_all_names_of_nodes_and_are_parsed(origin: str, destination: str) -> None:
    key = str(ResultKey(origin, destination, "TCP_STREAM", is_failure=True))
    assert re.fullmatch(r"[-._a-zA-Z0-9]+", key)
    assert len(key) <= MAX_KEY_LENGTH
    assert parse_key(key) == ResultKey(origin, destination, "TCP_STREAM", is_failure=True)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("netperf.p90.latency.milliseconds.origin.a1.destination.ghost", "unknown-node"),
        ("netperf.p90.latency.milliseconds.origin.a1.to.c1", "bad-key"),
        ("x" * 254, "illegal-key"),
        ("netaware.v1.a1_c1_TCP_RR.failed", "bad-json"),
        ("netaware.v1.a1_c1_PING", "bad-key"),
        ("netaware.v1.a1.c1", "bad-key"),
        ("with space", "illegal-key"),
    ],
)
def test_invalid_keys_are_refused_with_a_reason(key: str, reason: str) -> None:
    results = decode_results({key: "{" if key.startswith("netaware") else "5"}, LOCATIONS)
    assert [r.reason for r in results.refusals] == [reason]
    assert len(results.refusals[0].key) <= 80


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda value: value[:-5], "bad-json"),
        (lambda value: value.replace('"p90_us":1700', '"p90_us":0'), "bad-field"),
        (lambda value: value.replace('"p90_us":1700', '"p90_us":"12ms"'), "bad-field"),
        (lambda value: value.replace('"p90_us":1700', '"p90_us":100'), "bad-field"),
        (lambda value: value.replace('"TCP_RR"', '"PING"'), "bad-field"),
        (lambda value: value.replace('"TCP_RR"', '"UDP_RR"'), "wrong-key"),
        (lambda value: value.replace('"a1"', '"a2"'), "wrong-key"),
        (lambda value: value.replace('"node":"a1"', '"node":"a2","node":"a1"'), "not-canonical"),
        (lambda value: value.replace('"a1"', '"\\u00611"'), "not-canonical"),
        (lambda value: value[:-1] + ', "x": 1}', "not-canonical"),
        (lambda value: value[:-1] + f',"x":"{"x" * 2048}"}}', "too-large"),
        (lambda _: "null", "bad-field"),
    ],
)
def test_a_damaged_sample_is_refused_with_a_reason(damage: Callable[[str], str], reason: str) -> None:
    ((key, value),) = encode_sample(SAMPLE).items()
    damaged = damage(value)
    assert damaged != value
    results = decode_results({key: damaged}, LOCATIONS)
    assert results.samples == {}
    assert results.refusal_counts == {reason: 1}


@pytest.mark.parametrize(
    ("sample", "locations", "reason"),
    [
        pytest.param(make_node_sample("a1", "b1.example", None), LOCATIONS, "no-value", id="no percentile"),
        pytest.param(SAMPLE, {"a1": LOCATIONS["a1"]}, "unknown-node", id="deleted node"),
        pytest.param(SAMPLE, {**LOCATIONS, "a1": NodeLocation("a1", "new-zone")}, "moved-node", id="moved node"),
        # External samples have no time and never age, so ours cannot be external.
        pytest.param(EXTERNAL, LOCATIONS, "bad-field", id="external prober"),
        pytest.param(
            make_node_sample("a1", "c1", 1700, datagrams=EXTERNAL.measurement, cost_source="datagrams"),
            LOCATIONS,
            "bad-field",
            id="external datagrams",
        ),
    ],
)
def test_an_unusable_sample_is_refused(sample: Sample, locations: dict[str, NodeLocation], reason: str) -> None:
    results = decode_results(encode_sample(sample), locations)
    assert results.samples == {}
    assert results.refusal_counts == {reason: 1}


def test_a_valid_key_is_decoded_among_a_mebibyte_of_foreign_and_invalid_keys() -> None:
    foreign = {f"foreign-{i}": "x" * 1000 for i in range(900)}
    invalid = {f"netaware.v1.a{i}_c1_TCP_RR": "{" for i in range(500)}
    results = decode_results({**foreign, **invalid, **encode_sample(SAMPLE)}, LOCATIONS)
    assert len(results.samples) == 1
    assert results.refusal_counts == {"bad-json": 500}
    assert len(results.refusals) == MAX_LISTED_REFUSALS


@pytest.mark.parametrize(("failure_sequence", "is_newest"), [(2, False), (3, True), (4, True)])
def test_a_newer_success_of_any_test_replaces_a_failure(failure_sequence: int, is_newest: bool) -> None:
    data = encode_failed_stream(failure_sequence) | encode_sample(make_node_sample("a1", "c1", 1700, sequence=3))
    results = decode_results(data, LOCATIONS)
    assert len(results.samples) == 1
    assert bool(results.failures) == is_newest


@pytest.mark.parametrize("implausible", [2**53 - 1, 2**62, int(1.8e9) + 12 * YEAR_S])
def test_an_implausible_sequence_is_read_as_0_and_replaces_nothing(implausible: int) -> None:
    assert decode_sequences(implausible, 1, now_s=1.8e9) == ([0], [1])
    assert decode_sequences(3, implausible, now_s=1.8e9) == ([3], [])
    assert decode_sequences(implausible + 1, implausible, now_s=1.8e9) == ([0], [0])
    plausible = int(1.8e9) + 10 * YEAR_S
    assert decode_sequences(plausible + 1, plausible, now_s=1.8e9) == ([plausible + 1], [])


def test_keys_of_unplanned_pairs_are_removed_and_keys_of_other_components_stay() -> None:
    planned_locations = [location for name, location in LOCATIONS.items() if name != "a2"]
    nodes = [ProbeNode(name=at.node, address=f"10.0.0.{i}", zone=at.zone) for i, at in enumerate(planned_locations)]
    planned_keys = list_planned_keys(plan_probes(nodes, PlanOptions(), {}, WALL_CLOCK_S).plan_by_zone.values())
    planned, unplanned = (
        encode_sample(make_node_sample(origin, "b1.example", 1700), upstream=("p90",)) for origin in ("a1", "a2")
    )
    foreign = {"netperf.p90.latency.milliseconds.origin.c1.destination.a2": "5", "foreign-key": "x"}
    data = {**planned, **unplanned, **foreign, "netaware.v1.broken": "{"}
    assert find_keys_to_remove(data, planned_keys) == {*unplanned, "netaware.v1.broken"}
    (key,) = encode_sample(SAMPLE)
    assert find_keys_to_remove({**data, key: "{half"}, planned_keys) >= {key}, "refused values are removed too"


def test_keys_of_an_unplanned_test_are_removed() -> None:
    with_streams = list_planned_keys(make_plan([1, 1], extra_tests=("TCP_STREAM",)).plan_by_zone.values())
    without_streams = list_planned_keys(make_plan([1, 1]).plan_by_zone.values())
    streams = {key for key in with_streams if "TCP_STREAM" in key}
    assert len(streams) == 2
    upstream_keys = [str(upstream_key(key.origin, key.destination, "p90")) for key in map(parse_key, streams) if key]
    assert find_keys_to_remove(dict.fromkeys([*streams, *upstream_keys], "{}"), without_streams) == streams


def test_an_object_that_is_nearly_full_takes_changes_and_removals_but_no_new_keys() -> None:
    full = {"foreign-key": "x" * (MAX_CONFIGMAP_BYTES - 10), "our-key": "12345"}
    with pytest.raises(ConfigMapTooLargeError, match="netperf-metrics"):
        check_growth("netperf-metrics", full, {"new-key": "1234567"})
    check_growth("netperf-metrics", full, {"our-key": "123456789"})
    check_growth("netperf-metrics", full, {"new-key": "1234567", "foreign-key": None})


@given(ALL_NODE_NAMES, ALL_NODE_NAMES)
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
    data = encode_sample(make_node_sample("a1", "b1.example", 1700, p50_us=3, p99_us=2400), upstream=PERCENTILES)
    key = "netperf.{}.latency.milliseconds.origin.a1.destination.b1.example"
    assert [data[key.format(percentile)] for percentile in PERCENTILES] == ["1", "2", "2"], "at least 1"
    assert [sample.measurement.prober for sample in decode_results(data, LOCATIONS).samples.values()] == ["netperf"]


def test_keys_of_flagged_samples_are_not_written_and_keys_of_missing_numbers_are_removed() -> None:
    flagged = make_node_sample("a1", "b1.example", 1700, quality_flags=("throttled",))
    assert not any(key.startswith("netperf.") for key in encode_samples([flagged], PERCENTILES))
    patch = encode_samples([make_node_sample("a1", "b1.example", 1700, p90_us=None)], PERCENTILES)
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
def test_unplanned_keys_are_refused_in_measured_zones(origin: str, destination: str, is_refused: bool) -> None:
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
