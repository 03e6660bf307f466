"""Reads traffic on the leader; reports drift in conditions, prices in metrics, and measured weights in annotations of AppGroups.

Weights are written only after a large change: plans use only their ratios, which fluctuate during the day.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.costs import locations_of
from controller.cluster.crds import APPGROUPS, AppGroup
from controller.cluster.membership import Membership
from controller.cluster.statuses import ConditionState, make_conditions
from controller.prometheus import PrometheusClient, PrometheusError
from controller.traffic.config import TrafficConfig
from controller.traffic.drift import Drift, DriftKind, compare_groups
from controller.traffic.metrics import TrafficMetrics
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
DRIFT_TEXTS: Mapping[DriftKind, str] = {
    "new": "is not declared",
    "gone": "is declared, and no calls were seen",
    "grown": "moves more than ten times its minBandwidth",
}
MIN_MOVED_SHARE = 0.1
"""Weights are written if at least this share of traffic moved between dependencies."""
MIN_TOTAL_FACTOR = 2.0
"""Weights are written if total traffic rose or fell by this factor."""
MAX_FAILURES = 3
"""Failed readings in a row after which conditions become Unknown; longer than a restart of Prometheus."""


class TrafficController:
    """Compares AppGroups with traffic while this replica leads, with pauses of ``intervalS``, if ``prometheusUrl`` is set.

    ``client`` is fenced by the leadership, the caller updates ``membership``, and ``notify`` gets the key of a group with a new condition.
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
        self._metrics = TrafficMetrics(registry)
        self._condition_states: dict[str, ConditionState] = {}
        """Key of an AppGroup with measured traffic -> its condition."""
        self._failure_count = 0
        self._has_result = False
        """False until the first reading or `MAX_FAILURES`: until then, conditions stay as an earlier leader wrote them."""

    async def run(self) -> None:
        """Read and compare until cancelled."""
        if not self._config.prometheus_url:
            self._has_result = True
            await asyncio.Event().wait()
        prometheus = PrometheusClient(self._config.prometheus_url, field="traffic.prometheusUrl")
        try:
            while True:
                await self._read_and_compare(prometheus)
                await asyncio.sleep(self._config.interval_s)
        finally:
            # Another replica leads from now on.
            self._metrics.result, self._condition_states = None, {}
            self._failure_count, self._has_result = 0, False

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
        self._failure_count, self._has_result = 0, True
        log.log_change("prometheus", "", "traffic is read again", source=measured.source.name)
        groups, membership = list(self._cache.app_groups), self._membership.copy()
        comparison = await asyncio.to_thread(
            compare_groups,
            measured.flows,
            workloads,
            groups,
            self._prices,
            membership=membership,
            netaware_namespace=self._cache.netaware_namespace,
        )
        self._metrics.result = comparison, time.time()
        weights_by_group = comparison.weights_by_group
        # A group without traffic has no condition.
        drifts = comparison.drift_by_group.items()
        self._set_conditions({key: describe_drifts(drift) for key, drift in drifts if drift or weights_by_group[key]})
        if self._config.keep_weights:
            for group in groups:
                await self._write_weights(group, weights_by_group[group.metadata.key])

    def _record_failure(self) -> None:
        """Count a failed reading; `MAX_FAILURES` in a row make conditions Unknown."""
        self._failure_count += 1
        if self._failure_count == MAX_FAILURES:
            self._metrics.result, self._has_result = None, True
            self._set_conditions({})

    def _set_conditions(self, states: dict[str, ConditionState]) -> None:
        earlier_states, self._condition_states = self._condition_states, states
        for key in earlier_states | states:
            if earlier_states.get(key) != states.get(key):
                self._notify(key)

    async def _write_weights(self, group: AppGroup, weights: Weights) -> None:
        key = group.metadata.key
        topic = f"weights/{key}"
        if not must_write_weights(read_weights(group, MEASURED_WEIGHTS_ANNOTATION, []), weights):
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


def describe_drifts(drifts: Sequence[Drift]) -> ConditionState:
    """The condition AsDescribed; its message is without rates, because each change of the message is a write."""
    if not drifts:
        return ConditionState(AS_DESCRIBED, "calls are those that the AppGroup declares", holds=True)
    texts = [f"{split_key(d.client)[1]} -> {split_key(d.server)[1]} {DRIFT_TEXTS[d.kind]}" for d in drifts]
    message = f"{join_first(texts, MAX_DRIFTS_SHOWN, '; ')}: see kubectl netaware propose"
    return ConditionState("Drift", message, holds=False)


def must_write_weights(old: WeightByEdge, measured: Weights) -> bool:
    """Whether shares or the total differ enough for a write. Never if nothing was measured, always for the first weights."""
    new = flatten_weights(measured)
    old_total, new_total = sum(old.values()), sum(new.values())
    if new_total <= 0 or old_total <= 0:
        return new_total > 0
    shares = ((old.get(edge, 0.0) / old_total, new.get(edge, 0.0) / new_total) for edge in old.keys() | new.keys())
    moved_share = sum(abs(before - after) for before, after in shares) / 2
    return moved_share >= MIN_MOVED_SHARE or not 1 / MIN_TOTAL_FACTOR < new_total / old_total < MIN_TOTAL_FACTOR
