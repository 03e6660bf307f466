"""Writes the probe plan, one ConfigMap for each origin zone; creates results ConfigMaps, and removes results no longer planned."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from controller.cluster.cluster_cache import ClusterCache, call_unless
from controller.cluster.crds import FIELD_MANAGER, NetworkTopology
from controller.cluster.pod_info import PodInfo
from controller.topology.config import TopologyConfig
from controller.topology.probe_nodes import agent_pods_by_node, is_probe_node_unchanged, to_probe_node
from controller.topology.results_names import ObjectName, list_results_names
from controller.topology.status import MAX_NAMES_SHOWN
from kubekit import logs
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError
from kubekit.fence import boot_clock
from kubekit.wire import CONFIGMAPS, ConfigMap, Node, Object
from kubekit.workqueue import WorkQueue
from netperf.configmap_size import ConfigMapTooLargeError
from netperf.contract import PART_OF_LABELS, PLAN_LABEL, ZONE_LABEL
from netperf.pairs import ProbePlan, plan_probes
from netperf.plans import ZonePlan, decode_plan, encode_plan, plan_object_name
from netperf.refusals import PlanRefusedError
from netperf.results import find_keys_to_remove, list_planned_keys

log = logs.get("controller.topology.planner")

PLAN_KEY = "plan"
"""The only key of the queue."""
REPLAN_INTERVAL_S = 60.0
"""Longest time between two plans."""
EXPECTED_ROUNDS = 2
"""Probing rounds, of at least `REPLAN_INTERVAL_S`, for which results of an earlier plan are accepted: agents read new plans late."""
DEBOUNCE_S = 1.0
"""Delay of a plan after a change, because nodes change in bursts."""


class _ComputedPlan(NamedTuple):
    """The stored plans by zone, the new plan, its keys of results, those of both, and the number of zones with nodes."""

    stored_plan_by_zone: dict[str, ZonePlan]
    plan: ProbePlan
    planned_keys: Collection[str]
    expected_keys: Collection[str]
    zone_count: int


class ProbePlanner:
    """Plans probes between the nodes, writes the plan, creates results ConfigMaps, and removes results that are not planned.

    ``interval_s`` is the length of a probing round; before the first plan, the configured one. ``zone_count`` is the number of zones with
    nodes, 0 before the first plan.
    """

    def __init__(
        self, client: Client, cache: ClusterCache, config: TopologyConfig, registry: CollectorRegistry
    ) -> None:
        self.interval_s = config.probing.interval_s
        self.zone_count = 0
        self._client, self._cache, self._config, self._namespace = client, cache, config, cache.netaware_namespace
        self._queue = WorkQueue()
        self._plan_by_zone: dict[str, ZonePlan] = {}
        self._expected_until_s_by_key: dict[str, float] | None = None
        gauge = partial(Gauge, registry=registry)
        self._zone_pairs_gauge = gauge("netaware_probe_plan_zone_pairs", "Pairs of zones that the probe plan measures.")
        self._interval_gauge = gauge("netaware_probe_plan_interval_seconds", "Length of a probing round.")
        left_out = "Nodes and zones that take no part in probing."
        self._left_out_gauge = gauge("netaware_probe_plan_left_out", left_out, ["reason"])
        help_text = (
            "Writes: plan-written, plan-deleted, plan-too-large (not written), results-created, results-keys-removed."
        )
        self._changes = Counter("netaware_probe_plan_writes", help_text, ["result"], registry=registry)
        cache.nodes.subscribe(call_unless(is_probe_node_unchanged, self._schedule_plan))
        cache.agent_pods.subscribe(self._schedule_plan)
        cache.plans.subscribe(self._schedule_plan)  # Somebody may edit or delete a plan.

    def list_results_names(self, *topologies: NetworkTopology) -> list[ObjectName]:
        """Names of the ConfigMaps with results: first those that agents write, then those that the NetworkTopologies name."""
        return list_results_names(topologies, self._plan_by_zone.values(), self._namespace, self.zone_count)

    def _schedule_plan(self, *_: object) -> None:
        self._queue.add_after(PLAN_KEY, DEBOUNCE_S)

    async def run(self) -> None:
        """Write plans until cancelled."""
        self._expected_until_s_by_key = None
        self._queue.add(PLAN_KEY)
        await self._queue.work(self._reconcile, name="planner")

    @property
    def expected_keys(self) -> Collection[str] | None:
        """Keys of results of the current plan and, for `EXPECTED_ROUNDS` more, of earlier plans; None before the first plan."""
        return None if self._expected_until_s_by_key is None else self._expected_until_s_by_key.keys()

    async def _reconcile(self, _: str) -> float:
        plan_objects = {plan_object.metadata.name: plan_object for plan_object in self._cache.plans}
        nodes, pods = list(self._cache.nodes), list(self._cache.agent_pods)
        # In a thread: a plan of 100 zones takes long, and the leader must renew its lease.
        computed = await asyncio.to_thread(self._compute_plan, plan_objects, nodes, pods, time.time())
        plan, self.zone_count = computed.plan, computed.zone_count
        self._expect_keys(computed.expected_keys)
        for results_name in sorted({zone_plan.results_name for zone_plan in plan.plan_by_zone.values()}):
            await self._create_results(ObjectName(self._namespace, results_name))
        await self._write_changed_plans(plan_objects, computed)
        self._plan_by_zone, self.interval_s = plan.plan_by_zone, plan.interval_s
        self._report_plan(plan)
        await self._remove_obsolete_results(computed.planned_keys)
        return min(REPLAN_INTERVAL_S, self.interval_s)

    async def _write_changed_plans(self, plan_objects: Mapping[str, ConfigMap], computed: _ComputedPlan) -> None:
        plan_by_name = {plan_object_name(zone): zone_plan for zone, zone_plan in computed.plan.plan_by_zone.items()}
        for name, zone_plan in plan_by_name.items():
            is_stored = name in plan_objects and computed.stored_plan_by_zone.get(zone_plan.zone) == zone_plan
            try:
                if not is_stored:
                    await self._write_plan(name, zone_plan, plan_objects.get(name))
                log.log_change(f"size/{name}", "", "plan is small enough again", zone=zone_plan.zone)
            except ConfigMapTooLargeError as error:  # Plans of other zones are still written.
                self._changes.labels("plan-too-large").inc()
                log.log_change(f"size/{name}", "large", "plan not written", zone=zone_plan.zone, error=error)
        for name in sorted(plan_objects.keys() - plan_by_name.keys()):
            await self._client.delete(CONFIGMAPS, name, namespace=self._namespace)
            self._changes.labels("plan-deleted").inc()

    async def _create_results(self, results_name: ObjectName) -> None:
        """Create a results ConfigMap if it does not exist, because agents may only update it."""
        if self._cache.results.get(str(results_name)) is not None:
            return
        body = {**CONFIGMAPS.type_meta, "metadata": {"name": results_name.name, "labels": PART_OF_LABELS}}
        try:
            await self._client.create(CONFIGMAPS, body, Object, namespace=results_name.namespace)
        except ApiError as error:
            if not error.is_already_exists:
                raise
            return
        self._changes.labels("results-created").inc()
        log.info("results ConfigMap created", object=results_name)

    def _compute_plan(
        self, plan_objects: Mapping[str, ConfigMap], nodes: Sequence[Node], pods: Sequence[PodInfo], wall_s: float
    ) -> _ComputedPlan:
        stored_plan_by_zone, agent_pods = _decode_plans(plan_objects), agent_pods_by_node(pods)
        probe_nodes = [to_probe_node(node, agent_pods) for node in nodes]
        plan = plan_probes(probe_nodes, self._config.probing, stored_plan_by_zone, wall_s)
        # Another leader may have written the stored plans, so their keys may not be expected yet.
        keys, stored_keys = (list_planned_keys(plans.values()) for plans in (plan.plan_by_zone, stored_plan_by_zone))
        zone_count = len({node.zone for node in probe_nodes} - {""})
        return _ComputedPlan(stored_plan_by_zone, plan, keys, keys | stored_keys, zone_count)

    def _expect_keys(self, keys: Collection[str]) -> None:
        """Accept results with these keys until `EXPECTED_ROUNDS` after the keys are no longer planned."""
        now_s = boot_clock()
        until_s = now_s + EXPECTED_ROUNDS * max(self.interval_s, REPLAN_INTERVAL_S)
        old_until_s_by_key = self._expected_until_s_by_key or {}
        unexpired = {key: old_until_s for key, old_until_s in old_until_s_by_key.items() if old_until_s > now_s}
        self._expected_until_s_by_key = unexpired | dict.fromkeys(keys, until_s)

    async def _write_plan(self, name: str, plan: ZonePlan, stored: ConfigMap | None) -> None:
        metadata: dict[str, Any] = {"name": name, "namespace": self._namespace}
        metadata |= {"labels": {PLAN_LABEL: "true", **PART_OF_LABELS}, "annotations": {ZONE_LABEL: plan.zone}}
        if stored is not None:
            # The API server answers with a conflict if the plan has changed since it was read.
            metadata["resourceVersion"] = stored.metadata.resource_version
        body = {**CONFIGMAPS.type_meta, "metadata": metadata, "data": encode_plan(plan)}
        await self._client.apply(CONFIGMAPS, name, body, Object, field_manager=FIELD_MANAGER, namespace=self._namespace)
        self._changes.labels("plan-written").inc()
        log.info("plan written", zone=plan.zone, probes=len(plan.probes), epoch=plan.epoch, interval_s=plan.interval_s)

    def _report_plan(self, plan: ProbePlan) -> None:
        self._zone_pairs_gauge.set(plan.zone_pair_count)
        self._interval_gauge.set(plan.interval_s)
        self._left_out_gauge.clear()
        for reason, count in collections.Counter(refusal.reason for refusal in plan.refusals).items():
            self._left_out_gauge.labels(reason).set(count)
        shown = ", ".join(f"{refusal.key} ({refusal.reason})" for refusal in plan.refusals[:MAX_NAMES_SHOWN])
        count, state = len(plan.refusals), ",".join(f"{refusal.key}/{refusal.reason}" for refusal in plan.refusals)
        message = (
            "nodes or zones take no part in probing" if plan.refusals else "all nodes and zones take part in probing"
        )
        log.log_change("left-out", state, message, level="info", count=count, first=shown)

    async def _remove_obsolete_results(self, planned_keys: Collection[str]) -> None:
        """Remove keys that are refused or not planned, so that objects do not grow without limit."""
        for results_name in self.list_results_names():
            results = self._cache.results.get(str(results_name))
            if results is None:
                continue
            obsolete_keys = await asyncio.to_thread(find_keys_to_remove, results.data or {}, planned_keys)
            if not obsolete_keys:
                continue
            try:
                await self._client.patch(
                    CONFIGMAPS,
                    results_name.name,
                    {"data": dict.fromkeys(sorted(obsolete_keys))},  # None removes a key
                    Object,
                    patch_type=MERGE_PATCH,
                    namespace=results_name.namespace,
                    field_manager=FIELD_MANAGER,
                )
            except ApiError as error:
                if not error.is_not_found:
                    raise
                continue
            self._changes.labels("results-keys-removed").inc(len(obsolete_keys))
            log.info("removed results that are unreadable or not planned", object=results_name, keys=len(obsolete_keys))


def _decode_plans(plan_objects: Mapping[str, ConfigMap]) -> dict[str, ZonePlan]:
    """Readable plans by zone. An unreadable plan is omitted, and so it is written again."""
    plan_by_zone: dict[str, ZonePlan] = {}
    for name, plan_object in plan_objects.items():
        try:
            plan = decode_plan(plan_object.data).plan
        except PlanRefusedError as error:
            message = "the probe plan is unreadable and is written again"
            log.log_change(f"unreadable/{name}", error.reason, message, object=name, error=error)
            continue
        log.log_change(f"unreadable/{name}", "", "the probe plan is readable again", object=name)
        if plan_object_name(plan.zone) == name:
            plan_by_zone[plan.zone] = plan
    return plan_by_zone
