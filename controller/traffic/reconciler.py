"""Reads traffic on the leader; reports drift in conditions, prices in metrics, and measured weights in annotations of AppGroups.

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

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.costs import locations_of
from controller.cluster.crds import APPGROUPS, AppGroup
from controller.cluster.membership import Membership
from controller.cluster.statuses import ConditionState, make_conditions
from controller.prometheus import PrometheusClient, PrometheusError
from controller.traffic.bill import TrafficBill, compute_bill, map_workloads_to_groups
from controller.traffic.config import TrafficConfig
from controller.traffic.drift import Drift, DriftKind, compute_weights, find_drift, local_keys_by_selector
from controller.traffic.graph import Flow, ObservedDependency, TrafficGraph, build_traffic_graph
from controller.traffic.prices import PriceTable
from controller.traffic.sources import NoTrafficError, read_flows
from controller.traffic.weights import WeightByEdge, Weights, flatten_weights, read_weights
from controller.traffic.workloads import Workloads
from kubekit import logs
from kubekit.client import Client
from kubekit.conditions import find_condition
from kubekit.errors import ApiError, KubekitError
from kubekit.text import join_first
from kubekit.wire import Condition, Object, split_key
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION

log = logs.get("controller.traffic")

AS_DESCRIBED = "AsDescribed"
"""Type of an AppGroup's condition, and its reason if True: traffic and AppGroup agree."""
MAX_DRIFTS_SHOWN = 3
"""Differences that a message names."""
MIN_MOVED_SHARE = 0.1
"""Weights are written if at least this share of traffic moved between dependencies."""
MIN_TOTAL_FACTOR = 2.0
"""Weights are written if total traffic rose or fell by this factor."""
MAX_FAILURES = 3
"""Failed readings in a row after which conditions become Unknown; longer than a restart of Prometheus."""
DRIFT_KINDS: Sequence[DriftKind] = get_args(DriftKind)


class Comparison(msgspec.Struct, frozen=True):
    """The price of all traffic, and drift and measured weights of each AppGroup by ``namespace/name``."""

    bill: TrafficBill
    drift_by_group: Mapping[str, Sequence[Drift]]
    weights_by_group: Mapping[str, Weights]


def compare_groups(
    flows: Iterable[Flow],
    workloads: Workloads,
    groups: Sequence[AppGroup],
    prices: PriceTable | None,
    *,
    membership: Membership,
    netaware_namespace: str,
) -> Comparison:
    """Compare AppGroups with flows; ``membership`` decides to which AppGroup a workload's price belongs. Pure."""
    resolved, _ = workloads.resolve(flows)
    graph = build_traffic_graph(resolved, netaware_namespace)
    # The index by client avoids a scan of all traffic for each group.
    by_client: dict[str, list[ObservedDependency]] = defaultdict(list)
    for d in graph.dependencies:
        by_client[d.client.key].append(d)
    drift_by_group: dict[str, Sequence[Drift]] = {}
    weights_by_group: dict[str, Weights] = {}
    for group in groups:
        clients = dict.fromkeys(local_keys_by_selector(group).values())
        calls = TrafficGraph(tuple(d for client in clients for d in by_client.get(client, ())))
        drift_by_group[group.metadata.key] = find_drift(group, calls)
        weights_by_group[group.metadata.key] = compute_weights(group, calls)
    bill = compute_bill(graph, workloads, prices, map_workloads_to_groups(membership))
    return Comparison(bill, drift_by_group, weights_by_group)


