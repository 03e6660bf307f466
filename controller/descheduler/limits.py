"""What keeps a pod where it is for now: limits per round and over time, disruption budgets, and moves that did not come true."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from controller.cluster.pod_info import PodInfo
from controller.cluster.resources import APPGROUP_LABEL
from controller.descheduler.config import LimitsConfig, share_of
from controller.descheduler.memory import HOUR_S, Memory, Tried, mark_of
from controller.descheduler.snapshot import Guard, PodIndex


class Limits:
    """Counts planned evictions against every limit; one per round."""

    def __init__(
        self, config: LimitsConfig, memory: Memory, pods: PodIndex, now: float, *, min_replicas: int = 1
    ) -> None:
        self._min_replicas = min_replicas
        self._config, self._memory, self._pods, self._now = config, memory, pods, now
        underway = [move for move in memory.follows if not move.landed]
        self._nodes = Counter(move.node for move in underway)
        self._namespaces = Counter(move.pod.partition("/")[0] for move in underway)
        self._workloads: Counter[str] = Counter()
        self._total = len(underway)
        self._weight = memory.spent_since(now - HOUR_S)
        self._groups: Counter[str] = Counter(move.group for move in underway if move.group)
        self._underway: Counter[str] = Counter(move.workload for move in underway)
        self._heirs = {t.heir: t.at_s + config.moved_pod_rest_s - now for t in memory.tried if t.heir}
        self._heirs |= {
            mark_of(m.landed_uid): m.landed_s + config.moved_pod_rest_s - now for m in memory.follows if m.landed_uid
        }

    def exhausted(self, weight: int) -> str:
        """Why no pod at all may move any more in this round; empty when one may."""
        config = self._config
        if self._total >= config.per_round:
            return f"limit of {config.per_round} evictions per round"
        if self._weight + weight > config.per_hour:
            return f"budget of {config.per_hour} evictions per hour"
        return ""

    def node_full(self, node: str) -> bool:
        """Whether the node had its evictions of this round."""
        return self._nodes[node] >= self._config.per_node

    def refusal(self, pod: PodInfo) -> tuple[str, str]:
        """Kind and text of why this pod may not move now; empty when it may."""
        config = self._config
        rest_s = self._heirs.get(mark_of(pod.uid), 0.0)
        if rest_s > 0:
            return (
                "moved",
                f"it is the replacement of a pod that was moved, and rests for another {rest_s / 60:.0f} min",
            )
        if self._namespaces[pod.namespace] >= config.per_namespace:
            return "namespace-limit", f"limit of {config.per_namespace} evictions per namespace and round"
        group = pod.labels.get(APPGROUP_LABEL, "")
        if group and self._groups[group_key(pod)] >= config.per_app_group:
            return "group-limit", f"{config.per_app_group} pods of AppGroup {group} are on the move"
        return self._workload_refusal(pod)

    def _workload_refusal(self, pod: PodInfo) -> tuple[str, str]:
        config, workload = self._config, workload_of(pod)
        rest = self._memory.resting(workload, self._now)
        if rest is not None:
            minutes = (rest.until_s - self._now) / 60
            because = f" after {rest.failures} moves that did not help ({rest.why})" if rest.failures else ""
            return "back-off", f"{workload} rests for another {minutes:.0f} min{because}"
        pods = self._pods.of_workload(pod.workload) if pod.workload else {pod.key: pod}
        whole = [p for p in pods.values() if not p.going]
        # A pod that is underway is counted below and not twice; before its replacement is seen it is missing from `whole`.
        size = len(whole) + self._underway[workload]
        recent = self._memory.moves_since(workload, self._now - config.workload_backoff_s) + self._workloads[workload]
        if pod.workload and size < self._min_replicas:
            return "replicas", f"{workload} has {size} of at least {self._min_replicas} pods (protection.minReplicas)"
        most = share_of(config.per_workload, size)
        if recent >= most:
            return "workload-limit", f"{recent} moves of {workload} in {config.workload_backoff_s:g} s, at most {most}"
        missing = sum(1 for p in whole if not p.ready) + self._workloads[workload]
        missing = max(missing, self._underway[workload] + self._workloads[workload])
        allowed = share_of(config.unavailable_per_workload, size)
        if missing >= allowed:
            return "unavailable", f"{missing} of {size} pods of {workload} are not available, at most {allowed} may be"
        return "", ""

    def book(self, pod: PodInfo, weight: int) -> None:
        """Count a planned eviction."""
        self._nodes[pod.node] += 1
        self._namespaces[pod.namespace] += 1
        self._workloads[workload_of(pod)] += 1
        self._total += 1
        self._weight += weight
        if pod.labels.get(APPGROUP_LABEL):
            self._groups[group_key(pod)] += 1


def workload_of(pod: PodInfo) -> str:
    """What back-off is remembered by: the pod's workload, or a bare pod itself."""
    return pod.workload or f"{pod.namespace}/Pod/{pod.name}"


