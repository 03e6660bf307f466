"""Zones and pairs of zones: their costs, the sources of these, and latencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from controller.cluster.costs import choose_topology, choose_weight, cost_entries_of
from controller.cluster.crds import NETPERF_COSTS, CostInfo, NetworkTopology
from controller.cluster.zones import ZoneMap, agent_pods_by_node, build_zone_map, to_probe_node
from controller.diagnosis.cluster_views import NetworkView, PairBasis, PairView, ZoneView
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.topology.decision import TopologyDecision, TopologySnapshot, decide
from controller.topology.results import result_names
from controller.topology.status import group_pairs
from kubekit import quantity
from netperf.contract import ZONE_LABEL
from netperf.cost_state import CostState, choose_representative, find_node_pair
from netperf.costs import ZoneCost
from netperf.latencies import ZonePair
from netperf.pairs import PlanOptions
from netperf.sample import Sample

DEFAULT_INTERVAL_S = PlanOptions().interval_s


def _topology_to_show(snapshot: ClusterSnapshot) -> NetworkTopology | None:
    """The NetworkTopology to show: the scheduler's, else one of the same name, else any."""
    name = snapshot.network_overhead_args.network_topology_name
    others = sorted(snapshot.topologies, key=lambda t: (t.metadata.name != name, t.metadata.key))
    return _topology_in_use(snapshot) or next(iter(others), None)


def _topology_in_use(snapshot: ClusterSnapshot, namespace: str = "") -> NetworkTopology | None:
    """The NetworkTopology that the scheduler uses for groups of a namespace."""
    by_key = {t.metadata.key: t for t in snapshot.topologies}
    return choose_topology(
        by_key, snapshot.network_overhead_args, netaware_namespace=snapshot.netaware_namespace, namespace=namespace
    )


def _results_for(
    topology: NetworkTopology | None, snapshot: ClusterSnapshot, zone_map: ZoneMap
) -> dict[str, Mapping[str, str]]:
    """The results for a topology: those of agents, then those in the ConfigMaps that it names."""
    topologies = () if topology is None else (topology,)
    names = result_names(topologies, snapshot.plans, snapshot.netaware_namespace, len(zone_map.zones))
    return {str(name): snapshot.results.get(str(name), {}) for name in names}


def decide_costs(topology: NetworkTopology | None, snapshot: ClusterSnapshot, zone_map: ZoneMap) -> TopologyDecision:
    """The costs that a controller would decide if it started now, and knew only the costs written last.

    Ages of samples are taken from their writers.
    """
    topology_snapshot = TopologySnapshot(
        topology=topology or NetworkTopology(),
        zone_map=zone_map,
        results=_results_for(topology, snapshot, zone_map),
        missing=(),
        allocated={},
        interval_s=max((plan.interval_s for plan in snapshot.plans), default=DEFAULT_INTERVAL_S),
    )
    return decide(topology_snapshot, None, snapshot.policy, now_s=snapshot.now_s, wall_s=snapshot.now_s)


def build_network(snapshot: ClusterSnapshot) -> NetworkView:
    """All zones and all ordered pairs of them, with the costs that the scheduler uses; without such costs, any others."""
    topology = _topology_to_show(snapshot)
    is_in_use = topology is not None and topology in (
        _topology_in_use(snapshot),
        _topology_in_use(snapshot, topology.metadata.namespace),
    )
    weight_in_use = choose_weight(topology, snapshot.network_overhead_args)
    candidates = (topology.spec.weights or ()) if topology is not None else ()
    weight = weight_in_use or next((candidate for candidate in candidates if candidate.topology_list), None)
    weight_name = weight.name if weight is not None else None
    zone_map = build_zone_map(snapshot.nodes)
    interval_s = max((plan.interval_s for plan in snapshot.plans), default=None)
    decision = decide_costs(topology, snapshot, zone_map)
    pairs = _pair_views(
        decision,
        cost_entries_of(weight, ZONE_LABEL),
        weight_name,
        zone_map=zone_map,
        round_s=interval_s or DEFAULT_INTERVAL_S,
        now_s=snapshot.now_s,
    )
    newest = [pair.measured_at for pair in pairs if pair.measured_at is not None]
    return NetworkView(
        topology=topology.metadata.key if topology is not None else None,
        weights=weight_name,
        unit_us=decision.policy.unit_us,
        percentile=decision.policy.percentile,
        zones=_zone_views(snapshot, zone_map),
        pairs=pairs,
        interval_s=interval_s,
        measured_at=max(newest, default=None),
        unused=topology is not None and (not is_in_use or weight_in_use is None),
    )


