"""Reads traffic on the leader, and writes drift, measured weights and costs of AppGroups.

Weights are written only after a large change: plans use only their ratios, which fluctuate during the day.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import get_args

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from controller.cluster.caches import Caches
from controller.cluster.costs import locations_of
from controller.cluster.membership import Membership
from controller.cluster.resources import APPGROUPS, AppGroup
from controller.prometheus import PrometheusClient, PrometheusError
from controller.traffic.config import TrafficConfig
from controller.traffic.drift import Drift, DriftKind, find_drift, group_by_workload, local_workloads, measured_weights
from controller.traffic.graph import Flow, ObservedDependency, TrafficGraph, build_traffic_graph
from controller.traffic.money import TrafficCost, compute_cost
from controller.traffic.prices import PriceTable
from controller.traffic.sources import NoTrafficError, read_flows
from controller.traffic.weights import Edges, Weights, by_edge, read_weights
from controller.traffic.workloads import Workloads
from kubekit import logs
from kubekit.client import Client
from kubekit.conditions import find_condition, make_condition
from kubekit.errors import ApiError, KubekitError
from kubekit.wire import Condition, Object, split_key
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION

log = logs.get("controller.traffic")

AS_DESCRIBED = "AsDescribed"
"""Type of an AppGroup's condition, and its reason if True: traffic and AppGroup agree."""
SHOWN_DRIFTS = 3
"""Differences that a message names."""
MOVED_SHARE = 0.1
"""Weights are written if at least this share of traffic moved between dependencies."""
TOTAL_FACTOR = 2.0
"""Weights are written if total traffic changed by this factor."""
MAX_FAILURES = 3
"""Failed readings in a row after which the conditions become Unknown."""
KINDS: Sequence[DriftKind] = get_args(DriftKind)


class Comparison(msgspec.Struct, frozen=True):
    """The result of one reading: the cost of all traffic; drift and measured weights by ``namespace/name`` of AppGroups."""

    cost: TrafficCost
    drift: Mapping[str, Sequence[Drift]]
    weights: Mapping[str, Weights]


def compare(
    flows: Iterable[Flow],
    workloads: Workloads,
    groups: Sequence[AppGroup],
    prices: PriceTable | None,
    membership: Membership,
) -> Comparison:
    """Compare AppGroups with flows; ``membership`` assigns workloads to AppGroups. Pure."""
    resolved, _ = workloads.resolve(flows)
    graph = build_traffic_graph(resolved)
    # Index flows by workload, because scanning all traffic for each group would be quadratic.
    calls: dict[str, list[ObservedDependency]] = defaultdict(list)
    for d in graph.dependencies:
        calls[d.client.key].append(d)
    graphs = {
        g.metadata.key: TrafficGraph(
            tuple(d for key in dict.fromkeys(local_workloads(g).values()) for d in calls.get(key, ()))
        )
        for g in groups
    }
    return Comparison(
        compute_cost(graph, workloads, prices, group_by_workload(membership)),
        {g.metadata.key: find_drift(g, graphs[g.metadata.key]) for g in groups},
        {g.metadata.key: measured_weights(g, graphs[g.metadata.key]) for g in groups},
    )


