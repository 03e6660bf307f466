"""Computes costs, latencies, bandwidths and faults of a NetworkTopology from samples, without I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import msgspec

from controller.cluster.crds import NETPERF_COSTS, NetworkTopology
from controller.cluster.zones import ZoneMap
from controller.topology import bandwidth, status
from controller.topology.weights import Bandwidths, zone_costs_of
from kubekit.errors import ConfigError
from netperf.configmap_size import measure_size
from netperf.contract import REGION_LABEL, ZONE_LABEL
from netperf.cost_state import CostState, restore_state, resume_state, update_state
from netperf.costs import ZoneCosts, compute_costs
from netperf.latencies import LATENCY_ANNOTATION, Latencies, ZonePair, apply_hysteresis, decode_latencies
from netperf.policy import CostPolicy, parse_policy
from netperf.results import SIZE_WARNING_BYTES, Results, decode_results


class TopologySnapshot(msgspec.Struct, frozen=True):
    """All inputs of a decision about a NetworkTopology.

    Attributes:
        zone_map: zones and nodes of the cluster.
        data_by_configmap: ``namespace/name`` of a results ConfigMap that could be read -> its data; of a key in several the last counts.
        allocated_bps: zone pair -> bits per second that placed pods of AppGroups need.
        interval_s: length of a probing round.
        expected_keys: keys of planned results; None without a plan.
    """

    topology: NetworkTopology
    zone_map: ZoneMap
    data_by_configmap: Mapping[str, Mapping[str, str]]
    allocated_bps: Mapping[ZonePair, int]
    interval_s: float
    expected_keys: Collection[str] | None = None


class TopologyDecision(msgspec.Struct, frozen=True):
    """Costs, bandwidths and status computed from a snapshot.

    Attributes:
        latencies: the latencies behind the costs, for the annotation.
        pairs_by_basis: zone pairs by the basis of their cost, see `PairsByBasis`.
        state: input of the next decision.
        policy: the cost policy that was applied.
        results: decoded samples, failures and refused keys.
        zone_bandwidths, region_bandwidths: capacities and allocations between zones and between regions.
        faults: faults of the inputs, for the conditions.
    """

    latencies: Latencies
    costs: ZoneCosts
    pairs_by_basis: status.PairsByBasis
    state: CostState
    policy: CostPolicy
    results: Results
    zone_bandwidths: Bandwidths
    region_bandwidths: Bandwidths
    faults: status.InputFaults


def decide_topology(
    snapshot: TopologySnapshot,
    state: CostState | None,
    defaults: CostPolicy,
    *,
    now_s: float,
    wall_s: float,
    earlier_state: CostState | None = None,
) -> TopologyDecision:
    """Compute costs, bandwidths and faults of a NetworkTopology.

    Args:
        snapshot: the inputs.
        state: state of the last decision; None for the first decision of a leadership.
        defaults: the controller's cost policy, whose fields the NetworkTopology's costPolicy overrides.
        now_s: monotonic clock.
        wall_s: wall clock, seconds since 1970.
        earlier_state: state of an earlier leadership of this process, by the same clock; used if ``state`` is None.
    """
    topology, interval_s = snapshot.topology, snapshot.interval_s
    policy, policy_error = resolve_policy(topology, defaults)
    data = {key: value for shard in snapshot.data_by_configmap.values() for key, value in shard.items()}
    results = decode_results(data, snapshot.zone_map.location_by_node, snapshot.expected_keys, now_s=wall_s)
    written_latencies = decode_latencies(topology.metadata.annotation(LATENCY_ANNOTATION))
    if state is None:
        state = restore_state(zone_costs_of(topology.weight(NETPERF_COSTS)), policy, now_s, written_latencies)
        state = resume_state(earlier_state, state) if earlier_state is not None else state
    samples, failures = results.samples.values(), results.failures.values()
    state = update_state(samples, state, policy, now_s, wall_s, failures=failures, interval_s=interval_s)
    region_by_zone = snapshot.zone_map.region_by_zone
    costs, state = compute_costs(state, region_by_zone, policy, now_s, interval_s=interval_s)
    region_allocations_bps = bandwidth.sum_by_region_pair(snapshot.allocated_bps, region_by_zone)
    return TopologyDecision(
        latencies=apply_hysteresis(written_latencies, costs.latencies()),
        costs=costs,
        pairs_by_basis=status.group_pairs_by_basis(costs, policy, interval_s),
        state=state,
        policy=policy,
        results=results,
        zone_bandwidths=Bandwidths(bandwidth.read_user_capacities(topology, ZONE_LABEL), snapshot.allocated_bps),
        region_bandwidths=Bandwidths(bandwidth.read_user_capacities(topology, REGION_LABEL), region_allocations_bps),
        faults=_faults_of(snapshot, results, policy_error),
    )


def _faults_of(snapshot: TopologySnapshot, results: Results, policy_error: str) -> status.InputFaults:
    topology, samples = snapshot.topology, results.samples.values()
    named_configmap = f"{topology.metadata.namespace}/{topology.spec.configmap_name}"
    size_by_configmap = {name: measure_size(data) for name, data in snapshot.data_by_configmap.items()}
    nodes_by_refusal: dict[str, set[str]] = defaultdict(set)
    for refusal in results.refusals:
        if refusal.writer:
            nodes_by_refusal[refusal.reason].add(refusal.writer)
    return status.InputFaults(
        policy_error=policy_error,
        missing_configmap="" if snapshot.data_by_configmap else named_configmap,
        large_configmaps={name: size for name, size in size_by_configmap.items() if size > SIZE_WARNING_BYTES},
        refusal_counts=results.refusal_counts,
        writers_by_reason={reason: tuple(sorted(nodes)) for reason, nodes in nodes_by_refusal.items()},
        failures={(f.origin.zone, f.destination.zone): f.reason for f in results.failures.values()},
        netperf_failures={s.zones: s.run_failure or "" for s in samples if s.has_persistent_failure},
        disagreeing_pairs=tuple(sorted({s.zones for s in samples if s.has_disagreement})),
        zone_map=snapshot.zone_map,
    )


def resolve_policy(topology: NetworkTopology, defaults: CostPolicy) -> tuple[CostPolicy, str]:
    """The cost policy of a NetworkTopology, and no error; or the defaults, and why the NetworkTopology's costPolicy is invalid."""
    fields = topology.spec.cost_policy
    if fields is None:
        return defaults, ""
    if not isinstance(fields, dict):
        return defaults, "costPolicy: is not an object; write fields such as unitUs"
    try:
        return parse_policy(fields, defaults), ""
    except ConfigError as error:
        return defaults, str(error)
