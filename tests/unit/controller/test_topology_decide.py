"""From samples to the weight and the status of a NetworkTopology: other weights stay, and nothing is written without a change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.crds import NETPERF_COSTS, NetworkTopology, NetworkTopologyStatus
from controller.cluster.zones import ZoneMap
from controller.topology import status
from controller.topology.decision import TopologyDecision, TopologySnapshot, decide_topology, resolve_policy
from controller.topology.weights import build_weight, plan_topology_patch
from kubekit.wire import Condition
from netperf.cost_state import CostState
from netperf.costs import ZoneCosts
from netperf.latencies import ZonePair
from netperf.measurement import Measurement
from netperf.policy import CostPolicy
from netperf.results import encode_failure, encode_samples
from netperf.sample import Failure, NodeLocation, Sample
from tests.support.bodies import make_weight_body

ZONES = {"z1": "west", "z2": "west", "z3": "east"}
ZONE_MAP = ZoneMap(ZONES, {f"n-{z}": NodeLocation(f"n-{z}", z, r) for z, r in ZONES.items()})
PAIRS = [("z1", "z2"), ("z1", "z3"), ("z2", "z3")]
ALL = {("z1", "z2"): 4.5, ("z1", "z3"): 20.0, ("z2", "z3"): 22.0}
POLICY = CostPolicy()
START_S = 1_000_000.0


def results(latency_ms: Mapping[ZonePair, float], sequence: int = 1) -> dict[str, str]:
    samples = [
        Sample(
            origin=ZONE_MAP.location_by_node[f"n-{a}"],
            destination=ZONE_MAP.location_by_node[f"n-{b}"],
            measurement=Measurement(
                prober="netperf", test="TCP_RR", p50_us=ms * 900, p90_us=ms * 1000, p99_us=ms * 1100, transactions=500
            ),
            sequence=sequence,
            taken_at=START_S,
        )
        for (a, b), ms in latency_ms.items()
    ]
    return {key: value for key, value in encode_samples(samples).items() if value is not None}


def topology(*weights: dict[str, Any], **spec: Any) -> NetworkTopology:
    body = {
        "metadata": {"name": "nt", "namespace": "shop", "resourceVersion": "7", "generation": 3},
        "spec": {"configmapName": "netperf-metrics", "weights": weights, **spec},
    }
    return msgspec.json.decode(json.dumps(body), type=NetworkTopology)


def decide(
    network_topology: NetworkTopology,
    data: Mapping[str, str],
    *,
    at_s: float = START_S,
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


def conditions(decision: TopologyDecision, generation: int = 1) -> dict[str, Condition]:
    """The conditions by type."""
    built = status.build_conditions(decision.pairs_by_basis, decision.costs, decision.faults, generation)
    return {condition.type: condition for condition in built}


def write(network_topology: NetworkTopology, decision: TopologyDecision) -> NetworkTopology | None:
    """The NetworkTopology after the patch, applied as by the API server; None without a patch."""
    operations = plan_topology_patch(
        network_topology,
        build_weight(decision.costs, decision.zone_bandwidths, decision.region_bandwidths),
        decision.latencies,
    )
    if operations is None:
        return None
    plain = json.loads(msgspec.json.encode(network_topology))
    assert operations[0] == {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}
    for change in operations:
        *parents, last = (part.replace("~1", "/") for part in change["path"].split("/")[1:])
        parent: Any = plain
        for part in parents:
            parent = parent[part]
        if change["op"] == "remove":
            del parent[last]
        elif last == "-":
            parent.append(change["value"])
        else:
            parent[int(last) if isinstance(parent, list) else last] = change["value"]
    return msgspec.json.decode(json.dumps(plain), type=NetworkTopology)


USERS = make_weight_body({("z1", "z3"): {"networkCost": 9, "bandwidthCapacity": "10Gi"}})
OURS = {"name": NETPERF_COSTS, "topologyList": []}


@pytest.mark.parametrize("before", [[USERS], [], None, [OURS, USERS], [USERS, {**USERS, "name": "Mine"}]])
def test_other_weights_stay_as_the_user_wrote_them(before: list[dict[str, Any]] | None) -> None:
    network_topology = topology(weights=before)
    after = write(network_topology, decide(network_topology, results(ALL)))
    assert after is not None
    names = [w["name"] for w in before or ()]
    assert [w.name for w in after.spec.weights or ()] == list(dict.fromkeys([*names, NETPERF_COSTS]))
    assert all(after.weight(w.name) == w for w in network_topology.spec.weights or () if w.name != NETPERF_COSTS)


@given(
    st.dictionaries(st.sampled_from(PAIRS), st.floats(0.05, 500), max_size=3),
    st.dictionaries(st.sampled_from(PAIRS), st.integers(0, 10**10), max_size=2),
)
def test_measurements_write_a_weight_and_the_same_measurements_write_nothing_again(
    latency_ms: dict[ZonePair, float], allocated: dict[ZonePair, int]
) -> None:
    network_topology, data = topology(USERS), results(latency_ms)
    first = decide(network_topology, data, allocated=allocated)
    written = write(network_topology, first)
    assert (written is not None) == bool(latency_ms)
    after = written or network_topology
    # Going on, after a restart of all replicas, and after a restart that finds no results.
    for state, read in ((first.state, data), (None, data), (None, {})):
        second = decide(after, read, at_s=START_S + 30, state=state, allocated=allocated)
        assert write(after, second) is None
        assert read != data or conditions(first) == conditions(second)


def test_the_policy_of_the_object_overrides_the_defaults_field_by_field() -> None:
    network_topology = topology(costPolicy={"unitUs": 100, "percentile": "p50"})
    policy, fault = resolve_policy(network_topology, CostPolicy(hysteresis=0.7))
    assert (policy.unit_us, policy.percentile, policy.hysteresis, fault) == (100, "p50", 0.7, "")


@pytest.mark.parametrize("bad", [{"unitUs": "x"}, {"units": 1}, {"hysteresis": 7}, [], "fast"])
def test_a_bad_policy_is_reported_and_the_defaults_are_used(bad: object) -> None:
    decision = decide(topology(costPolicy=bad), results(ALL))
    condition = conditions(decision)["InputValid"]
    assert (decision.policy, condition.status, condition.reason) == (POLICY, "False", "BadCostPolicy")
    assert "costPolicy" in condition.message


@pytest.mark.parametrize(("sequence", "is_reported"), [(2, False), (2**53 - 1, True)])
def test_an_invalid_sequence_does_not_hide_a_failure(sequence: int, is_reported: bool) -> None:
    origin, destination = (ZONE_MAP.location_by_node[f"n-{zone}"] for zone in ("z1", "z2"))
    failure = Failure(origin=origin, destination=destination, reason="timeout", sequence=1)
    failure_data = {key: value for key, value in encode_failure(failure, "TCP_RR").items() if value is not None}
    assert bool(decide(topology(), results(ALL, sequence) | failure_data).results.failures) == is_reported


def test_capacities_and_allocations_are_written_sorted_for_upstreams_search() -> None:
    allocated = {("z1", "z3"): 5, ("z2", "z3"): 7}
    decision = decide(topology(USERS), results(ALL), allocated=allocated)
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
    assert entries["zone", "z1", "z3"].bandwidth_capacity == "10Gi"
    allocations = {where: entry.bandwidth_allocated for where, entry in entries.items() if entry.bandwidth_allocated}
    assert allocations == {("zone", "z1", "z3"): "5", ("zone", "z2", "z3"): "7", ("region", "west", "east"): "12"}


def test_the_calculation_time_changes_with_the_weights_and_a_node_count_is_written_once_a_minute() -> None:
    current = list(conditions(decide(topology(), results(ALL)), 3).values())

    def plan(before: NetworkTopologyStatus, *, nodes: int = 3, generation: int = 3, **more: Any) -> Any:
        fields = {"is_weight_new": False, "now": 5000.0, **more}
        return status.build_status(before, current, node_count=nodes, generation=generation, **fields)

    empty = NetworkTopologyStatus(node_count=3)
    first = plan(empty, is_weight_new=True, now=1000.0)
    assert first.weight_calculation_time == "1970-01-01T00:16:40Z"
    assert plan(first) == first
    assert plan(first, is_weight_new=True).weight_calculation_time == "1970-01-01T01:23:20Z"
    assert status.needs_write(empty, first, since_last_write_s=5.0)
    for last_s, must_write in ((5.0, [False, False, True]), (60.0, [False, True, True])):
        plans = plan(first), plan(first, nodes=4), plan(first, generation=8)
        assert [status.needs_write(first, desired, since_last_write_s=last_s) for desired in plans] == must_write


ONE_ZONE = ZoneMap({"z1": "west"}, {"n-z1": ZONE_MAP.location_by_node["n-z1"]})
FAILS = {key: text[:-1] + ',"run_failure":"reset","failed_runs":3}' for key, text in results(ALL).items()}


@pytest.mark.parametrize(
    ("zone_map", "data", "type_", "expected"),
    [
        (ONE_ZONE, {}, "Measured", ("True", "NoPairs", "no pair of zones")),
        (ZONE_MAP, results(ALL), "Measured", ("True", "AllPairsMeasured", "6 of 6 zone pairs measured")),
        (ZONE_MAP, results({PAIRS[0]: 5.0, PAIRS[2]: 7.0}), "Measured", ("False", "PairsInferred", "z1 to z3")),
        (ZONE_MAP, FAILS, "OutlierNodes", ("True", "NetperfFails", "netperf fails (reset)")),
    ],
)
def test_conditions_report_the_basis_of_costs(
    zone_map: ZoneMap, data: dict[str, str], type_: str, expected: tuple[str, str, str]
) -> None:
    by_type = conditions(decide(topology(), data, zone_map=zone_map))
    assert (by_type[type_].status, by_type[type_].reason) == expected[:2]
    assert expected[2] in by_type[type_].message
    bad = {name for name, condition in by_type.items() if status.is_bad(condition)}
    assert bad == ({type_} if expected[1] in {"PairsInferred", "NetperfFails"} else set())


def test_a_persistent_outlier_does_not_rewrite_the_status() -> None:
    def messages(offset_us: float) -> list[str]:
        table = ZoneCosts(
            by_zone_pair={}, cost_by_region_pair={}, absent_pairs=(), error_us_by_outlier={"n2": offset_us}
        )
        counts = status.group_pairs_by_basis(table, POLICY, 60.0)
        return [condition.message for condition in status.build_conditions(counts, table, status.InputFaults(), 1)]

    assert messages(8049.0) == messages(8051.0) == messages(9800.0) != messages(-8049.0)
    assert any("n2 (reads more)" in message for message in messages(8049.0))