class TrafficController:
    """Reads traffic every `TrafficConfig.interval_s` while this replica leads.

    Args:
        client: fenced by the leadership.
        caches: the stores.
        config: settings; without an address of Prometheus the controller does nothing.
        registry: for metrics.
        membership: updated by the caller.
        notify: called with an AppGroup's key if its conditions changed.
    """

    def __init__(
        self,
        client: Client,
        caches: Caches,
        config: TrafficConfig,
        registry: CollectorRegistry,
        *,
        membership: Membership,
        notify: Callable[[str], None],
    ) -> None:
        self._client, self._caches, self._config, self._notify = client, caches, config, notify
        self._membership, self._prices = membership, config.prices.resolve()
        self._comparison: Comparison | None = None
        self._conditions: dict[str, tuple[str, str]] = {}
        self._read_at: float | None = None
        # Set by the first reading, or by repeated failures. Before, an AppGroup's condition stays unchanged.
        self._has_result, self._failures = False, 0
        registry.register(self)

    async def run(self) -> None:
        """Read and compare until cancelled."""
        if not self._config.prometheus_url:
            self._has_result = True
            await asyncio.Event().wait()
        async with PrometheusClient(self._config.prometheus_url, field="traffic.prometheusUrl") as prometheus:
            try:
                while True:
                    await self._update(prometheus)
                    await asyncio.sleep(self._config.interval_s)
            finally:
                # Another replica leads from now on.
                self._comparison, self._conditions, self._has_result, self._failures = None, {}, False, 0

    def conditions(self, key: str) -> list[Condition]:
        """The condition of a group: none before the first reading, Unknown if its traffic is no longer measured."""
        group, reported = self._caches.app_groups.get(key), self._conditions.get(key)
        if group is None:
            return []
        if reported is not None:
            reason, message = reported
            holds: bool | None = reason == AS_DESCRIBED
        elif find_condition(group.status.conditions, AS_DESCRIBED) is not None and self._has_result:
            holds, reason, message = None, "NoTraffic", "traffic of this group is not measured any more"
        else:
            return []
        generation = group.metadata.generation
        return [make_condition(AS_DESCRIBED, holds=holds, reason=reason, message=message, generation=generation)]

    async def _update(self, prometheus: PrometheusClient) -> None:
        try:
            reading = await read_flows(prometheus, self._config.source, self._config.window_s)
            locations = locations_of(self._caches.nodes)
            pods = list(self._caches.pods)
            # In a thread: at 10,000 workloads this takes seconds, and the leader must renew its lease.
            workloads = await asyncio.to_thread(Workloads.from_objects, pods, locations)
        except (PrometheusError, NoTrafficError) as error:
            log.change("prometheus", str(error), "cannot read traffic", error=error)
            self._note_failure()
            return
        self._has_result, self._failures = True, 0
        log.change("prometheus", "", "traffic is read again", source=reading.source.name)
        groups, membership = list(self._caches.app_groups), self._membership.copy()
        self._comparison = comparison = await asyncio.to_thread(
            compare, reading.flows, workloads, groups, self._prices, membership
        )
        self._read_at = time.time()
        # A group without traffic has no condition.
        self._set_conditions(
            {key: describe_drift(drift) for key, drift in comparison.drift.items() if drift or comparison.weights[key]}
        )
        if self._config.keep_weights:
            for group in groups:
                await self._write_weights(group, comparison.weights[group.metadata.key])

    def _note_failure(self) -> None:
        """Count a failed reading; `MAX_FAILURES` in a row, longer than a restart of Prometheus, make conditions Unknown."""
        self._failures += 1
        if self._failures == MAX_FAILURES:
            self._has_result, self._comparison = True, None
            self._set_conditions({})

    def _set_conditions(self, conditions: dict[str, tuple[str, str]]) -> None:
        before, self._conditions = self._conditions, conditions
        for key in before | conditions:
            if before.get(key) != conditions.get(key):
                self._notify(key)

    async def _write_weights(self, group: AppGroup, weights: Weights) -> None:
        key = group.metadata.key
        if not have_weights_changed(read_weights(group, MEASURED_WEIGHTS_ANNOTATION, []), weights):
            return
        text = msgspec.json.encode(weights).decode()
        patch = {"metadata": {"annotations": {MEASURED_WEIGHTS_ANNOTATION: text}}}
        try:
            await self._client.patch(APPGROUPS, group.metadata.name, patch, Object, namespace=group.metadata.namespace)
        except KubekitError as error:
            fix = "apply the component measured-weights" if isinstance(error, ApiError) and error.is_forbidden else ""
            log.change(f"weights/{key}", str(error), "cannot write measured weights", group=key, error=error, fix=fix)
        else:
            log.change(f"weights/{key}", "", "measured weights can be written again", group=key)
            log.info("measured weights written", group=key, dependencies=sum(len(row) for row in weights.values()))

    def collect(self) -> Iterator[Metric]:
        """The metric families; without samples on replicas that do not lead, and without Prometheus."""
        drift = GaugeMetricFamily(
            "netaware_appgroup_traffic_drift",
            "Dependencies that differ from traffic: new, gone, grown to ten times minBandwidth.",
            labels=("namespace", "appgroup", "kind"),
        )
        rates = GaugeMetricFamily(
            "netaware_appgroup_traffic_bytes_per_second",
            "Traffic of the group's calls; crossing: true between zones, else false.",
            labels=("namespace", "appgroup", "crossing"),
        )
        months = GaugeMetricFamily(
            "netaware_appgroup_traffic_cost_per_month",
            "Cost of the traffic of the group's calls in a month of 730 hours.",
            labels=("namespace", "appgroup", "currency"),
        )
        pairs = GaugeMetricFamily(
            "netaware_zone_pair_traffic_bytes_per_second",
            "Requests and responses of calls, by the zones of caller and callee.",
            labels=("client_zone", "server_zone"),
        )
        read_at = GaugeMetricFamily(
            "netaware_traffic_read_timestamp_seconds", "When traffic was last read from Prometheus."
        )
        comparison = self._comparison  # A copy, because metrics are collected in a thread and the leadership may end.
        if self._read_at is not None and comparison is not None:
            read_at.add_metric((), self._read_at)
            for key, drifts in comparison.drift.items():
                for kind in KINDS:
                    drift.add_metric((*split_key(key), kind), sum(d.kind == kind for d in drifts))
            self._add_costs(comparison.cost, rates, months, pairs)
        yield from (drift, rates, months, pairs, read_at)

    def _add_costs(
        self, cost: TrafficCost, rates: GaugeMetricFamily, months: GaugeMetricFamily, pairs: GaugeMetricFamily
    ) -> None:
        totals: dict[str, tuple[float, float]] = {}
        for dependency in cost.dependencies:
            if dependency.group:
                within_zone, crossing = totals.get(dependency.group, (0.0, 0.0))
                crossing += dependency.crossing_bytes_per_s
                within_zone += dependency.bytes_per_s - dependency.crossing_bytes_per_s
                totals[dependency.group] = within_zone, crossing
        for key, (within_zone, crossing) in totals.items():
            rates.add_metric((*split_key(key), "false"), within_zone)
            rates.add_metric((*split_key(key), "true"), crossing)
        for key, month in cost.groups.items():
            if key:
                months.add_metric((*split_key(key), cost.currency), month)
        for pair in cost.zone_pairs:
            pairs.add_metric((pair.client_zone, pair.server_zone), pair.bytes_per_s)


