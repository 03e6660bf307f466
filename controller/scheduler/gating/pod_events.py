"""Events on pods: for whom a gated pod waits, and why a placed pod landed where it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from controller.cluster.hosts import NodeCache
from controller.cluster.pods import GroupPod, serves, target_of
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.explain import Explanation, decide, decision_of, explain
from controller.scheduler.gating.patches import decision_patch
from controller.scheduler.gating.pod_updater import PodWriter, run_all
from controller.scheduler.gating.release import PENDING
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.state import DeletedNodeError, State
from kubekit.events import EventRecorder, reference
from kubekit.wire import PODS, parse_time

WAITING = "WaitingForGroup"
"""Reason of the event."""
PATIENCE_S, AGAIN_S = 5.0, 60.0
"""Before this nobody asks why; what a pod waits for may change with every pod that is bound, so it is told again this much later."""
PLAN_PATIENCE_S = 30.0
"""A plan comes by itself. Where many groups come at once, a write for each of their pods would only make it come later."""
MOST_AT_ONCE = 20
"""Pods of one group that are told of in one look; the others' turn comes with the next."""


class WaitingEvents:
    """What is told of pods that wait at their gates, once they have waited for a few seconds, and for whom they wait."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, str]] = {}

    def of(
        self, pods: Sequence[GroupPod], waiting: Mapping[str, str], now: float
    ) -> tuple[list[tuple[GroupPod, str]], float | None]:
        """Whom to tell of, with the words, and in how many seconds to look again; None when only a change can bring news.

        Args:
            pods: of the group.
            waiting: pod key -> what it waits for.
            now: wall clock, seconds since 1970.
        """
        news: list[tuple[GroupPod, str]] = []
        again: list[float] = []
        for pod in pods:
            key = pod.metadata.key
            reason = waiting.get(key)
            if reason is None:
                self._told.pop(key, None)
                continue
            due_in_s = self._due(pod, reason, now)
            if due_in_s is None:
                continue
            if due_in_s <= 0 and len(news) < MOST_AT_ONCE:
                self._told[key] = (now, reason)
                news.append((pod, f"it waits at its gate: {reason}"))
            else:
                again.append(max(due_in_s, 1.0))
        return news, min(again, default=None)

    def _due(self, pod: GroupPod, reason: str, now: float) -> float | None:
        told = self._told.get(pod.metadata.key)
        if told is not None:
            return None if told[1] == reason else told[0] + AGAIN_S - now
        created, patience_s = pod.metadata.creation_timestamp, PLAN_PATIENCE_S if reason == PENDING else PATIENCE_S
        return parse_time(created) + patience_s - now if created else 0.0

    def forget(self, key: str) -> None:
        """A pod is gone."""
        self._told.pop(key, None)


class PlacementEvents:
    """One event on each pod that was placed: why it landed there; kept until everything about it is written.

    Args:
        state: the cluster in the rules' eyes.
        node_cache: the hosts.
        writer: patches pods.
        recorder: for events on pods.
        config: the section ``scheduler``.
        metrics: where to count.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        state: State,
        node_cache: NodeCache,
        writer: PodWriter,
        recorder: EventRecorder,
        *,
        config: SchedulerConfig,
        metrics: GateMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._state, self._node_cache, self._writer, self._recorder = state, node_cache, writer, recorder
        self._config, self._metrics, self._clock = config, metrics, clock
        self._unreported: set[str] = set()

    def on_bound(self, key: str) -> None:
        """A pod was bound while we lead."""
        self._unreported.add(key)

    def forget(self, key: str) -> None:
        """A pod is gone."""
        self._unreported.discard(key)

    def clear(self) -> None:
        """A leadership ends; the next leader reports what is bound from then on."""
        self._unreported.clear()

    async def report(self, pods: Sequence[GroupPod]) -> None:
        """Report those of a group's pods that were bound since.

        Raises:
            ApiError: of the first decision that could not be written; that pod is reported later.
        """
        if self._unreported:
            await run_all([self._report(pod) for pod in pods if pod.metadata.key in self._unreported])

    async def _report(self, pod: GroupPod) -> None:
        explanation = self._explain(pod)
        if explanation is not None and self._config.parity != "upstream" and decision_of(pod) is None:
            # Nobody opened a gate for it, so nobody has kept the decision yet.
            patch = decision_patch(pod, decide(explanation, None, self._clock()))
            if await self._writer.patch(pod, patch) is None:
                return  # it has changed, and is looked at again, or is gone
        self._unreported.discard(pod.metadata.key)
        if explanation is not None:
            self._record(pod, explanation)

    def _explain(self, pod: GroupPod) -> Explanation | None:
        ours = serves(pod.spec.scheduler_name, self._config.scheduler_names) or target_of(pod) is not None
        if not pod.bound or not ours:
            return None
        try:
            return explain(self._state, pod)
        except DeletedNodeError:
            return None  # upstream parity has no answer then

    def _record(self, pod: GroupPod, explanation: Explanation) -> None:
        self._recorder.normal(reference(PODS, pod.metadata), "NetworkPlacement", explanation.decided)
        chosen = next((line for line in explanation.candidates if line.chosen), None)
        if chosen is not None:
            self._metrics.dependencies.labels("satisfied").inc(chosen.satisfied)
            self._metrics.dependencies.labels("violated").inc(chosen.violated)
        self._metrics.placed.labels(self._how(pod)).inc()

    def _how(self, pod: GroupPod) -> str:
        target = target_of(pod)
        if target is None:
            return "by-rule"
        if target.node == pod.spec.node_name:
            return "as-planned"
        host = self._node_cache.hosts.get(pod.spec.node_name)
        return "planned-zone" if host is not None and host.location == target.location else "elsewhere"