class TrafficController:
    """Compares AppGroups with traffic while this replica leads, with pauses of ``intervalS``, if ``prometheusUrl`` is set.

    ``client`` is fenced by the leadership, ``membership`` is updated by the caller, and ``notify`` is called with an AppGroup's key when
    its conditions have changed.
    """

    def __init__(
        self,
        client: Client,
        cache: ClusterCache,
        config: TrafficConfig,
        registry: CollectorRegistry,
        *,
        membership: Membership,
        notify: Callable[[str], None],
    ) -> None:
        self._client, self._cache, self._config, self._notify = client, cache, config, notify
        self._membership, self._prices = membership, config.prices.resolve()
        self._comparison: Comparison | None = None
        self._condition_states: dict[str, ConditionState] = {}
        """Key of an AppGroup with measured traffic -> its condition."""
        self._read_at: float | None = None
        # False until the first reading or `MAX_FAILURES`: until then, conditions stay as an earlier leader wrote them.
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
                    await self._read_and_compare(prometheus)
                    await asyncio.sleep(self._config.interval_s)
            finally:
                # Another replica leads from now on.
                self._comparison, self._condition_states, self._has_result, self._failures = None, {}, False, 0

    def conditions(self, key: str) -> list[Condition]:
        """The condition AsDescribed of a group: Unknown if its traffic is no longer measured, none if it was not measured yet."""
        group, state = self._cache.app_groups.get(key), self._condition_states.get(key)
        if group is None:
            return []
        if state is None:
            if find_condition(group.status.conditions, AS_DESCRIBED) is None or not self._has_result:
                return []
            state = ConditionState("NoTraffic", "traffic of this group is not measured any more", holds=None)
        return make_conditions({AS_DESCRIBED: state}, group.metadata.generation)

    async def _read_and_compare(self, prometheus: PrometheusClient) -> None:
        """Read once, and update conditions, metrics and, with ``keepWeights``, annotations; a failure is logged and counted."""
        try:
            measured = await read_flows(prometheus, self._config.source, self._config.window_s)
            locations = locations_of(self._cache.nodes)
            pods = list(self._cache.pods)
            # Thousands of workloads take seconds, in which the leader must renew its lease.
            workloads = await asyncio.to_thread(Workloads.from_objects, pods, locations)
        except (PrometheusError, NoTrafficError) as error:
            log.log_change("prometheus", str(error), "cannot read traffic", error=error)
            self._record_failure()
            return
        self._has_result, self._failures = True, 0
        log.log_change("prometheus", "", "traffic is read again", source=measured.source.name)
        groups, membership = list(self._cache.app_groups), self._membership.copy()
        self._comparison = comparison = await asyncio.to_thread(
            compare_groups,
            measured.flows,
            workloads,
            groups,
            self._prices,
            membership=membership,
            netaware_namespace=self._cache.netaware_namespace,
        )
        self._read_at = time.time()
        weights_by_group = comparison.weights_by_group
        # A group without traffic has no condition.
        drifts = comparison.drift_by_group.items()
        self._set_conditions({key: describe_drift(drift) for key, drift in drifts if drift or weights_by_group[key]})
        if self._config.keep_weights:
            for group in groups:
                await self._write_weights(group, weights_by_group[group.metadata.key])

    def _record_failure(self) -> None:
        """Count a failed reading; `MAX_FAILURES` in a row make conditions Unknown."""
        self._failures += 1
        if self._failures == MAX_FAILURES:
            self._has_result, self._comparison = True, None
            self._set_conditions({})

    def _set_conditions(self, states: dict[str, ConditionState]) -> None:
        before, self._condition_states = self._condition_states, states
        for key in before | states:
            if before.get(key) != states.get(key):
                self._notify(key)

    async def _write_weights(self, group: AppGroup, weights: Weights) -> None:
        key, topic = group.metadata.key, f"weights/{group.metadata.key}"
        if not have_weights_changed(read_weights(group, MEASURED_WEIGHTS_ANNOTATION, []), weights):
            return
        text = msgspec.json.encode(weights).decode()
        patch = {"metadata": {"annotations": {MEASURED_WEIGHTS_ANNOTATION: text}}}
        try:
            await self._client.patch(APPGROUPS, group.metadata.name, patch, Object, namespace=group.metadata.namespace)
        except KubekitError as error:
            fix = "apply the component measured-weights" if isinstance(error, ApiError) and error.is_forbidden else ""
            log.log_change(topic, str(error), "cannot write measured weights", group=key, error=error, fix=fix)
        else:
            log.log_change(topic, "", "measured weights can be written again", group=key)
            log.info("measured weights written", group=key, dependencies=sum(len(row) for row in weights.values()))

    def collect(self) -> Iterator[Metric]:
        """The metric families; without samples before the first reading, after `MAX_FAILURES`, and on replicas that do not lead."""
        drift = GaugeMetricFamily(
            "netaware_appgroup_traffic_drift",
            "Dependencies that differ from traffic: new, gone, grown beyond ten times minBandwidth.",
            labels=("namespace", "appgroup", "kind"),
        )
        rates = GaugeMetricFamily(
            "netaware_appgroup_traffic_bytes_per_second",
            "Traffic of the group's calls; crossing: true between zones, else false.",
            labels=("namespace", "appgroup", "crossing"),
        )
        prices = GaugeMetricFamily(
            "netaware_appgroup_traffic_price_per_month",
            "Price of the traffic of the group's calls in a month of 730 hours.",
            labels=("namespace", "appgroup", "currency"),
        )
        zone_pairs = GaugeMetricFamily(
            "netaware_zone_pair_traffic_bytes_per_second",
            "Requests and responses of calls, by the zones of caller and callee.",
            labels=("client_zone", "server_zone"),
        )
        read_at = GaugeMetricFamily(
            "netaware_traffic_read_timestamp_seconds", "When traffic was last read from Prometheus."
        )
        comparison = self._comparison  # Metrics are collected in a thread, and the leadership may end meanwhile.
        if self._read_at is not None and comparison is not None:
            read_at.add_metric((), self._read_at)
            for key, drifts in comparison.drift_by_group.items():
                for kind in DRIFT_KINDS:
                    drift.add_metric((*split_key(key), kind), sum(d.kind == kind for d in drifts))
            bill = comparison.bill
            _add_group_rates(rates, bill)
            for key, price in bill.monthly_price_by_group.items():
                if key:
                    prices.add_metric((*split_key(key), bill.currency), price)
            for pair in bill.zone_pairs:
                zone_pairs.add_metric((pair.client_zone, pair.server_zone), pair.bytes_per_s)
        yield from (drift, rates, prices, zone_pairs, read_at)


