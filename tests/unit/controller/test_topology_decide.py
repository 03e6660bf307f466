"""From samples to the weight and the status of a NetworkTopology: other weights stay, and nothing is written without a change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from controller.cluster.crds import NETPERF_COSTS, NetworkTopology, NetworkTopologyStatus
from controller.cluster.zones import ZoneMap
from controller.topology import status
from controller.topology.decision import TopologyDecision, TopologySnapshot, decide_topology
from controller.topology.metrics import TopologyMetrics
from controller.topology.weights import build_topology_patch, build_weight
from kubekit.wire import Condition
from netperf.cost_state import CostState
from netperf.costs import ZoneCosts
from netperf.latencies import ZonePair
from netperf.policy import CostPolicy
from netperf.results import encode_failure, encode_samples
from netperf.sample import Failure
from tests.support.bodies import make_weight_body
from tests.unit.netperf.builders import WALL_CLOCK_S, drop_removals, locate, make_zone_sample

ZONE_MAP = ZoneMap({"a": "r1", "b": "r1", "c": "r2"}, {name: locate(name) for name in ("a1", "b1", "c1")})
"""A node in each of three zones."""
PAIRS = [("a", "b"), ("a", "c"), ("b", "c")]
LATENCY_MS = {("a", "b"): 4.5, ("a", "c"): 20.0, ("b", "c"): 22.0}
POLICY = CostPolicy()
USER_WEIGHT = make_weight_body({("a", "c"): {"networkCost": 9, "bandwidthCapacity": "10Gi"}})
OLD_WEIGHT = {"name": NETPERF_COSTS, "topologyList": []}
UNZONED = ZoneMap({"a": "r1"}, {"x": ZONE_MAP.location_by_node["a1"]}, unzoned_nodes=("x",))
ONE_ZONE = ZoneMap({"a": "r1"}, {"a1": ZONE_MAP.location_by_node["a1"]})


def make_results(latency_ms: Mapping[ZonePair, float]) -> dict[str, str]:
    """The results ConfigMap's data with a sample of each pair."""
    return drop_removals(
        encode_samples(make_zone_sample("".join(zones), 1000 * ms) for zones, ms in latency_ms.items())
    )


def make_failures(*pairs: ZonePair) -> dict[str, str]:
    """The results ConfigMap's data with failures in a row of each pair."""
    data: dict[str, str | None] = {}
    for pair in pairs:
        origin, destination = (locate(f"{zone}1") for zone in pair)
        failure = Failure(
            origin=origin, destination=destination, reason="timeout", failures_in_a_row=9, taken_at=WALL_CLOCK_S
        )
        data |= encode_failure(failure, "TCP_RR")
    return drop_removals(data)


def make_own_topology(*weights: dict[str, Any], **spec: Any) -> NetworkTopology:
    body = {
        "metadata": {"name": "nt", "namespace": "shop", "resourceVersion": "7", "generation": 3},
        "spec": {"configmapName": "netperf-metrics", "weights": weights, **spec},
    }
    return msgspec.json.decode(json.dumps(body), type=NetworkTopology)


def decide(
    network_topology: NetworkTopology,
    data: Mapping[str, str],
    *,
    at_s: float = WALL_CLOCK_S,
    state: CostState | None = None,
    zone_map: ZoneMap = ZONE_MAP,
    allocated: Mapping[ZonePair, int] = {},
) -> TopologyDecision:
    snapshot = TopologySnapshot(
        topology=network_topology,
        zone_map=zone_map,
        data_by_configmap={"shop/netperf-metrics": data},
        allocated_bps=allocated,
        interval_s=60.0,
    )
    return decide_topology(snapshot, state, POLICY, now_s=at_s, wall_s=at_s)


def read_conditions(decision: TopologyDecision, generation: int = 1) -> dict[str, Condition]:
    """The conditions by type."""
    conditions = status.build_conditions(decision.pairs_by_basis, decision.costs, decision.faults, generation)
    return {condition.type: condition for condition in conditions}


def build_status(before: NetworkTopologyStatus, **fields: Any) -> NetworkTopologyStatus:
    """The status after ``before`` with the conditions of complete results, by default without a change."""
    conditions = list(read_conditions(decide(make_own_topology(), make_results(LATENCY_MS)), 3).values())
    defaults = {"has_written_weight": False, "now": 5000.0, "node_count": 3, "generation": 3}
    return status.build_status(before, conditions, **{**defaults, **fields})


