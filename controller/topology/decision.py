"""Decides a NetworkTopology: costs, latencies, bandwidths and faults, from samples. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import msgspec

from controller.cluster.crds import NETPERF_COSTS, NetworkTopology
from controller.cluster.zones import ZoneMap
from controller.topology import bandwidth, status
from controller.topology.weights import Bandwidths, zone_costs_in
from kubekit.errors import ConfigError
from netperf.configmap_size import measure_size
from netperf.cost_state import CostState, restore_state, resume_state, update_state
from netperf.costs import ZoneCosts, compute_costs
from netperf.latencies import LATENCY_ANNOTATION, Latencies, ZonePair, apply_hysteresis, decode_latencies
from netperf.policy import CostPolicy, parse_policy
from netperf.results import SIZE_WARNING_BYTES, Results, decode_results


class TopologySnapshot(msgspec.Struct, frozen=True):
    """All inputs of a decision about a NetworkTopology.

    Attributes:
        topology: the object.
        zone_map: zones and nodes of the cluster.
        results: data of its results ConfigMaps by ``namespace/name``; the last one wins if several have a key.
        missing: its own results ConfigMap, if no results could be read.
        allocated: bits per second by zone pair, from placed pods of AppGroups.
        interval_s: length of a probing round.
        expected: keys of planned results; None without a plan.
    """

    topology: NetworkTopology
    zone_map: ZoneMap
    results: Mapping[str, Mapping[str, str]]
    missing: tuple[str, ...]
    allocated: Mapping[ZonePair, int]
    interval_s: float
    expected: Collection[str] | None = None


class TopologyDecision(msgspec.Struct, frozen=True):
    """Costs, bandwidths and status computed from a snapshot.

    Attributes:
        latencies: of the costs, for the annotation.
        table: costs between zones and between regions.
        counts: zone pairs by the basis of their cost.
        state: input of the next decision.
        policy: the policy that was applied.
        results: decoded samples, failures and refused keys.
        bandwidths: capacities and allocations.
        faults: faults of the inputs, for the conditions.
    """

    latencies: Latencies
    table: ZoneCosts
    counts: status.PairsByBasis
    state: CostState
    policy: CostPolicy
    results: Results
    bandwidths: Bandwidths
    faults: status.InputFaults


def decide(
    snapshot: TopologySnapshot,
    state: CostState | None,
    defaults: CostPolicy,
    *,
    now_s: float,
    wall_s: float,
    earlier: CostState | None = None,
) -> TopologyDecision:
    """Compute costs, bandwidths and faults of a NetworkTopology. Pure.

    Args:
        snapshot: the inputs.
        state: of the last decision; None for the first one of a leadership.
        defaults: the controller's policy; fields of the object's costPolicy override it.
        now_s: monotonic clock.
        wall_s: wall clock, seconds since 1970.
        earlier: the state of an earlier leadership of this process, by the same clock; used without ``state``.
    """
    topology, interval_s = snapshot.topology, snapshot.interval_s
    policy, policy_fault = read_policy(topology, defaults)
    data = {key: value for shard in snapshot.results.values() for key, value in shard.items()}
    results = decode_results(data, snapshot.zone_map.locations, snapshot.expected, now_s=wall_s)
    written = decode_latencies(topology.metadata.annotation(LATENCY_ANNOTATION))
    if state is None:
        state = restore_state(zone_costs_in(topology.weight(NETPERF_COSTS)), policy, now_s, written)
        state = resume_state(earlier, state) if earlier is not None else state
    samples, failures = results.samples.values(), results.failures.values()
    state = update_state(samples, state, policy, now_s, wall_s, failures=failures, interval_s=interval_s)
    table, state = compute_costs(state, snapshot.zone_map.zones, policy, now_s, interval_s=interval_s)
    return TopologyDecision(
        latencies=apply_hysteresis(written, table.latencies()),
        table=table,
        counts=status.group_pairs(table, policy, interval_s),
        state=state,
        policy=policy,
        results=results,
        bandwidths=_bandwidths_of(snapshot),
        faults=_faults_of(snapshot, results, policy_fault),
    )


def _bandwidths_of(snapshot: TopologySnapshot) -> Bandwidths:
    zone_capacity, region_capacity = bandwidth.read_user_capacities(snapshot.topology)
    return Bandwidths(
        zone_capacity=zone_capacity,
        region_capacity=region_capacity,
        zone_allocated=snapshot.allocated,
        region_allocated=bandwidth.sum_by_regions(snapshot.allocated, snapshot.zone_map.zones),
    )


def _faults_of(snapshot: TopologySnapshot, results: Results, policy_fault: str) -> status.InputFaults:
    samples = results.samples.values()
    sizes = {name: measure_size(data) for name, data in snapshot.results.items()}
    return status.InputFaults(
        policy=policy_fault,
        missing=snapshot.missing,
        large={name: size for name, size in sizes.items() if size > SIZE_WARNING_BYTES},
        refusal_counts=results.refusal_counts,
        writers=_writers(results),
        failing={(f.origin.zone, f.destination.zone): f.failure for f in results.failures.values()},
        netperf_failing={s.zones: s.run_failure or "" for s in samples if s.has_persistent_failure},
        disagreeing=tuple(sorted({s.zones for s in samples if s.has_disagreement})),
        zone_map=snapshot.zone_map,
    )


def read_policy(topology: NetworkTopology, defaults: CostPolicy) -> tuple[CostPolicy, str]:
    """The object's policy over the defaults, and its error; if it is invalid, the defaults alone."""
    fields = topology.spec.cost_policy
    if fields is None:
        return defaults, ""
    if not isinstance(fields, dict):
        return defaults, "costPolicy is not an object"
    try:
        return parse_policy(fields, defaults), ""
    except ConfigError as error:
        return defaults, str(error)


def _writers(results: Results) -> dict[str, tuple[str, ...]]:
    """Reason -> nodes whose keys were refused for it, sorted."""
    writers: dict[str, set[str]] = defaultdict(set)
    for refusal in results.refusals:
        if refusal.writer:
            writers[refusal.reason].add(refusal.writer)
    return {reason: tuple(sorted(nodes)) for reason, nodes in writers.items()}