def _add_group_rates(rates: GaugeMetricFamily, bill: TrafficBill) -> None:
    """Add each group's bytes per second within zones and between zones."""
    total: dict[str, float] = defaultdict(float)
    crossing: dict[str, float] = defaultdict(float)
    for dependency in bill.dependencies:
        if dependency.group:
            total[dependency.group] += dependency.bytes_per_s
            crossing[dependency.group] += dependency.crossing_bytes_per_s
    for key, bytes_per_s in total.items():
        rates.add_metric((*split_key(key), "false"), bytes_per_s - crossing[key])
        rates.add_metric((*split_key(key), "true"), crossing[key])


def describe_drift(drift: Sequence[Drift]) -> ConditionState:
    """The condition AsDescribed; its message is without rates, because each change of the message is a write."""
    if not drift:
        return ConditionState(AS_DESCRIBED, "calls are those that the AppGroup declares", holds=True)
    words = {
        "new": "is not declared",
        "gone": "is declared, and no calls were seen",
        "grown": "moves more than ten times its minBandwidth",
    }
    texts = [f"{split_key(d.client)[1]} -> {split_key(d.server)[1]} {words[d.kind]}" for d in drift]
    message = f"{join_first(texts, MAX_DRIFTS_SHOWN, '; ')}: see kubectl netaware propose"
    return ConditionState("Drift", message, holds=False)


def have_weights_changed(old: WeightByEdge, measured: Weights) -> bool:
    """Whether ratios or the total differ enough for a write; False if nothing was measured, True for the first weights."""
    new = flatten_weights(measured)
    old_total, new_total = sum(old.values()), sum(new.values())
    if new_total <= 0 or old_total <= 0:
        return new_total > 0
    shares = ((old.get(edge, 0.0) / old_total, new.get(edge, 0.0) / new_total) for edge in old.keys() | new.keys())
    moved_share = sum(abs(before - after) for before, after in shares) / 2
    return moved_share >= MIN_MOVED_SHARE or not 1 / MIN_TOTAL_FACTOR < new_total / old_total < MIN_TOTAL_FACTOR