def _sorted_zones(zones: Mapping[str, str]) -> list[str]:
    """Zones sorted by region and name; those without a region last."""
    return sorted(zones, key=lambda zone: (not zones[zone], zones[zone], zone))


def _zone_views(snapshot: ClusterSnapshot, zone_map: ZoneMap) -> tuple[ZoneView, ...]:
    agent_pods = agent_pods_by_node(snapshot.agent_pods)
    probe_nodes = [to_probe_node(node, agent_pods) for node in snapshot.nodes]
    nodes = Counter(node.zone for node in probe_nodes)
    ready = Counter(node.zone for node in probe_nodes if node.is_ready)
    agents = Counter(node.zone for node in probe_nodes if node.is_ready and node.has_ready_agent)
    return tuple(
        ZoneView(name=zone, region=zone_map.zones[zone], nodes=nodes[zone], ready=ready[zone], agents=agents[zone])
        for zone in _sorted_zones(zone_map.zones)
    )


def _pair_views(
    decision: TopologyDecision,
    entries: Mapping[ZonePair, CostInfo],
    weight_name: str | None,
    *,
    zone_map: ZoneMap,
    round_s: float,
    now_s: float,
) -> tuple[PairView, ...]:
    """All ordered pairs of zones. The sources of costs follow from the samples, because the NetworkTopology does not have them."""
    stale = set(group_pairs(decision.table, decision.policy, round_s)["stale"])
    samples_shown = _representatives(decision.results.samples.values(), decision.state)
    names = _sorted_zones(zone_map.zones)
    pairs = []
    for pair in ((a, b) for a in names for b in names if a != b):
        written_cost = entries.get(pair)
        basis = _basis(written_cost is not None, weight_name, pair in stale, decision.table.by_zone_pair.get(pair))
        pairs.append(
            _pair_view(
                pair, written_cost, basis, samples_shown.get(pair) or samples_shown.get((pair[1], pair[0])), now_s
            )
        )
    return tuple(pairs)


def _basis(is_written: bool, weight_name: str | None, is_stale: bool, computed_cost: ZoneCost | None) -> PairBasis:
    """The source of a written cost. A last good value counts as measured until it is stale, as in the status."""
    if not is_written:
        return "absent"
    if weight_name != NETPERF_COSTS:
        return "given"
    if computed_cost is None or is_stale:
        return "stale"
    return "measured" if computed_cost.basis == "stale" else computed_cost.basis


def _representatives(samples: Iterable[Sample], state: CostState) -> dict[ZonePair, Sample]:
    """The sample to show for each pair: of the node pair that its cost comes from, else the newest."""
    node_pairs = {pair: choose_representative(pair_state.node_pairs) for pair, pair_state in state.items()}
    samples_shown: dict[ZonePair, Sample] = {}
    for sample in sorted(samples, key=lambda s: s.taken_at):
        if sample.measurement.test == "TCP_STREAM" or sample.origin.zone == sample.destination.zone:
            continue
        node_pair = node_pairs.get(sample.zones)
        if node_pair is None or find_node_pair(sample, (node_pair,)) is not None:
            samples_shown[sample.zones] = sample
    return samples_shown


def _pair_view(
    pair: ZonePair, written_cost: CostInfo | None, basis: PairBasis, sample: Sample | None, now_s: float
) -> PairView:
    view = PairView(
        origin=pair[0],
        destination=pair[1],
        cost=None if written_cost is None else written_cost.network_cost,
        basis=basis,
        bandwidth_capacity_bps=quantity.parse_int_or_none(written_cost.bandwidth_capacity)
        if written_cost is not None
        else None,
        bandwidth_allocated_bps=quantity.parse_int_or_none(written_cost.bandwidth_allocated)
        if written_cost is not None
        else None,
    )
    if sample is None:
        return view
    measurement = sample.cost_measurement
    return msgspec.structs.replace(
        view,
        p50_us=sample.percentile_us("p50"),
        p90_us=sample.percentile_us("p90"),
        p99_us=sample.percentile_us("p99"),
        jitter_us=measurement.jitter_us,
        loss_ratio=measurement.loss_ratio,
        measured_at=min(sample.taken_at, now_s) if sample.taken_at else None,
        quality_flags=sample.quality_flags,
        prober=measurement.prober,
        origin_node=sample.origin.node,
        destination_node=sample.destination.node,
    )


def by_pair(pairs: Iterable[PairView]) -> dict[ZonePair, PairView]:
    """Pairs by origin and destination."""
    return {(pair.origin, pair.destination): pair for pair in pairs}
