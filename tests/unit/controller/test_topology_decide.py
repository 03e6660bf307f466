"""From samples to the weight and the status: other weights stay byte for byte, nothing is made up, and quiet stays quiet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.resources import NETPERF_COSTS, NetworkTopology, NetworkTopologyStatus
from controller.cluster.zones import ZoneMap
from controller.topology import status
from controller.topology.decision import TopologyDecision, TopologySnapshot, decide, policy_of
from controller.topology.weights import build_weight, patch_topology, written_costs
from kubekit.wire import Condition
from netperf.costs import ZoneCosts
from netperf.latencies import LATENCY_ANNOTATION, ZonePair
from netperf.memory import CostState
from netperf.policy import CostPolicy
from netperf.results import encode_failure, encode_samples
from netperf.sample import Failure, Measurement, Place, Sample

ZONES = {"z1": "west", "z2": "west", "z3": "east"}
SHAPE = ZoneMap(ZONES, {f"n-{z}": Place(f"n-{z}", z, r) for z, r in ZONES.items()})
PAIRS = [("z1", "z2"), ("z1", "z3"), ("z2", "z3")]
ALL = {("z1", "z2"): 4.5, ("z1", "z3"): 20.0, ("z2", "z3"): 22.0}
POLICY = CostPolicy()
START_S = 1_000_000.0


def results(latency_ms: Mapping[ZonePair, float], at_s: float = START_S, sequence: int = 1) -> dict[str, str]:
    samples = [
        Sample(
            origin=SHAPE.places[f"n-{a}"],
            destination=SHAPE.places[f"n-{b}"],
            measurement=Measurement(
                prober="netperf", test="TCP_RR", p50_us=ms * 900, p90_us=ms * 1000, p99_us=ms * 1100, transactions=500
            ),
            sequence=sequence,
            taken_at=at_s,
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


def snapshot(found: NetworkTopology, data: Mapping[str, str], **more: Any) -> TopologySnapshot:
    values: dict[str, Any] = {"zone_map": SHAPE, "missing": (), "allocated": {}, "interval_s": 60.0, **more}
    return TopologySnapshot(topology=found, results={"shop/netperf-metrics": data}, **values)


def run(
    found: NetworkTopology, data: Mapping[str, str], *, at_s: float = START_S, state: CostState | None = None
) -> TopologyDecision:
    return decide(snapshot(found, data), state, POLICY, now_s=at_s, wall_s=at_s)


def conditions(decision: TopologyDecision, generation: int = 1) -> dict[str, Condition]:
    """By type."""
    found = status.conditions_of(decision.counts, decision.table, decision.faults, generation)
    return {condition.type: condition for condition in found}


def write(found: NetworkTopology, decision: TopologyDecision) -> NetworkTopology | None:
    """The object after the patch, applied as the API server does; None when there is nothing to patch."""
    operations = patch_topology(found, build_weight(decision.table, decision.bandwidths), decision.latencies)
    if operations is None:
        return None
    plain = json.loads(msgspec.json.encode(found))
    assert operations[0] == {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}
    for change in operations[1:]:
        path = change["path"]
        if path.startswith("/metadata/annotations"):
            if change["op"] == "remove":
                del plain["metadata"]["annotations"][LATENCY_ANNOTATION]
                continue
            value = change["value"] if path.endswith("annotations") else {LATENCY_ANNOTATION: change["value"]}
            plain["metadata"]["annotations"] = {**(plain["metadata"].get("annotations") or {}), **value}
            continue
        weights = plain["spec"].setdefault("weights", [])
        where = path.removeprefix("/spec/weights")
        if where == "":
            plain["spec"]["weights"] = change["value"]
        elif where == "/-":
            weights.append(change["value"])
        else:
            weights[int(where.removeprefix("/"))] = change["value"]
    return msgspec.json.decode(json.dumps(plain), type=NetworkTopology)


USERS = {
    "name": "UserDefined",
    "topologyList": [
        {
            "topologyKey": "topology.kubernetes.io/zone",
            "originList": [
                {"origin": "z9", "costList": [{"destination": "z1", "networkCost": 0, "bandwidthCapacity": "1Gi"}]}
            ],
        }
    ],
}


def test_costs_go_both_ways_from_one_measurement_and_regions_from_their_zones() -> None:
    decision = run(topology(), results(ALL))
    assert {pair: entry.cost for pair, entry in decision.table.zones.items()} == {
        ("z1", "z2"): 5, ("z2", "z1"): 5, ("z1", "z3"): 20, ("z3", "z1"): 20, ("z2", "z3"): 22, ("z3", "z2"): 22,
    }  # fmt: skip
    assert decision.table.regions == {("west", "east"): 20, ("east", "west"): 20}


def test_the_weight_is_in_the_order_in_which_upstream_searches_it() -> None:
    weight = build_weight(run(topology(), results(ALL)).table, run(topology(), results(ALL)).bandwidths)
    keys = [level.topology_key for level in weight.topology_list]
    assert keys == ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"]
    for level in weight.topology_list:
        origins = [origin.origin for origin in level.origin_list]
        assert origins == sorted(origins, key=str.encode)


OURS = {"name": NETPERF_COSTS, "topologyList": []}


@pytest.mark.parametrize("before", [[USERS], [], None, [OURS, USERS], [USERS, {**USERS, "name": "Mine"}]])
def test_every_other_weight_stays_as_the_user_wrote_it(before: list[dict[str, Any]] | None) -> None:
    found = topology(weights=before)
    after = write(found, run(found, results(ALL)))
    assert after is not None
    names = [w["name"] for w in before or ()]
    assert [w.name for w in after.spec.weights or ()] == list(dict.fromkeys([*names, NETPERF_COSTS]))
    assert all(after.weight(w.name) == w for w in found.spec.weights or () if w.name != NETPERF_COSTS)


def test_without_any_measurement_nothing_is_written() -> None:
    assert write(topology(USERS), run(topology(USERS), {})) is None


latencies = st.dictionaries(st.sampled_from(PAIRS), st.floats(0.05, 500), max_size=3)


@given(latencies, st.dictionaries(st.sampled_from(PAIRS), st.integers(0, 10**10), max_size=2))
def test_planning_after_applying_finds_nothing_to_do(
    latency_ms: dict[ZonePair, float], allocated: dict[ZonePair, int]
) -> None:
    found = topology(USERS)
    first = decide(
        snapshot(found, results(latency_ms), allocated=allocated), None, POLICY, now_s=START_S, wall_s=START_S
    )
    after = write(found, first) or found
    for state in (first.state, None):  # going on, and after a restart of all replicas
        second = decide(
            snapshot(after, results(latency_ms), allocated=allocated),
            state,
            POLICY,
            now_s=START_S + 30,
            wall_s=START_S + 30,
        )
        assert write(after, second) is None
        assert conditions(first) == conditions(second)


def test_one_pair_that_changed_moves_its_own_cost_and_no_other_within_two_rounds() -> None:
    found = topology()
    first = run(found, results(ALL))
    after = write(found, first)
    assert after is not None
    changed = {**ALL, ("z1", "z3"): 40.0}
    second = run(after, results(changed, START_S + 60, 2), at_s=START_S + 60, state=first.state)
    third = run(after, results(changed, START_S + 120, 3), at_s=START_S + 120, state=second.state)
    before = written_costs(after.weight(NETPERF_COSTS))
    moved = {pair for pair, entry in third.table.zones.items() if entry.cost != before[pair]}
    assert moved == {("z1", "z3"), ("z3", "z1")}
    assert third.table.zones["z1", "z3"].cost == 40


def test_when_measuring_stops_the_last_good_value_stays_stale_and_then_goes_but_is_never_zero() -> None:
    found = topology()
    data = results(ALL)
    first = run(found, data)
    after = write(found, first)
    assert after is not None
    stale = run(after, data, at_s=START_S + 400, state=first.state)
    assert write(after, stale) is None, "the last good value is kept"
    assert len(stale.counts.stale) == 6
    assert (conditions(stale)["Measured"].status, conditions(stale)["Measured"].reason) == ("False", "MeasurementsOld")
    gone = run(after, data, at_s=START_S + 4000, state=stale.state)
    emptied = write(after, gone)
    assert emptied is not None
    assert written_costs(emptied.weight(NETPERF_COSTS)) == {}
    assert len(gone.table.absent) == 6


def test_a_restart_that_finds_no_results_at_all_keeps_what_was_written_as_stale() -> None:
    found = topology()
    after = write(found, run(found, results(ALL)))
    assert after is not None
    restarted = decide(snapshot(after, {}, missing=("shop/netperf-metrics",)), None, POLICY, now_s=50.0, wall_s=START_S)
    assert write(after, restarted) is None
    counts = restarted.counts
    assert len(counts.stale) == 6
    later = decide(snapshot(after, {}), restarted.state, POLICY, now_s=50.0 + 3600, wall_s=START_S + 3600)
    assert later.table.zones == {}


def test_a_hole_is_filled_over_other_zones_and_marked() -> None:
    decision = run(topology(), results({("z1", "z2"): 5.0, ("z2", "z3"): 7.0}))
    entry = decision.table.zones["z1", "z3"]
    assert (entry.basis, entry.cost) == ("inferred", 12)
    held = conditions(decision)["Measured"]
    assert (held.status, held.reason) == ("False", "PairsInferred")
    assert "z1 to z3" in held.message


def test_the_objects_own_policy_wins_field_by_field() -> None:
    found = topology(costPolicy={"unitUs": 100, "percentile": "p50"})
    policy, fault = policy_of(found, CostPolicy(hysteresis=0.7))
    assert (policy.unit_us, policy.percentile, policy.hysteresis, fault) == (100, "p50", 0.7, "")


@pytest.mark.parametrize("bad", [{"unitUs": "x"}, {"units": 1}, {"hysteresis": 7}, [], "fast"])
def test_a_bad_policy_is_reported_and_the_defaults_are_used(bad: object) -> None:
    found = topology(costPolicy=bad)
    policy, fault = policy_of(found, POLICY)
    assert policy == POLICY
    assert "costPolicy" in fault
    held = conditions(run(found, results(ALL)))["InputValid"]
    assert (held.status, held.reason) == ("False", "BadCostPolicy")


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=60), max_size=20))
def test_noise_in_the_results_moves_nothing_and_is_counted(noise: dict[str, str]) -> None:
    found = topology()
    first = run(found, results(ALL))
    after = write(found, first)
    assert after is not None
    ours = {f"netaware.v1.{key}": value for key, value in noise.items()}
    second = run(after, {**noise, **ours, **results(ALL)}, state=first.state)
    assert write(after, second) is None
    assert sum(second.faults.refused.values()) >= len(ours)


@pytest.mark.parametrize(("sequence", "stands"), [(2, False), (2**53 - 1, True)])
def test_a_failure_is_not_hidden_by_a_number_that_no_clock_gives(sequence: int, stands: bool) -> None:
    failure = Failure(origin=SHAPE.places["n-z1"], destination=SHAPE.places["n-z2"], failure="timeout", sequence=1)
    told = {key: value for key, value in encode_failure(failure, "TCP_RR").items() if value is not None}
    decision = run(topology(), results(ALL, sequence=sequence) | told)
    assert bool(decision.results.failures) == stands


def test_capacity_comes_from_the_user_and_allocation_stands_beside_it_at_both_levels() -> None:
    entry = {"destination": "z3", "networkCost": 9, "bandwidthCapacity": "10Gi"}
    level = {"topologyKey": "topology.kubernetes.io/zone", "originList": [{"origin": "z1", "costList": [entry]}]}
    found = topology({"name": "UserDefined", "topologyList": [level]})
    allocated = {("z1", "z3"): 5, ("z2", "z3"): 7}
    decision = decide(snapshot(found, results(ALL), allocated=allocated), None, POLICY, now_s=START_S, wall_s=START_S)
    entries = {
        (level.topology_key.rpartition("/")[2], origin.origin, entry.destination): entry
        for level in build_weight(decision.table, decision.bandwidths).topology_list
        for origin in level.origin_list
        for entry in origin.cost_list
    }
    assert entries["zone", "z1", "z3"].bandwidth_capacity == "10Gi"
    allocations = {where: entry.bandwidth_allocated for where, entry in entries.items() if where[2] in {"z3", "east"}}
    assert allocations == {("zone", "z1", "z3"): "5", ("zone", "z2", "z3"): "7", ("region", "west", "east"): "12"}
    assert entries["zone", "z1", "z2"].bandwidth_allocated is None


def test_the_calculation_time_moves_only_with_the_weights() -> None:
    held = list(conditions(run(topology(), results(ALL)), 3).values())

    def plan(before: NetworkTopologyStatus, *, changed: bool, now: float) -> NetworkTopologyStatus:
        return status.plan_status(before, held, node_count=3, generation=3, weights_changed=changed, now=now)

    first = plan(NetworkTopologyStatus(), changed=True, now=1000.0)
    assert first.weight_calculation_time == "1970-01-01T00:16:40Z"
    assert plan(first, changed=False, now=5000.0) == first
    assert plan(first, changed=True, now=5000.0).weight_calculation_time == "1970-01-01T01:23:20Z"


def test_a_number_of_nodes_alone_is_written_once_a_minute_and_anything_else_at_once() -> None:
    held = list(conditions(run(topology(), results(ALL)), 7).values())

    def wanted(before: NetworkTopologyStatus, node_count: int, generation: int = 7) -> NetworkTopologyStatus:
        return status.plan_status(
            before, held, node_count=node_count, generation=generation, weights_changed=False, now=1000.0
        )

    first = wanted(NetworkTopologyStatus(node_count=3), 3)
    assert status.is_worth_a_write(NetworkTopologyStatus(node_count=3), first, last_s=5.0)
    for last_s, worth in ((5.0, [False, False, True]), (60.0, [False, True, True])):
        statuses = wanted(first, 3), wanted(first, 4), wanted(first, 3, 8)
        assert [status.is_worth_a_write(first, one, last_s=last_s) for one in statuses] == worth


def test_one_zone_has_no_pairs_and_that_is_fine() -> None:
    lonely = ZoneMap({"z1": "west"}, {"n-z1": Place("n-z1", "z1", "west")})
    decision = decide(snapshot(topology(), {}, zone_map=lonely), None, POLICY, now_s=1.0, wall_s=1.0)
    held = conditions(decision)
    assert (held["Measured"].status, held["Measured"].reason) == ("True", "NoPairs")
    assert not any(map(status.is_bad, held.values()))


def test_a_node_that_stays_odd_by_about_as_much_writes_no_status_again() -> None:
    def messages_for_outlier(offset_us: float) -> list[str]:
        table = ZoneCosts(zones={}, regions={}, absent=(), outliers_us={"n2": offset_us})
        counts = status.group_pairs(table, POLICY, 60.0)
        return [found.message for found in status.conditions_of(counts, table, status.InputFaults(), 1)]

    assert messages_for_outlier(8049.0) == messages_for_outlier(8051.0) == messages_for_outlier(9800.0)
    assert messages_for_outlier(8049.0) != messages_for_outlier(-8049.0)
    assert any("n2 (reads more)" in message for message in messages_for_outlier(8049.0))


def test_a_pair_on_which_netperf_fails_again_and_again_is_named_though_datagrams_price_it() -> None:
    (key, text), *others = results(ALL).items()
    fails = {key: text[:-1] + ',"run_failure":"reset","failed_runs":3}'}
    decision = run(topology(), {**dict(others), **fails})
    assert len(decision.counts.measured) == 6
    found = conditions(decision)["OutlierNodes"]
    assert (found.status, found.reason) == ("True", "NetperfFails")
    assert "netperf fails (reset)" in found.message