def apply_patch(network_topology: NetworkTopology, decision: TopologyDecision) -> NetworkTopology | None:
    """The NetworkTopology after the patch, applied as by the API server; None without a patch."""
    operations = build_topology_patch(
        network_topology,
        build_weight(decision.costs, decision.zone_bandwidths, decision.region_bandwidths),
        decision.latencies,
    )
    if operations is None:
        return None
    body = json.loads(msgspec.json.encode(network_topology))
    assert operations[0] == {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}
    for change in operations:
        *parents, last = (part.replace("~1", "/") for part in change["path"].split("/")[1:])
        parent: Any = body
        for part in parents:
            parent = parent[part]
        if change["op"] == "remove":
            del parent[last]
        elif last == "-":
            parent.append(change["value"])
        else:
            parent[int(last) if isinstance(parent, list) else last] = change["value"]
    return msgspec.json.decode(json.dumps(body), type=NetworkTopology)


ONE_REACHABLE_PAIR = make_failures(*PAIRS[1:]) | make_results({PAIRS[0]: 5.0})
RESULTS_OF_FAILING_NETPERF = {
    key: sample[:-1] + ',"run_failure":"reset","failed_runs":3}' for key, sample in make_results(LATENCY_MS).items()
}


@given(
    st.dictionaries(st.sampled_from(PAIRS), st.floats(0.05, 500), max_size=3),
    st.dictionaries(st.sampled_from(PAIRS), st.integers(0, 10**10), max_size=2),
    st.sampled_from([None, [], [USER_WEIGHT], [OLD_WEIGHT, USER_WEIGHT]]),
)
def test_measurements_write_a_weight_beside_the_users_and_the_same_measurements_write_nothing_again(
    latency_ms: dict[ZonePair, float], allocated: dict[ZonePair, int], weights: list[dict[str, Any]] | None
) -> None:
    network_topology, data = make_own_topology(weights=weights), make_results(latency_ms)
    decision = decide(network_topology, data, allocated=allocated)
    patched = apply_patch(network_topology, decision)
    is_written = bool(latency_ms) or OLD_WEIGHT in (weights or ())
    assert (patched is not None) == is_written
    after = patched or network_topology
    assert after.weight("UserDefined") == network_topology.weight("UserDefined")
    assert [weight.name for weight in after.spec.weights or ()].count(NETPERF_COSTS) == is_written
    # Going on, after a restart of all replicas, and after a restart that finds no results.
    for state, data_then in ((decision.state, data), (None, data), (None, {})):
        later_decision = decide(after, data_then, at_s=WALL_CLOCK_S + 30, state=state, allocated=allocated)
        assert apply_patch(after, later_decision) is None
        assert data_then != data or read_conditions(decision) == read_conditions(later_decision)


def test_the_policy_of_the_object_overrides_the_defaults_field_by_field() -> None:
    policy = decide(make_own_topology(costPolicy={"unitUs": 100, "percentile": "p50"}), {}).policy
    assert policy == msgspec.structs.replace(POLICY, unit_us=100, percentile="p50")


@pytest.mark.parametrize("invalid_policy", [{"unitUs": "x"}, {"units": 1}, {"hysteresis": 7}, [], "fast"])
def test_a_bad_policy_is_reported_and_the_defaults_are_used(invalid_policy: object) -> None:
    decision = decide(make_own_topology(costPolicy=invalid_policy), make_results(LATENCY_MS))
    condition = read_conditions(decision)["InputValid"]
    assert decision.policy == POLICY
    assert (condition.status, condition.reason) == ("False", "BadCostPolicy")
    assert "costPolicy" in condition.message


def test_capacities_and_allocations_are_written_sorted_for_upstreams_search() -> None:
    allocated = {("a", "c"): 5, ("b", "c"): 7}
    decision = decide(make_own_topology(USER_WEIGHT), make_results(LATENCY_MS), allocated=allocated)
    levels = build_weight(decision.costs, decision.zone_bandwidths, decision.region_bandwidths).topology_list
    assert [level.topology_key for level in levels] == [f"topology.kubernetes.io/{name}" for name in ("region", "zone")]
    for level in levels:
        origins = [origin.origin for origin in level.origin_list]
        assert origins == sorted(origins, key=str.encode)
    entries = {
        (level.topology_key.rpartition("/")[2], origin.origin, entry.destination): entry
        for level in levels
        for origin in level.origin_list
        for entry in origin.cost_list
    }
    assert entries["zone", "a", "c"].bandwidth_capacity == "10Gi"
    allocations = {key: entry.bandwidth_allocated for key, entry in entries.items() if entry.bandwidth_allocated}
    assert allocations == {("zone", "a", "c"): "5", ("zone", "b", "c"): "7", ("region", "r1", "r2"): "12"}