def group_key(pod: PodInfo) -> str:
    """``namespace/AppGroup`` of a pod, empty without one; pods of a group mostly share a namespace."""
    name = pod.labels.get(APPGROUP_LABEL, "")
    return f"{pod.namespace}/{name}" if name else ""


MISPLACEMENT = "NetworkMisplacement"
"""Stands for a pool where moves are not about load."""


class Trust:
    """The record of one moment.

    Args:
        memory: judged moves.
        limits: how many have to be judged, and how many of them good.
        now: unix seconds.
    """

    def __init__(self, memory: Memory, limits: LimitsConfig, now: float) -> None:
        self._limits = limits
        self._of: dict[str, list[Tried]] = defaultdict(list)
        for tried in memory.tried:
            if now - tried.at_s <= limits.trust_window_s:
                self._of["pool " + tried.pool].append(tried)
                self._of["workload " + tried.workload].append(tried)

    def against_pool(self, pool: str) -> str:
        """Why nothing moves in a pool; empty when it may."""
        return self._against("pool " + pool)

    def against_workload(self, workload: str) -> str:
        """Why no pod of a workload moves; empty when it may."""
        return self._against("workload " + workload)

    def stopped(self, kind: str) -> list[str]:
        """Names of the pools, or of the workloads, that are stopped."""
        found = (scope.partition(" ") for scope in self._of)
        return sorted(name for k, _, name in found if k == kind and self._against(f"{kind} {name}"))

    def _against(self, scope: str) -> str:
        tried = self._of.get(scope, ())
        good = sum(entry.came_true and entry.helped for entry in tried)
        if len(tried) < self._limits.judged_moves or 100 * good >= self._limits.least_true_percent * len(tried):
            return ""
        hours = self._limits.trust_window_s / 3600
        return f"{scope} is stopped: {good} of {len(tried)} moves in {hours:g} h came true and helped"


class Ledger:
    """What is left of every budget.

    The eviction subresource keeps the same rule and has the last word; this is its forecast, and what a dry-run goes by.
    """

    def __init__(self, guards: Mapping[str, Iterable[Guard]]) -> None:
        self._guards = guards
        self._booked: dict[str, int] = {}

    def refusal(self, pod: PodInfo) -> str:
        """Why the pod must not be evicted now; empty when it may."""
        guards = self._of(pod)
        if len(guards) > 1:
            # The API server refuses these, since it cannot take from two budgets at once.
            return f"several PodDisruptionBudgets cover it: {', '.join(guard.key for guard in guards)}"
        for guard in guards:
            if guard.allowed - self._booked.get(guard.key, 0) <= 0:
                return f"PodDisruptionBudget {guard.key} allows no disruption now"
        return ""

    def book(self, pod: PodInfo) -> None:
        """Take the pod's place in its budget."""
        for guard in self._of(pod):
            self._booked[guard.key] = self._booked.get(guard.key, 0) + 1

    def _of(self, pod: PodInfo) -> list[Guard]:
        return [guard for guard in self._guards.get(pod.namespace, ()) if guard.selector.matches(pod.labels)]
