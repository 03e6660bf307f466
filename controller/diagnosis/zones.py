"""Builds the view of zones, with the cost, its basis and the latency of each pair of zones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

import msgspec

from controller.cluster.costs import choose_topology, choose_weight, cost_entries_of
from controller.cluster.crds import NETPERF_COSTS, CostInfo, NetworkTopology, WeightInfo
from controller.cluster.zones import ZoneMap, build_zone_map
from controller.diagnosis.cluster_views import NetworkView, PairBasis, PairView, ZoneView
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.topology.decision import TopologyDecision, TopologySnapshot, decide_topology
from controller.topology.results_names import list_results_names
from controller.topology.status import group_pairs_by_basis
from kubekit import quantity
from netperf.contract import ZONE_LABEL
from netperf.cost_state import CostState, choose_representative, find_node_pair
from netperf.costs import ZoneCost
from netperf.latencies import ZonePair
from netperf.pairs import PlanOptions
from netperf.sample import Sample

DEFAULT_INTERVAL_S = PlanOptions().interval_s


def build_network(snapshot: ClusterSnapshot) -> NetworkView:
    """All zones and ordered pairs, with the costs that the scheduler uses; if it uses none, with those of another object or weight."""
    topology = _choose_shown_topology(snapshot)
    # A NetworkTopology may be in use for groups of all namespaces (""), or of its own one only.
    namespaces = ("", topology.metadata.namespace) if topology is not None else ()
    is_in_use = any(topology == _find_topology_in_use(snapshot, namespace) for namespace in namespaces)
    weight_in_use = choose_weight(topology, snapshot.scheduler.network_overhead_args)
    weights = (topology.spec.weights or ()) if topology is not None else ()
    weight = weight_in_use or next((candidate for candidate in weights if candidate.topology_list), None)
    zone_map = build_zone_map(snapshot.nodes)
    # Zones without a region are last.
    zone_regions = sorted(zone_map.region_by_zone.items(), key=lambda item: (not item[1], item[1], item[0]))
    zones = tuple(ZoneView(name=zone, region=region) for zone, region in zone_regions)
    interval_s = max((plan.interval_s for plan in snapshot.plans), default=None)
    decision = _decide_costs(topology, snapshot, zone_map, interval_s or DEFAULT_INTERVAL_S)
    pairs = _build_pairs(snapshot, decision, weight, zones, interval_s or DEFAULT_INTERVAL_S)
    return NetworkView(
        topology=topology.metadata.key if topology is not None else None,
        weight_name=weight.name if weight is not None else None,
        unit_us=decision.policy.unit_us,
        percentile=decision.policy.percentile,
        zones=zones,
        pairs=pairs,
        interval_s=interval_s,
        measured_at=max((pair.measured_at for pair in pairs if pair.measured_at is not None), default=None),
        is_unused=topology is not None and (not is_in_use or weight_in_use is None),
    )


def _choose_shown_topology(snapshot: ClusterSnapshot) -> NetworkTopology | None:
    """The NetworkTopology that the scheduler uses, else one of the same name, else any; None if there is none."""
    name = snapshot.scheduler.network_overhead_args.network_topology_name
    candidates = sorted(snapshot.topologies, key=lambda t: (t.metadata.name != name, t.metadata.key))
    return _find_topology_in_use(snapshot) or next(iter(candidates), None)


def _find_topology_in_use(snapshot: ClusterSnapshot, namespace: str = "") -> NetworkTopology | None:
    """The NetworkTopology that the scheduler uses for groups of a namespace; None if there is none."""
    topologies_by_key = {topology.metadata.key: topology for topology in snapshot.topologies}
    args = snapshot.scheduler.network_overhead_args
    return choose_topology(topologies_by_key, args, netaware_namespace=snapshot.netaware_namespace, namespace=namespace)


def _decide_costs(
    topology: NetworkTopology | None, snapshot: ClusterSnapshot, zone_map: ZoneMap, interval_s: float
) -> TopologyDecision:
    """The costs that a controller would decide if it had just started. Ages of samples are by their writers' clocks."""
    topologies = () if topology is None else (topology,)
    names = list_results_names(topologies, snapshot.plans, snapshot.netaware_namespace, len(zone_map.region_by_zone))
    topology_snapshot = TopologySnapshot(
        topology=topology or NetworkTopology(),
        zone_map=zone_map,
        data_by_configmap={name: snapshot.results.get(name, {}) for name in map(str, names)},
        allocated_bps={},
        interval_s=interval_s,
    )
    return decide_topology(topology_snapshot, None, snapshot.policy, now_s=snapshot.now_s, wall_s=snapshot.now_s)


def _build_pairs(
    snapshot: ClusterSnapshot,
    decision: TopologyDecision,
    weight: WeightInfo | None,
    zones: Sequence[ZoneView],
    interval_s: float,
) -> tuple[PairView, ...]:
    """All ordered pairs of zones. The bases of costs follow from the samples, because the NetworkTopology does not have them."""
    written_costs = cost_entries_of(weight, ZONE_LABEL)
    old_pairs = set(group_pairs_by_basis(decision.costs, decision.policy, interval_s)["stale"])
    samples = _choose_shown_samples(decision.results.samples.values(), decision.state)
    pairs = []
    for pair in permutations([zone.name for zone in zones], 2):
        basis: PairBasis = "given"
        if weight is None or pair not in written_costs:
            basis = "absent"
        elif weight.name == NETPERF_COSTS:
            basis = _choose_basis(decision.costs.by_zone_pair.get(pair), is_too_old=pair in old_pairs)
        sample = samples.get(pair) or samples.get((pair[1], pair[0]))
        pairs.append(_build_pair(pair, written_costs.get(pair), basis, sample, snapshot.now_s))
    return tuple(pairs)


def _choose_basis(computed_cost: ZoneCost | None, *, is_too_old: bool) -> PairBasis:
    """The basis of a written cost: stale if it would not be computed now. A kept last value counts as measured until it is too old."""
    if computed_cost is None or is_too_old:
        return "stale"
    return "measured" if computed_cost.basis == "stale" else computed_cost.basis


def _choose_shown_samples(samples: Iterable[Sample], state: CostState) -> dict[ZonePair, Sample]:
    """The newest sample of each pair of zones: of the pair of nodes that represents it in views, or of any if none is known."""
    node_pairs = {zones: choose_representative(pair_state.node_pairs) for zones, pair_state in state.items()}
    shown_samples: dict[ZonePair, Sample] = {}
    for sample in sorted(samples, key=lambda sample: sample.taken_at):
        if sample.measurement.test == "TCP_STREAM" or sample.origin.zone == sample.destination.zone:
            continue
        node_pair = node_pairs.get(sample.zones)
        if node_pair is None or find_node_pair(sample, (node_pair,)) is not None:
            shown_samples[sample.zones] = sample
    return shown_samples


def _build_pair(
    pair: ZonePair, written_cost: CostInfo | None, basis: PairBasis, sample: Sample | None, now_s: float
) -> PairView:
    view = PairView(origin=pair[0], destination=pair[1], basis=basis)
    if written_cost is not None:
        view = msgspec.structs.replace(
            view,
            cost=written_cost.network_cost,
            bandwidth_capacity_bps=quantity.parse_int_or_none(written_cost.bandwidth_capacity),
            bandwidth_allocated_bps=quantity.parse_int_or_none(written_cost.bandwidth_allocated),
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
