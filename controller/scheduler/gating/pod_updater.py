"""Writes to pods: opens their gates, and requeues or replaces pods that found no node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Sequence
from itertools import islice
from typing import Any

from controller.cluster.pods import Pod
from controller.scheduler.affinity import HOSTNAME_LABEL
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.group_pods import GroupPods
from controller.scheduler.gating.patches import PodPatch, build_gate_removal_patch, build_release_patch
from controller.scheduler.gating.release import Release
from controller.scheduler.gating.reservations import ReservationCache
from controller.scheduler.gating.retries import Action, PodReplacement, Retry, UnschedulablePods
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.planner import Plan
from kubekit import logs
from kubekit.client import STRATEGIC_PATCH, Client
from kubekit.errors import ApiError, KubekitError
from kubekit.events import EventRecorder, make_reference
from kubekit.wire import PODS, Resource, Wire

log = logs.get("controller.scheduler.gating.pod_updater")

_CONCURRENT_WRITES = 16
_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", is_namespaced=False
)
_RELEASE_EVENT_NOTES = {
    "no-group": "gate opened without an order: AppGroup {group} was not created in time",
    "no-workload": "gate opened without an order: AppGroup {group} has no workload {workload}",
    "waited": "gate opened out of order: the pod waited for {max_wait:g} s (scheduler.gates.maxWaitS)",
    "unplaced": "gate opened out of order, because autoscalers ignore gated pods and the group's plan has no node for this one",
}
"""Cause of a release -> note of its event, a template. The cause ``turn`` needs no event."""


class _AccessReview(Wire, frozen=True):
    status: dict[str, Any] = {}


async def may_delete_pods(client: Client, *, last_known: bool) -> bool:
    """Whether we may delete pods, by a SelfSubjectAccessReview; ``last_known`` if it fails, for example while the API server is away."""
    spec = {"resourceAttributes": {"verb": "delete", "resource": "pods"}}
    try:
        review = await client.create(_ACCESS_REVIEWS, {**_ACCESS_REVIEWS.type_meta, "spec": spec}, _AccessReview)
    except KubekitError as error:
        log.log_change("deletion", str(error), "cannot find out whether pods may be deleted", error=error)
        return last_known
    is_allowed = review.status.get("allowed") is True
    if is_allowed:
        log.log_change("deletion", "", "pending pods in affinity mode may be replaced")
    else:
        message = "affinity mode only prefers zones, because pending pods may not be deleted; install the component replace-pending"
        log.log_change("deletion", "forbidden", message)
    return is_allowed


async def gather_in_batches(writes: Iterable[Awaitable[None]]) -> None:
    """Await all writes, a few at a time; the first failure is raised after all have ended.

    A generator makes each coroutine only when its batch starts, so that none is left unawaited after a cancellation.
    """
    failures: list[BaseException] = []
    iterator = iter(writes)
    while batch := list(islice(iterator, _CONCURRENT_WRITES)):
        results = await asyncio.gather(*batch, return_exceptions=True)
        failures += [failure for failure in results if failure is not None]
        del results
    if failures:
        # `pop` prevents a cycle of the error, its traceback and this frame, which would keep all their objects in memory.
        raise failures.pop(0)


class PodUpdater:
    """Opens gates, and requeues or replaces unschedulable pods.

    ``client`` rejects writes after leadership is lost. ``unschedulable_pods`` decides which pods may get required zones, and records
    retries and forbidden deletions. ``reservations`` counts which pods are released.
    """

    def __init__(
        self,
        client: Client,
        group_pods: GroupPods,
        inputs: PlanInputs,
        unschedulable_pods: UnschedulablePods,
        reservations: ReservationCache,
        *,
        config: SchedulerConfig,
        metrics: GateMetrics,
        recorder: EventRecorder,
    ) -> None:
        self._client, self._group_pods, self._inputs = client, group_pods, inputs
        self._unschedulable_pods, self._reservations = unschedulable_pods, reservations
        self._config, self._metrics, self._recorder = config, metrics, recorder

    async def open_gates(self, group: str, releases: Sequence[Release], plan: Plan | None) -> None:
        """Open the gates of these pods, which get the targets of the plan; a failure does not stop the other writes.

        Before the writes, the pods' reservations are marked as released. This is undone for pods that are gated after the writes.

        Raises:
            KubekitError: the first failure.
        """
        for release in releases:
            self._reservations.mark_released(release.pod.metadata.key)
        try:
            await gather_in_batches(self._open_gate(group, release, plan) for release in releases)
        finally:
            for release in releases:
                pod = self._group_pods.newest(release.pod.metadata.key)
                if pod is not None and pod.is_gated:
                    self._reservations.mark_released(pod.metadata.key, is_released=False)

    async def _open_gate(self, group: str, release: Release, plan: Plan | None) -> None:
        pod = release.pod
        target = plan.targets.get(pod.metadata.key) if plan is not None else None
        host = self._inputs.node_cache.hosts.get(target.node) if target is not None else None
        try:
            patch = build_release_patch(
                self._inputs.state,
                self._config,
                pod,
                target,
                hostname=host.labels.get(HOSTNAME_LABEL, "") if host is not None else "",
                may_require_zones=self._unschedulable_pods.may_require_zones(pod),
                keep_user_affinity=release.cause == "unplaced",
            )
            after = await self._patch(pod, patch)
        except ApiError as error:
            if not 400 <= error.status < 500 or error.is_throttled:
                raise
            # An admission policy may forbid annotations or affinity.
            message = "annotations or affinity are refused, so the gate is opened without them"
            log.log_change(f"release/{group}", error.message, message, error=error)
            after = await self._patch(pod, build_gate_removal_patch(pod))
        if after is not None:
            self._report_release(group, release)

    def _report_release(self, group: str, release: Release) -> None:
        pod = release.pod
        self._metrics.releases.labels(release.cause).inc()
        self._metrics.gate_wait.observe(pod.age_s(time.time()))
        template = _RELEASE_EVENT_NOTES.get(release.cause)
        if template is not None:
            workload, max_wait_s = pod.workload or "(no label)", self._config.gates.max_wait_s
            note = template.format(group=group, workload=workload, max_wait=max_wait_s)
            self._recorder.record("Warning", make_reference(PODS, pod.metadata), "GateOpened", note)

    async def execute_actions(self, actions: Iterable[Action]) -> None:
        """Requeue, replace or report unschedulable pods.

        Raises:
            KubekitError: the first failure.
        """
        await gather_in_batches(self._execute_action(action) for action in actions)

    async def _execute_action(self, action: Action) -> None:
        if isinstance(action, Retry):
            if await self._patch(action.pod, action.patch) is not None:
                self._unschedulable_pods.on_retried(action, time.time())
        elif isinstance(action, PodReplacement):
            await self._replace(action)
        else:
            self._recorder.record("Warning", make_reference(PODS, action.pod.metadata), "UnmetAffinity", action.note)

    async def _patch(self, pod: Pod, patch: PodPatch) -> Pod | None:
        """Patch a pod; returns the new version, or None if the pod has changed or is gone."""
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            after = await self._client.patch(PODS, name, patch, Pod, patch_type=STRATEGIC_PATCH, namespace=namespace)
        except ApiError as error:
            if error.is_conflict or error.is_not_found:
                return None
            raise
        self._group_pods.record_write(pod.metadata.key, pod, after)
        return after

    async def _replace(self, replacement: PodReplacement) -> None:
        """Delete a pending pod, so that its owner creates another one; unless it has changed (for example was bound) or is gone."""
        metadata, key = replacement.pod.metadata, replacement.pod.metadata.key
        try:
            await self._client.delete(PODS, metadata.name, namespace=metadata.namespace, preconditions=metadata)
        except ApiError as error:
            if error.is_forbidden:
                log.log_change(key, "forbidden", "a pending pod is not replaced", error=error, pod=key)
                self._unschedulable_pods.on_forbidden(replacement.pod)
            elif not (error.is_conflict or error.is_not_found or error.is_throttled):
                raise
        else:
            self._recorder.record("Normal", make_reference(PODS, metadata), "Replaced", replacement.note)