def test_the_calculation_time_changes_with_the_weights_and_a_node_count_is_written_once_a_minute() -> None:
    empty = NetworkTopologyStatus(node_count=3)
    written = build_status(empty, has_written_weight=True, now=1000.0)
    assert written.weight_calculation_time == "1970-01-01T00:16:40Z", "1000 s"
    assert build_status(written) == written
    assert build_status(written, has_written_weight=True).weight_calculation_time == "1970-01-01T01:23:20Z", "5000 s"
    assert status.needs_write(empty, written, since_last_write_s=5.0)
    statuses = build_status(written), build_status(written, node_count=4), build_status(written, generation=8)
    for since_s, needs_write in ((5.0, [False, False, True]), (60.0, [False, True, True])):
        assert [status.needs_write(written, new, since_last_write_s=since_s) for new in statuses] == needs_write


@pytest.mark.parametrize(
    # Expected are status, reason and a part of the message.
    ("zone_map", "data", "type_", "expected"),
    [
        (ONE_ZONE, {}, "Measured", ("True", "NoPairs", "no pair of zones")),
        (ZONE_MAP, make_results(LATENCY_MS), "Measured", ("True", "AllPairsMeasured", "6 of 6 zone pairs measured")),
        (ZONE_MAP, make_results({PAIRS[0]: 5.0, PAIRS[2]: 7.0}), "Measured", ("False", "PairsInferred", "a to c")),
        (ZONE_MAP, RESULTS_OF_FAILING_NETPERF, "OutlierNodes", ("True", "NetperfFails", "netperf fails (reset)")),
        (ZONE_MAP, make_failures(*PAIRS), "Measured", ("False", "NoPairReachable", "none of 6 zone pairs")),
        (
            ZONE_MAP,
            ONE_REACHABLE_PAIR,
            "Measured",
            ("True", "ReachablePairsMeasured", "4 unreachable; highest costs: a"),
        ),
        (UNZONED, {}, "InputValid", ("False", "NodesWithoutZone", "without a zone label: x")),
    ],
)
def test_conditions_report_the_basis_of_costs(
    zone_map: ZoneMap, data: dict[str, str], type_: str, expected: tuple[str, str, str]
) -> None:
    by_type = read_conditions(decide(make_own_topology(), data, zone_map=zone_map))
    expected_status, reason, message = expected
    assert (by_type[type_].status, by_type[type_].reason) == (expected_status, reason)
    assert message in by_type[type_].message
    is_good_if_true = type_ not in {"OutlierNodes", "Unreachable"}
    assert status.is_bad(by_type[type_]) == (is_good_if_true != (expected_status == "True"))


def test_results_of_another_program_give_costs_in_both_spellings() -> None:
    data = {
        "netperf.p90.latency.milliseconds.origin.a1.destination.b1": "33",
        "netperf_p90_latency_microseconds.origin.a1.destination.c1": "31500",
    }
    costs = decide(make_own_topology(), data).costs.by_zone_pair
    assert (costs["a", "b"].cost, costs["a", "c"].cost) == (33, 32)


def test_an_unreachable_pair_has_no_age_of_a_measurement() -> None:
    metrics = TopologyMetrics(CollectorRegistry())
    metrics.decisions = {"shop/nt": decide(make_own_topology(), ONE_REACHABLE_PAIR)}
    (ages,) = (metric for metric in metrics.collect() if metric.name == "netaware_zone_measurement_age_seconds")
    assert sorted(sample.labels["origin"] for sample in ages.samples) == ["a", "b"]


def test_a_persistent_outlier_does_not_rewrite_the_status() -> None:
    def build_messages(offset_us: float) -> list[str]:
        table = ZoneCosts(
            by_zone_pair={}, cost_by_region_pair={}, absent_pairs=(), error_us_by_outlier={"n2": offset_us}
        )
        counts = status.group_pairs_by_basis(table, POLICY, 60.0)
        return [condition.message for condition in status.build_conditions(counts, table, status.InputFaults(), 1)]

    assert build_messages(8049.0) == build_messages(8051.0) == build_messages(9800.0) != build_messages(-8049.0)
    assert any("n2 (measures higher latencies)" in message for message in build_messages(8049.0))


def test_a_warning_decides_the_reason_before_an_outlier() -> None:
    table = ZoneCosts(by_zone_pair={}, cost_by_region_pair={}, absent_pairs=(), error_us_by_outlier={"n2": 900.0})
    faults = status.InputFaults(netperf_failures={PAIRS[0]: "reset"})
    conditions = status.build_conditions(status.group_pairs_by_basis(table, POLICY, 60.0), table, faults, 1)
    assert "NetperfFails" in {condition.reason for condition in conditions}
