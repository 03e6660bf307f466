"""Keeps the probe plan: one ConfigMap per origin zone, rewritten only when that zone's part of the plan changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge

from controller.caches import PLAN_LABEL, Caches, OwnWrites
from controller.resources import FIELD_MANAGER, ZONE_LABEL
from controller.topology.config import TopologyConfig
from controller.topology.places import agent_pods_by_node, draw_map, facts_of, same_facts
from controller.topology.results import ObjectName, ResultsMirror
from controller.topology.silence import Listening, listen, without_suspects
from controller.topology.sweep import keys_to_remove
from kubekit import logs
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError
from kubekit.lease import boot_clock
from kubekit.wire import CONFIGMAPS, ConfigMap, Node, Object, Pod
from kubekit.workqueue import WorkQueue
from netperf.errors import PlanRefusedError, TooLargeError
from netperf.pairs import PairPlan, plan_pairs
from netperf.plans import ZonePlan, decode_plan, encode_plan, plan_object_name
from netperf.results import decode_results, removal_patch, shard_names

log = logs.get("controller.topology.planner")

PLAN = "plan"
REPLAN_S = 60.0


class Changes(msgspec.Struct, frozen=True):
    """What to do to the plan objects: data by name to write, names to delete."""

    write: dict[str, ZonePlan]
    delete: tuple[str, ...]


def plan_changes(plan: PairPlan, previous: Mapping[str, ZonePlan], objects: Mapping[str, ConfigMap]) -> Changes:
    """Compare a plan with the objects that hold the previous one; empty when they say the same.

    Args:
        plan: what should be.
        previous: plans that could be read, by zone.
        objects: all plan objects by name.
    """
    write = {
        plan_object_name(zone): wanted
        for zone, wanted in plan.zones.items()
        if previous.get(zone) != wanted or plan_object_name(zone) not in objects
    }
    wanted_names = {plan_object_name(zone) for zone in plan.zones}
    return Changes(write, tuple(sorted(objects.keys() - wanted_names)))


class Planner:
    """Makes the plan from the node mirror and writes it; removes results that nobody will write again.

    Attributes:
        interval_s: length of a round of the plan in force.
    """

    def __init__(
        self,
        client: Client,
        caches: Caches,
        config: TopologyConfig,
        registry: CollectorRegistry,
        *,
        namespace: str,
        results: ResultsMirror,
        clock: Callable[[], float] = boot_clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._caches, self._config, self._namespace = client, caches, config, namespace
        self._results, self._clock, self._wall = results, clock, wall
        self.interval_s = config.probing.interval_s
        self._queue = WorkQueue()
        self._own: OwnWrites[ConfigMap] = OwnWrites(caches.plans)
        self._plans: dict[str, ZonePlan] = {}
        self._listening = Listening()
        self._links = Gauge(
            "netaware_plan_zone_pairs", "Pairs of zones that the probe plan measures.", registry=registry
        )
        self._interval = Gauge("netaware_plan_interval_seconds", "Length of a probing round.", registry=registry)
        self._left_out = Gauge(
            "netaware_plan_left_out", "Nodes and zones that take no part in probing.", ["reason"], registry=registry
        )
        self._silent = Gauge(
            "netaware_plan_silent_nodes", "Nodes left out because no sample comes from them.", registry=registry
        )
        self._writes = Counter(
            "netaware_plan_writes",
            "Plan objects written or deleted, results keys removed.",
            ["what"],
            registry=registry,
        )
        caches.nodes.subscribe(self._node_changed)
        caches.agent_pods.subscribe(self._agent_pod_changed)
        caches.plans.subscribe(self._plan_changed)

    @property
    def result_objects(self) -> list[ObjectName]:
        """The ConfigMaps that our agents write to."""
        base = self._config.probing.results_name
        zones = {node.metadata.label(ZONE_LABEL) for node in self._caches.nodes} - {""}
        shards = set(shard_names(base, len(zones)))
        return [ObjectName(self._namespace, n) for n in sorted(shards | {p.results for p in self._plans.values()})]

    def _node_changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        if not same_facts(old, new):
            self._queue.add_after(PLAN, self._config.plan_settle_s)

    def _agent_pod_changed(self, _key: str, _old: Pod | None, _new: Pod | None) -> None:
        self._queue.add_after(PLAN, self._config.plan_settle_s)

    def _plan_changed(self, key: str, _old: ConfigMap | None, _new: ConfigMap | None) -> None:
        self._own.newest(key)
        self._queue.add_after(PLAN, self._config.plan_settle_s)

    async def run(self) -> None:
        """Keep the plan until cancelled."""
        self._own.forget()
        self._listening = Listening()
        self._queue.add(PLAN)
        await self._queue.work(self._reconcile, name="planner")

    async def _reconcile(self, _: str) -> float:
        objects = self._plan_objects()
        previous = _decode(objects)
        agents = agent_pods_by_node(self._caches.agent_pods)
        self._listen()
        facts = without_suspects((facts_of(node, agents) for node in self._caches.nodes), self._listening.quarantine)
        plan = plan_pairs(facts, self._config.probing.options(), previous, self._wall())
        changes = plan_changes(plan, previous, objects)
        for name, zone_plan in changes.write.items():
            try:
                await self._write(name, zone_plan, objects.get(name))
            except TooLargeError as error:  # the other zones' plans are not to blame
                self._writes.labels("plan-too-large").inc()
                log.change(f"size/{name}", "large", "plan not written", zone=zone_plan.zone, error=error)
        for name in changes.delete:
            await self._client.delete(CONFIGMAPS, name, namespace=self._namespace)
            self._writes.labels("plan-deleted").inc()
        self._plans, self.interval_s = plan.zones, plan.interval_s
        self._show(plan)
        await self._sweep()
        return min(REPLAN_S, self.interval_s)

    def _listen(self) -> None:
        """Find the nodes from which nothing is heard."""
        places = draw_map(self._caches.nodes).places
        samples = [
            sample
            for name in self.result_objects
            for sample in decode_results(self._results.data(name) or {}, places).samples.values()
        ]
        self._listening = listen(self._listening, self._plans.values(), samples, self._clock(), self.interval_s)
        silent = sorted(self._listening.quarantine)
        self._silent.set(len(silent))
        shown = ", ".join(silent[:5])
        log.change("silent", shown, "nodes from which no sample comes: their pairs move", count=len(silent), some=shown)

    def _plan_objects(self) -> dict[str, ConfigMap]:
        names = set(self._caches.plans.items) | {f"{self._namespace}/{plan_object_name(z)}" for z in self._plans}
        newest = {key: self._own.newest(key) for key in names}
        return {found.metadata.name: found for found in newest.values() if found is not None}

    async def _write(self, name: str, plan: ZonePlan, before: ConfigMap | None) -> None:
        body = {
            "apiVersion": CONFIGMAPS.api_version,
            "kind": CONFIGMAPS.kind,
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                **({"resourceVersion": before.metadata.resource_version} if before is not None else {}),
                "labels": {PLAN_LABEL: "true", "app.kubernetes.io/part-of": "netaware"},
                "annotations": {ZONE_LABEL: plan.zone},
            },
            "data": encode_plan(plan),
        }
        after = await self._client.apply(
            CONFIGMAPS, name, body, ConfigMap, field_manager=FIELD_MANAGER, namespace=self._namespace
        )
        self._own.note(f"{self._namespace}/{name}", before, after)
        self._writes.labels("plan-written").inc()
        log.info("plan written", zone=plan.zone, probes=len(plan.probes), epoch=plan.epoch, interval_s=plan.interval_s)

    def _show(self, plan: PairPlan) -> None:
        self._links.set(plan.links)
        self._interval.set(plan.interval_s)
        reasons = [refusal.reason for refusal in plan.left_out]
        self._left_out.clear()
        for reason in sorted(set(reasons)):
            self._left_out.labels(reason).set(reasons.count(reason))
        shown = ", ".join(f"{r.key} ({r.reason})" for r in plan.left_out[:5])
        log.change(
            "left-out", shown, "nodes or zones take no part in probing", level="info", count=len(reasons), some=shown
        )

    async def _sweep(self) -> None:
        places = draw_map(self._caches.nodes).places
        for name in self.result_objects:
            doomed = keys_to_remove(self._results.data(name) or {}, self._plans.values(), places)
            if not doomed:
                continue
            patch = removal_patch(doomed)
            try:
                await self._client.patch(
                    CONFIGMAPS,
                    name.name,
                    patch,
                    Object,
                    kind=MERGE_PATCH,
                    namespace=name.namespace,
                    field_manager=FIELD_MANAGER,
                )
            except ApiError as error:
                if not error.not_found:
                    raise
            self._writes.labels("results-keys-removed").inc(len(doomed))
            log.info("results of vanished pairs removed", object=name, keys=len(doomed))


def _decode(objects: Mapping[str, ConfigMap]) -> dict[str, ZonePlan]:
    """Plans that can be read, by zone; one that cannot is as good as absent and is written anew."""
    plans: dict[str, ZonePlan] = {}
    for name, found in objects.items():
        try:
            plan = decode_plan(found.data).plan
        except PlanRefusedError as error:
            log.change(
                name, error.reason, "plan object cannot be read, it will be written anew", object=name, error=error
            )
            continue
        if plan_object_name(plan.zone) == name:
            plans[plan.zone] = plan
    return plans
