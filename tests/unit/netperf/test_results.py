"""Encoded results are decoded unchanged, and malformed keys never become numbers."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.settings import YEAR_S
from netperf.configmap_size import MAX_CONFIGMAP_BYTES, ConfigMapTooLargeError
from netperf.measurement import Measurement, Percentile
from netperf.pairs import PlanOptions, ProbeNode, plan_probes
from netperf.results import (
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
from tests.unit.netperf.probe_plans import NOW_S, make_plan

P90: tuple[Percentile, ...] = ("p90",)
LOCATIONS = {name: NodeLocation(name, f"z-{name[0]}", "r") for name in ("a1", "a2", "b1.example.com", "c1")}


def make_sample(origin: str = "a1", destination: str = "b1.example.com", **fields: object) -> Sample:
    measurement = Measurement(
        prober="netperf", test="TCP_RR", p50_us=500, p90_us=1700, p99_us=2600, transactions=500, duration_s=1.0
    )
    return Sample(
        origin=LOCATIONS[origin],
        destination=LOCATIONS[destination],
        measurement=msgspec.structs.replace(measurement, **fields),
        sequence=3,
        taken_at=1.7e9,
    )


def encode_present(*samples: Sample, upstream: tuple[Percentile, ...] = ()) -> dict[str, str]:
    """The keys of these samples, without keys to remove."""
    return {key: value for key, value in encode_samples(samples, upstream).items() if value is not None}


def encode_failed_stream(sequence: int) -> dict[str, str]:
    origin, destination = LOCATIONS["a1"], LOCATIONS["c1"]
    failure = Failure(origin=origin, destination=destination, reason="timeout", sequence=sequence)
    return {key: value for key, value in encode_failure(failure, "TCP_STREAM").items() if value is not None}


LATENCIES_US = st.floats(min_value=0.01, max_value=6e8).map(lambda us: round(us, 2))
SAMPLES = st.builds(
    Sample,
    origin=st.sampled_from([LOCATIONS["a1"], LOCATIONS["a2"]]),
    destination=st.sampled_from([LOCATIONS["b1.example.com"], LOCATIONS["c1"]]),
    sequence=st.integers(0, 2**40),
    taken_at=st.floats(0, 4e9).map(lambda s: round(s, 3)),
    quality_flags=st.lists(st.sampled_from(["throttled", "loss", "stalled"]), unique=True, max_size=3).map(tuple),
    measurement=st.builds(
        lambda p, rest: Measurement(
            prober="netperf", test="TCP_RR", p50_us=sorted(p)[0], p90_us=sorted(p)[1], p99_us=sorted(p)[2], **rest
        ),
        st.lists(LATENCIES_US, min_size=3, max_size=3),
        st.fixed_dictionaries(
            {},
            optional={
                "min_us": LATENCIES_US,
                "transactions": st.integers(0, 10**9),
                "loss_ratio": st.floats(0, 1).map(lambda r: round(r, 6)),
                "throttled_us": LATENCIES_US,
                "retransmits": st.integers(0, 10**6),
            },
        ),
    ),
)


@given(SAMPLES)
def test_encoded_samples_are_decoded_unchanged(original: Sample) -> None:
    results = decode_results(encode_present(original), LOCATIONS)
    assert list(results.samples.values()) == [original]
    assert results.refusal_counts == {}


NODE_NAMES = st.text(alphabet="abz09-.", min_size=1, max_size=253)


@given(NODE_NAMES, NODE_NAMES)
def test_keys_are_legal_for_all_names_of_nodes_and_zones(n1: str, n2: str) -> None:
    key = str(ResultKey(n1[:MAX_NAME_LENGTH], n2[:MAX_NAME_LENGTH], "TCP_STREAM", is_failure=True))
    assert re.fullmatch(r"[-._a-zA-Z0-9]+", key)
    assert len(key) <= MAX_KEY_LENGTH
    assert parse_key(key) == (n1[:MAX_NAME_LENGTH], n2[:MAX_NAME_LENGTH], "TCP_STREAM", True)
    key_for_upstream = upstream_key(n1, n2, "p90")
    assert key_for_upstream is None or len(key_for_upstream) <= MAX_KEY_LENGTH


@given(st.text(alphabet="ab.1-", min_size=1, max_size=30), st.text(alphabet="ab.1-", min_size=1, max_size=30))
def test_upstreams_keys_of_names_with_dots_are_decoded(one: str, other: str) -> None:
    if one == other:
        return
    locations = {one: NodeLocation(one, "z1"), other: NodeLocation(other, "z2")}
    key = upstream_key(one, other, "p90")
    assert key is not None
    (sample,) = decode_results({key: "7"}, locations).samples.values()
    assert (sample.origin.node, sample.destination.node) == (one, other)
    assert sample.measurement.p90_us == 7000


def test_both_spellings_of_upstream_are_decoded_and_microseconds_have_precedence() -> None:
    data = {
        "netperf.p90.latency.milliseconds.origin.a1.destination.b1.example.com": "7",
        "netperf_p90_latency_microseconds.origin.a1.destination.b1.example.com": "6543",
        "netperf.p50.latency.milliseconds.origin.a1.destination.b1.example.com": "5",
        "netperf.p99.latency.milliseconds.origin.a1.destination.b1.example.com": "8.1041999999999996",
    }
    for items in (list(data.items()), list(data.items())[::-1]):
        (sample,) = decode_results(dict(items), LOCATIONS).samples.values()
        assert sample.measurement.prober == "external"
        assert (sample.measurement.p50_us, sample.measurement.p90_us) == (5000, 6543)
        assert sample.measurement.p99_us == pytest.approx(8104.2)


def test_upstreams_format_has_milliseconds_and_no_flagged_or_missing_numbers() -> None:
    key = "netperf.{}.latency.milliseconds.origin.a1.destination.b1.example.com"
    data = encode_present(make_sample(p50_us=3, p90_us=1700, p99_us=2400), upstream=("p50", "p90", "p99"))
    assert [data[key.format(p)] for p in ("p50", "p90", "p99")] == ["1", "2", "2"]
    assert [sample.measurement.prober for sample in decode_results(data, LOCATIONS).samples.values()] == ["netperf"]
    flagged = msgspec.structs.replace(make_sample(), quality_flags=("throttled",))
    assert all(not key.startswith("netperf.") for key in encode_samples([flagged], P90))
    assert encode_samples([make_sample(p90_us=None)], P90)[key.format("p90")] is None


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
def test_unplanned_keys_in_upstreams_format_are_refused_in_zones_that_agents_measure(
    origin: str, destination: str, is_refused: bool
) -> None:
    locations = LOCATIONS | {name: NodeLocation(name, f"z-{name[0]}", "r") for name in ("d1", "e1")}
    key = upstream_key(origin, destination, "p90")
    assert key is not None
    planned_keys = {sample_key(locations["a1"], locations["c1"], "TCP_RR")}
    results = decode_results({key: "7"}, locations, planned_keys)
    assert len(results.samples) == (not is_refused)
    assert [(r.reason, r.writer) for r in results.refusals] == ([("unplanned", origin)] if is_refused else [])
    assert len(decode_results({key: "7"}, locations, []).samples) == 1
    assert len(decode_results({key: "7"}, locations).samples) == 1


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


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("netperf.p90.latency.milliseconds.origin.a1.destination.ghost", "unknown-node"),
        ("netperf.p90.latency.milliseconds.origin.a1.to.c1", "bad-key"),
        ("x" * 254, "illegal-key"),
        ("netaware.v1.a1_c1_TCP_RR", "bad-json"),
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


def test_ambiguous_keys_are_refused() -> None:
    names = ("a", "b.destination.c", "a.destination.b", "c")
    locations = {name: NodeLocation(name, f"z{i}") for i, name in enumerate(names)}
    key = "netperf.p90.latency.milliseconds.origin.a.destination.b.destination.c"
    assert decode_results({key: "5"}, locations).refusal_counts == {"ambiguous-key": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[:-5], "bad-json"),
        (lambda text: text.replace('"p90_us":1700', '"p90_us":0'), "bad-field"),
        (lambda text: text.replace('"p90_us":1700', '"p90_us":"12ms"'), "bad-field"),
        (lambda text: text.replace('"p90_us":1700', '"p90_us":100'), "bad-field"),
        (lambda text: text.replace('"TCP_RR"', '"PING"'), "bad-field"),
        (lambda text: text.replace('"TCP_RR"', '"UDP_RR"'), "wrong-key"),
        (lambda text: text.replace('"a1"', '"a2"'), "wrong-key"),
        (lambda text: text.replace('"node":"a1"', '"node":"a2","node":"a1"'), "not-canonical"),
        (lambda text: text.replace('"a1"', '"\\u00611"'), "not-canonical"),
        (lambda text: text[:-1] + ', "x": 1}', "not-canonical"),
        (lambda text: text[:-1] + f',"x":"{"x" * 2048}"}}', "too-large"),
        (lambda _: "null", "bad-field"),
        (lambda _: "", "bad-json"),
    ],
)
def test_a_damaged_sample_is_refused_with_a_reason(change: object, reason: str) -> None:
    ((key, text),) = encode_present(make_sample()).items()
    assert callable(change)
    damaged = change(text)
    assert damaged != text
    results = decode_results({key: damaged}, LOCATIONS)
    assert results.samples == {}
    assert results.refusal_counts == {reason: 1}


@pytest.mark.parametrize(
    ("refused_sample", "locations", "reason"),
    [
        (make_sample(p50_us=None, p90_us=None, p99_us=None), LOCATIONS, "no-value"),
        (make_sample(), {"a1": LOCATIONS["a1"]}, "unknown-node"),
        (make_sample(), {**LOCATIONS, "a1": NodeLocation("a1", "z-new", "r")}, "moved-node"),
    ],
)
def test_a_sample_without_a_number_or_of_a_deleted_or_moved_node_is_refused(
    refused_sample: Sample, locations: dict[str, NodeLocation], reason: str
) -> None:
    assert decode_results(encode_present(refused_sample), locations).refusal_counts == {reason: 1}


def test_a_mebibyte_of_invalid_keys_is_counted_and_a_valid_key_is_decoded() -> None:
    noise = {f"noise-{i}": "x" * 1000 for i in range(900)} | {f"netaware.v1.a{i}_c1_TCP_RR": "{" for i in range(500)}
    results = decode_results({**noise, **encode_present(make_sample())}, LOCATIONS)
    assert len(results.samples) == 1
    assert results.refusal_counts == {"bad-json": 500}
    assert len(results.refusals) == 100


def test_keys_of_unplanned_pairs_are_removed_and_keys_of_other_components_stay() -> None:
    others = [location for location in LOCATIONS.values() if location.node != "a2"]
    nodes = [ProbeNode(name=at.node, address=f"10.0.0.{i}", zone=at.zone) for i, at in enumerate(others)]
    plans = plan_probes(nodes, PlanOptions(), {}, NOW_S).plan_by_zone.values()
    unplanned = make_sample(origin="a2")
    foreign = "netperf.p90.latency.milliseconds.origin.c1.destination.a2"
    data = {
        **encode_present(make_sample(), unplanned, upstream=("p90",)),
        foreign: "5",
        "theirs": "x",
        "netaware.v1.broken": "{",
    }
    planned = list_planned_keys(plans)
    assert find_keys_to_remove(data, planned) == {*encode_present(unplanned, upstream=("p90",)), "netaware.v1.broken"}
    (key,) = encode_present(make_sample())
    assert find_keys_to_remove({**data, key: "{half"}, planned) >= {key}, "refused values are removed too"


def test_keys_of_an_unplanned_test_are_removed() -> None:
    with_streams = list_planned_keys(make_plan([1, 1], extra_tests=("TCP_STREAM",)).plan_by_zone.values())
    without = list_planned_keys(make_plan([1, 1]).plan_by_zone.values())
    streams = {key for key in with_streams if "TCP_STREAM" in key}
    assert len(streams) == 2
    assert find_keys_to_remove(dict.fromkeys(streams, "{}"), without) == streams


def test_an_object_that_is_nearly_full_takes_changes_and_removals_but_no_new_keys() -> None:
    full = {"theirs": "x" * (MAX_CONFIGMAP_BYTES - 10), "ours": "12345"}
    with pytest.raises(ConfigMapTooLargeError, match="netperf-metrics"):
        check_growth("netperf-metrics", full, {"new": "1234567"})
    check_growth("netperf-metrics", full, {"ours": "123456789"})
    check_growth("netperf-metrics", full, {"new": "1234567", "theirs": None})


@pytest.mark.parametrize(("failure_sequence", "is_newest"), [(2, False), (3, True), (4, True)])
def test_a_newer_success_of_any_test_replaces_a_failure(failure_sequence: int, is_newest: bool) -> None:
    """The next run of an extra test that failed is ten rounds later."""
    data = encode_failed_stream(failure_sequence) | encode_present(make_sample("a1", "c1"))
    results = decode_results(data, LOCATIONS)
    assert len(results.samples) == 1
    assert bool(results.failures) == is_newest


@pytest.mark.parametrize("implausible", [2**53 - 1, 2**62, int(1.8e9) + 12 * YEAR_S])
def test_an_implausible_sequence_replaces_nothing(implausible: int) -> None:
    def read(sample_sequence: int, failure_sequence: int) -> tuple[list[int], list[int]]:
        data = encode_present(msgspec.structs.replace(make_sample("a1", "c1"), sequence=sample_sequence))
        results = decode_results(data | encode_failed_stream(failure_sequence), LOCATIONS, now_s=1.8e9)
        return [s.sequence for s in results.samples.values()], [f.sequence for f in results.failures.values()]

    assert read(implausible, 1) == ([0], [1])
    assert read(3, implausible) == ([3], [])
    assert read(implausible + 1, implausible) == ([0], [0])
    ahead = int(1.8e9) + 10 * YEAR_S
    assert read(ahead + 1, ahead) == ([ahead + 1], [])


def test_our_keys_cannot_have_the_external_prober() -> None:
    """External samples have no time and never age."""
    one, other = make_sample(prober="external"), make_sample("a2", prober="external", test="UDP_RR")
    with_external_datagrams = msgspec.structs.replace(
        make_sample("a1", "c1"), datagrams=one.measurement, cost_source="datagrams"
    )
    results = decode_results(encode_present(one, other, with_external_datagrams), LOCATIONS)
    assert results.samples == {}
    assert results.refusal_counts == {"bad-field": 3}
