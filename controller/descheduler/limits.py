"""How much may move, where, and how often: counted per round and over time (docs/contracts, section 11)."""

from __future__ import annotations

from collections import Counter

from controller.descheduler.config import LimitsConfig, share_of
from controller.descheduler.memory import HOUR_S, Memory
from controller.descheduler.objects import PodInfo
from controller.descheduler.snapshot import PodIndex
from controller.resources import APPGROUP_LABEL


class Limits:
    """Counts planned evictions against every limit; one per round."""

    def __init__(self, config: LimitsConfig, memory: Memory, pods: PodIndex, now: float) -> None:
        self._config, self._memory, self._pods, self._now = config, memory, pods, now
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()
        self._workloads: Counter[str] = Counter()
        self._total = 0
        self._weight = memory.spent_since(now - HOUR_S)
        self._groups: Counter[str] = Counter(move.group for move in memory.follows if move.group and not move.landed)
        self._underway: Counter[str] = Counter(move.workload for move in memory.follows if not move.landed)

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
