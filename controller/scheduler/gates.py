"""The leader's part of scheduling: plans groups, opens gates in topological order, and sees to pods that got stuck.

Level-based: what to do for a group follows from its pods, its plan and the clock alone. The decision goes to the scheduler
with the release, in one patch: as an annotation that the extender reads, or as node affinity.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from prometheus_client import CollectorRegistry

from controller.appgroup.order import order
from controller.caches import Caches, OwnWrites
from controller.resources import APPGROUP_LABEL, AppGroup
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.declared import Declared
from controller.scheduler.explain import decide, decision_of, explain
from controller.scheduler.fleet import BOUND_PODS, BoundPod, Fleet
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.patches import ReleasePatch, decision_patch, opening_patch, release_patch
from controller.scheduler.planner import GroupSnapshot, Plan, plan_group
from controller.scheduler.pods import GroupPod, Target
from controller.scheduler.release import GroupQueue, Release, Turns, plan_release
from controller.scheduler.standing import StandingPlan
from controller.scheduler.state import DeletedNodeError, State
from controller.scheduler.stuck import Replace, Retry, StuckPods
from kubekit import logs
from kubekit.client import STRATEGIC_PATCH, Client
from kubekit.errors import ApiError
from kubekit.events import EventRecorder, reference
from kubekit.reflector import Reflector
from kubekit.runtime import supervise
from kubekit.wire import PODS, parse_time
from kubekit.workqueue import WorkQueue

log = logs.get("controller.scheduler.gates")

BURST_S = 0.1
"""Costs, nodes and workloads change in bursts: groups with waiting pods are looked at once per this time."""
WORKERS, _AT_ONCE = 4, 16
UNPROCESSABLE = 422

RELEASE_NOTES = {
    "no-group": "gate opened without an order: no AppGroup {group} came up in time",
    "no-workload": "gate opened without an order: AppGroup {group} has no workload {workload}",
    "waited": "gate opened out of order: it was held for {wait:.0f} s, as long as any pod may be",
}


class SchedulingController:
    """Plans, gates, retries and replacements.

    Args:
        client: fenced; only the leader writes.
        caches: the manager's mirrors; nodes, AppGroups and NetworkTopologies are taken from there.
        config: the section ``scheduler``.
        recorder: for events on pods.
        registry: for metrics.
        namespace: netaware's own.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        client: Client,
        caches: Caches,
        config: SchedulerConfig,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        *,
        namespace: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._config, self._recorder, self._clock = client, config, recorder, clock
        self.metrics = GateMetrics(registry)
        self.state, self.fleet = State(config, namespace), Fleet()
        self._pods: Reflector[GroupPod] = Reflector(client, PODS, GroupPod, label_selector=APPGROUP_LABEL)
        self._bound: Reflector[BoundPod] = Reflector(client, PODS, BoundPod, field_selector=BOUND_PODS)
        self._declared = Declared(client)
        self._queue = WorkQueue()
        self._written: OwnWrites[GroupPod] = OwnWrites(self._pods)
        self._by_label: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
        self._waiting: set[str] = set()
        self._seen_at: dict[str, float] = {}
        self._just_placed: dict[str, set[str]] = defaultdict(set)
        self._plans: dict[str, StandingPlan] = {}
        self._stuck = StuckPods(config)
        self._burst: asyncio.TimerHandle | None = None
        self._leading = False
        self.state.follow(caches.nodes, self._pods, caches.app_groups, caches.topologies)
        self.fleet.follow(caches.nodes, self._bound)
        self._pods.subscribe(self._on_pod)
        self._seen_versions = (0, 0)
        caches.nodes.subscribe(lambda *_: self._on_surroundings())
        caches.topologies.subscribe(lambda *_: self._on_surroundings())
        caches.app_groups.subscribe(lambda *_: self._on_surroundings())
        self._declared.subscribe(lambda *_: self._wake_waiting())
        self.metrics.gated.set_function(
            lambda: sum(p.gated and not p.over for p in map(self._pods.get, self._waiting) if p)
        )

    def mirrors(self) -> dict[str, Awaitable[None]]:
        """Endless tasks that keep the mirrors warm; every replica runs them, leading or not."""
        return {
            "mirror group pods": self._pods.run(),
            "mirror bound pods": self._bound.run(),
            **self._declared.tasks(),
        }

    async def run(self) -> None:
        """Work while leading, until cancelled."""
        await self._pods.settled.wait()
        await self._bound.settled.wait()
        self._written.forget()
        self._leading = True
        self._wake_waiting()
        try:
            workers = {f"gates {i}": self._work() for i in range(WORKERS)}
            await supervise(workers)
        finally:
            self._leading = False

    async def _work(self) -> None:
        await self._queue.work(self._reconcile, name="gates", base_s=0.1, cap_s=10.0)

    def _on_pod(self, key: str, old: GroupPod | None, new: GroupPod | None) -> None:
        pod = new or old
        if pod is None:
            return
        self._written.newest(key)
        namespace, label = pod.metadata.namespace, pod.group
        if new is None:
            self._by_label[label][namespace].pop(key, None)
            self._waiting.discard(key)
            self._seen_at.pop(key, None)
            self._stuck.forget(key)
        else:
            self._by_label[label][namespace][key] = None
            self._seen_at.setdefault(key, self._clock())
            (self._waiting.add if new.waiting else self._waiting.discard)(key)
        group = self._key_of(namespace, label)
        if old is not None and new is not None and old.waiting and new.bound and self._is_ours(new):
            self._just_placed[group].add(key)
        self._wake(group)

    def _key_of(self, namespace: str, label: str) -> str:
        """A group's key; one that does not exist has the key it would have in the pod's own namespace."""
        return self.state.group_of(namespace, label) or f"{namespace}/{label}"

    def _is_ours(self, pod: GroupPod) -> bool:
        names = self._config.scheduler_names
        return not names or pod.spec.scheduler_name in names or bool(self._stuck.target_of(pod))

    def _wake(self, group: str) -> None:
        if self._leading:
            self._queue.add(group)

    def _on_surroundings(self) -> None:
        """Nodes, costs or groups changed; heartbeats and our own status writes did not."""
        versions = self.state.surroundings_version, self.fleet.version
        if versions != self._seen_versions:
            self._seen_versions = versions
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        if self._leading and self._waiting and self._burst is None:
            self._burst = asyncio.get_running_loop().call_later(BURST_S, self._wake_all)

    def _wake_all(self) -> None:
        self._burst = None
        for key in self._waiting:
            pod = self._pods.get(key)
            if pod is not None:
                self._wake(self._key_of(pod.metadata.namespace, pod.group))

    def _pods_of(self, group: str) -> list[GroupPod]:
        label = group.partition("/")[2]
        keys = [
            key
            for namespace, keys in self._by_label.get(label, {}).items()
            if keys and self._key_of(namespace, label) == group
            for key in keys
        ]
        newest = (self._written.newest(key) for key in keys)
        return [pod for pod in newest if pod is not None]

    async def _reconcile(self, group: str) -> float | None:
        pods, now = self._pods_of(group), self._clock()
        await self._tell_placed(group, pods)
        if not any(pod.waiting for pod in pods):
            self._plans.pop(group, None)
            return None
        turns = plan_release(self._queue_of(group, pods), now, self._config.gates)
        plan = self._plan(group, pods) if turns.releases or self._stuck.any(pods) else None
        await self._release_all(group, turns, plan)
        again_s = await self._see_to_stuck(group, pods, plan, now)
        return min((s for s in (turns.again_s, again_s) if s is not None), default=None)

    def _queue_of(self, group: str, pods: list[GroupPod]) -> GroupQueue:
        known = self.state.groups.get(group)
        if known is None:
            return GroupQueue({}, exists=False, pods=pods, seen_at=self._seen_at)
        return GroupQueue(
            self._order_of(group, known),
            exists=True,
            pods=pods,
            replicas=self._replicas(group, known),
            members=known.spec.num_members,
            seen_at=self._seen_at,
        )

    def _order_of(self, key: str, group: AppGroup) -> dict[str, int]:
        """The order in the status where it is the spec's, otherwise the same computed here."""
        graph = self.state.graph(key)
        listed = {item.workload.selector: item.index for item in group.status.topology_order or ()}
        fresh = group.status.observed_generation in (0, group.metadata.generation)
        if fresh and listed.keys() == set(graph.selectors):
            return listed
        sequence = order(graph.children, group.spec.topology_sorting_algorithm).sequence
        return {graph.selectors[position]: index for index, position in enumerate(sequence, start=1)}

    def _replicas(self, key: str, group: AppGroup) -> dict[str, int]:
        return self._declared.replicas(group.metadata.namespace, self.state.graph(key).workloads)

    def _plan(self, group: str, pods: list[GroupPod]) -> Plan | None:
        """The group's plan: the one there is while nothing has come in its way, or a new one."""
        known = self.state.groups.get(group)
        if not self._config.plans or known is None:
            return None
        snapshot = self._snapshot(group, known, pods)
        standing = self._plans.get(group)
        if standing is not None and standing.holds(snapshot, self.fleet.version):
            return standing.plan
        with self.metrics.planning.time():
            plan = plan_group(snapshot, most_sites=self._config.planning.most_sites)
        self._plans[group] = StandingPlan.of(snapshot, self.fleet.version, plan)
        result = "unplaced" if plan.unplaced else "violations" if plan.violations else "complete"
        self.metrics.plans.labels(result).inc()
        log.change(
            f"plan/{group}",
            "" if result == "complete" else result,
            "the group's plan is complete" if result == "complete" else "the group cannot be placed as it asks",
            group=group,
            cost=plan.cost,
            violations=plan.violations,
            unplaced=len(plan.unplaced),
        )
        return plan

    def _snapshot(self, group: str, known: AppGroup, pods: list[GroupPod]) -> GroupSnapshot:
        before = self._plans.get(group)
        return GroupSnapshot(
            graph=self.state.graph(group),
            pods=pods,
            replicas=self._replicas(group, known),
            costs=self.state.costs(known.metadata.namespace).table,
            hosts=self.fleet.hosts,
            used=self.fleet.used,
            room=self.fleet.room,
            released=self._about_to_bind(pods),
            previous=before.plan.targets if before else {},
            seats={key: seat for key in (p.metadata.key for p in pods) if (seat := self.fleet.seat_of(key))},
        )

    def _about_to_bind(self, pods: Iterable[GroupPod]) -> dict[str, Target]:
        """Targets of pods that the scheduler has in hand; a pod that it found no node for is not among them."""
        found: dict[str, Target] = {}
        for pod in pods:
            target = self._stuck.target_of(pod)
            if pod.waiting and not pod.gated and target is not None and not self._stuck.is_stuck(pod):
                found[pod.metadata.key] = target
        return found

    async def _release_all(self, group: str, turns: Turns, plan: Plan | None) -> None:
        for begin in range(0, len(turns.releases), _AT_ONCE):
            batch = turns.releases[begin : begin + _AT_ONCE]
            work = (self._release(group, release, plan) for release in batch)
            failed = [e for e in await asyncio.gather(*work, return_exceptions=True) if e is not None]
            if failed:
                raise failed[0]

    async def _release(self, group: str, release: Release, plan: Plan | None) -> None:
        pod = release.pod
        key = pod.metadata.key
        target = plan.targets.get(key) if plan is not None else None
        try:
            after = await self._patch(pod, release_patch(self.state, self._config, pod, target, self._clock()))
        except ApiError as error:
            if error.status != UNPROCESSABLE:
                raise
            # Whatever it is that may not be written: the gate opens all the same.
            log.change(f"release/{group}", error.message, "decision refused by the API server", error=error, pod=key)
            target, after = None, await self._patch(pod, opening_patch(pod))
        if after is None:
            return
        if target is None:
            cause = "unplaced" if plan is not None else "off" if not self._config.plans else "no-group"
            self.metrics.fallbacks.labels(cause).inc()
        self.metrics.released.labels(release.cause).inc()
        waited_s = self._waited_s(pod)
        self.metrics.waited.observe(waited_s)
        note = RELEASE_NOTES.get(release.cause)
        if note is not None:
            text = note.format(group=group, workload=pod.workload or "(no label)", wait=waited_s)
            self._recorder.warning(reference(PODS, pod.metadata), "GateOpened", text)
        self._wake(group)

    def _waited_s(self, pod: GroupPod) -> float:
        created = pod.metadata.creation_timestamp
        return max(self._clock() - parse_time(created), 0.0) if created else 0.0

    async def _patch(self, pod: GroupPod, patch: ReleasePatch) -> GroupPod | None:
        """Patch a pod as we saw it; None when it has changed or gone since, and the next look will tell."""
        metadata = pod.metadata
        try:
            after = await self._client.patch(
                PODS, metadata.name, patch, GroupPod, kind=STRATEGIC_PATCH, namespace=metadata.namespace
            )
        except ApiError as error:
            if error.conflict or error.not_found:
                return None
            raise
        self._written.note(metadata.key, pod, after)
        return after

    async def _see_to_stuck(self, group: str, pods: list[GroupPod], plan: Plan | None, now: float) -> float | None:
        actions, again_s = self._stuck.plan(pods, plan, self.state, now)
        for action in actions:
            if isinstance(action, Retry):
                if await self._patch(action.pod, action.patch) is not None:
                    self.metrics.retried.labels(action.cause).inc()
            else:
                await self._replace(action)
        if actions:
            self._wake(group)
        return again_s

    async def _replace(self, action: Replace) -> None:
        """Evict a pending pod whose affinity is frozen, so that its owner makes one that can be placed anew."""
        metadata = action.pod.metadata
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": metadata.name, "namespace": metadata.namespace},
            "deleteOptions": {"preconditions": {"uid": metadata.uid}},
        }
        try:
            await self._client.request("POST", PODS.path(metadata.namespace, metadata.name, "eviction"), body=body)
        except ApiError as error:
            if not (error.not_found or error.conflict or error.status == 429):
                raise
            self.metrics.replaced.labels("refused").inc()
            return
        self.metrics.replaced.labels("evicted").inc()
        self._recorder.normal(reference(PODS, metadata), "Replaced", action.note)

    async def _tell_placed(self, group: str, pods: list[GroupPod]) -> None:
        """One event on each pod that was just placed: why it landed there."""
        placed = self._just_placed.pop(group, set())
        for pod in pods:
            if pod.metadata.key not in placed or not pod.bound:
                continue
            try:
                explanation = explain(self.state, pod)
            except DeletedNodeError:
                continue  # upstream parity has no answer then
            self._recorder.normal(reference(PODS, pod.metadata), "NetworkPlacement", explanation.decided)
            chosen = next((line for line in explanation.candidates if line.chosen), None)
            if chosen is not None:
                self.metrics.dependencies.labels("satisfied").inc(chosen.satisfied)
                self.metrics.dependencies.labels("violated").inc(chosen.violated)
            self.metrics.placed.labels(self._how(pod)).inc()
            if self._config.parity != "upstream" and decision_of(pod) is None:
                # Nobody opened a gate for it, so nobody has kept the decision yet.
                await self._patch(pod, decision_patch(pod, decide(explanation, None, self._clock())))

    def _how(self, pod: GroupPod) -> str:
        target = self._stuck.target_of(pod)
        if target is None:
            return "by-rule"
        if target.node == pod.spec.node_name:
            return "as-planned"
        host = self.fleet.hosts.get(pod.spec.node_name)
        same = host is not None and (host.location.region, host.location.zone) == (target.region, target.zone)
        return "planned-zone" if same else "elsewhere"
