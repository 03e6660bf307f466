"""Events on pods: what a gated pod waits for, and where a placed pod landed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.cluster.hosts import NodeCache
from controller.cluster.pods import GroupPod, serves, target_of
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.explain import explain
from controller.scheduler.gating.release import PENDING
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.state import DeletedNodeError, State
from kubekit.events import EventRecorder, reference
from kubekit.wire import PODS, parse_time

WAITING = "WaitingForGroup"
"""Reason of the event."""
PATIENCE_S = 5.0
"""Shorter waits are not reported."""
PLAN_PATIENCE_S = 30.0
"""A plan comes by itself. Where many groups come at once, a write for each of their pods would only make it come later."""
MOST_AT_ONCE = 20
"""Pods of one group that are reported in one round; the others follow in the next."""


class WaitingEvents:
    """Events of pods that have waited at their gates for some seconds, with what they wait for."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def of(
        self, pods: Sequence[GroupPod], waiting: Mapping[str, str], now: float
    ) -> tuple[list[tuple[GroupPod, str]], float | None]:
        """The pods to report with the message, and when to check again; None if only a change matters.

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
                self._told.discard(key)
                continue
            if key in self._told:
                continue
            created, patience_s = pod.metadata.creation_timestamp, PLAN_PATIENCE_S if reason == PENDING else PATIENCE_S
            due_in_s = parse_time(created) + patience_s - now if created else 0.0
            if due_in_s <= 0 and len(news) < MOST_AT_ONCE:
                self._told.add(key)
                news.append((pod, f"it waits at its gate: {reason}"))
            else:
                again.append(max(due_in_s, 1.0))
        return news, min(again, default=None)

    def forget(self, key: str) -> None:
        """A pod is gone."""
        self._told.discard(key)


class PlacementEvents:
    """One event on each placed pod, with the reason for its place.

    Args:
        state: the cluster in the rules' eyes.
        node_cache: the hosts.
        recorder: for events on pods.
        config: the section ``scheduler``.
        metrics: where to count.
    """

    def __init__(
        self,
        state: State,
        node_cache: NodeCache,
        recorder: EventRecorder,
        config: SchedulerConfig,
        metrics: GateMetrics,
    ) -> None:
        self._state, self._node_cache, self._recorder = state, node_cache, recorder
        self._config, self._metrics = config, metrics

    def report(self, pod: GroupPod) -> None:
        """A pod was bound."""
        if not serves(pod.spec.scheduler_name, self._config.scheduler_names) and target_of(pod) is None:
            return
        try:
            explanation = explain(self._state, pod)
        except DeletedNodeError:
            return  # upstream parity has no answer then
        self._recorder.normal(reference(PODS, pod.metadata), "NetworkPlacement", explanation.decided)
        self._metrics.placed.labels(self._how(pod)).inc()

    def _how(self, pod: GroupPod) -> str:
        target = target_of(pod)
        if target is None:
            return "by-rule"
        if target.node == pod.spec.node_name:
            return "as-planned"
        host = self._node_cache.hosts.get(pod.spec.node_name)
        return "planned-zone" if host is not None and host.location == target.location else "elsewhere"