def describe_drift(drift: Sequence[Drift]) -> tuple[str, str]:
    """Reason and message of the condition; without rates, because each change would be a write."""
    if not drift:
        return AS_DESCRIBED, "calls are those that the AppGroup declares"
    words = {
        "new": "is not declared",
        "gone": "is declared, and no calls were seen",
        "grown": "moves ten times its minBandwidth",
    }
    shown = "; ".join(
        f"{split_key(d.client)[1]} -> {split_key(d.server)[1]} {words[d.kind]}" for d in drift[:SHOWN_DRIFTS]
    )
    more = f"; and {len(drift) - SHOWN_DRIFTS} more" if len(drift) > SHOWN_DRIFTS else ""
    return "Drift", f"{shown}{more}: see kubectl netaware propose"


def have_weights_changed(old: Edges, measured: Weights) -> bool:
    """Whether ratios or total differ enough for a write. False if nothing was measured."""
    new = by_edge(measured)
    old_total, new_total = sum(old.values()), sum(new.values())
    if new_total <= 0 or old_total <= 0:
        return new_total > 0
    shares = ((old.get(edge, 0.0) / old_total, new.get(edge, 0.0) / new_total) for edge in old.keys() | new.keys())
    moved_share = sum(abs(before - after) for before, after in shares) / 2
    return moved_share >= MOVED_SHARE or not 1 / TOTAL_FACTOR < new_total / old_total < TOTAL_FACTOR
