"""The ordered list of conditions that a pod must meet to be evicted.

`kubectl netaware deschedule --dry-run` prints it, and docs/generate.py writes it into docs/descheduling.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

from controller.cluster.pod_info import SYSTEM_NAMESPACES
from controller.descheduler.config import StrategyName, resolve_limit
from controller.descheduler.plan_builder import Candidate, LimitScope, PlanBuilder, workload_of

ALL_STRATEGIES: frozenset[StrategyName] = frozenset(get_args(StrategyName))
LOAD_STRATEGIES: frozenset[StrategyName] = frozenset({"LowNodeLoad"})
NETWORK_STRATEGIES = ALL_STRATEGIES - LOAD_STRATEGIES


class MoveCondition(NamedTuple):
    """A condition that a candidate must meet to be moved.

    Attributes:
        name: the label ``condition`` of a metric has it too.
        requires: one sentence for users.
        refusal: returns why a candidate does not meet it; empty if it does. That of ``node-fit`` also sets the candidate's target.
        strategies: those that check it.
        scope: a failure is one of the pod, of its node or of the round. In LowNodeLoad, the last two end the moves off the node.
    """

    name: str
    requires: str
    refusal: Callable[[PlanBuilder, Candidate], str]
    strategies: frozenset[StrategyName] = ALL_STRATEGIES
    scope: Literal["pod", "node", "round"] = "pod"


class FailedCondition(NamedTuple):
    """A condition that a candidate does not meet, and why."""

    condition: MoveCondition
    why: str


def report_first_failure(
    builder: PlanBuilder, candidate: Candidate, conditions: tuple[MoveCondition, ...]
) -> FailedCondition | None:
    """Find the first condition that the candidate fails, and add it to the round's skips or notes. None if it meets all."""
    for condition in conditions:
        if candidate.strategy in condition.strategies and (why := condition.refusal(builder, candidate)):
            if condition.scope == "round":
                builder.add_note(why)
            # A failure of a whole node is reported once, in its `NodeState`. Only LowNodeLoad has such states.
            if condition.scope == "pod" or candidate.node_load is None:
                builder.add_skip(candidate.pod, condition.name, why)
            return FailedCondition(condition, why)
    return None


def _usage_lag_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    recent = builder.recent_departures[candidate.pod.node]
    return f"waiting until {recent} recent moves show in its usage" if recent else ""


def _owner_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    kinds = builder.config.protection.owner_kinds
    kind = candidate.pod.workload.split("/")[1] if candidate.pod.workload else ""
    if not kind or kind in kinds:
        return ""
    return f"it belongs to a {kind}, and protection.ownerKinds are {', '.join(kinds)}"


def _volume_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    claims = candidate.pod.claim_names
    if not claims or builder.config.protection.evict_volume_claims:
        return ""
    return f"it mounts PersistentVolumeClaim {', '.join(claims)}, which may hold it to this node or zone"


def _local_storage_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    is_allowed = builder.config.protection.evict_local_storage or candidate.pod.is_eviction_allowed
    return "it has an emptyDir or hostPath volume" if candidate.pod.has_local_storage and not is_allowed else ""


def _age_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    age_s = builder.now - candidate.pod.created_s
    is_young = age_s < builder.config.protection.min_pod_age_s
    return f"it is {max(age_s, 0):.0f} s old, less than protection.minPodAgeS" if is_young else ""


def _namespace_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    load, namespace = builder.config.low_node_load, candidate.pod.namespace
    if namespace in SYSTEM_NAMESPACES or namespace == builder.snapshot.netaware_namespace:
        return f"the admission policy forbids evictions in {namespace}"
    is_admitted = load is None or load.args.evictable_namespaces.admits(namespace)
    return "" if is_admitted else f"namespace {namespace} is not evictable"


def _selector_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    selectors = builder.config.low_node_load.pod_selectors if builder.config.low_node_load else ()
    is_selected = not selectors or any(selector.matches(candidate.pod.labels) for selector in selectors)
    return "" if is_selected else "no pod selector matches it"


def _usage_refusal(_: PlanBuilder, candidate: Candidate) -> str:
    exceeded = candidate.node_load.exceeded if candidate.node_load else ()
    if any(candidate.used.get(resource, 0) > 0 for resource in exceeded):
        return ""
    if any(resource in candidate.used for resource in exceeded):
        return f"it uses no {' or '.join(exceeded)}"
    return f"its use of {' and '.join(exceeded)} is not known"


def _limit_refusal(builder: PlanBuilder, scope: tuple[LimitScope, str], limit: int, unit: str) -> str:
    return f"limit of {limit} evictions per {unit}" if builder.evictions[scope] >= limit else ""


def _group_limit_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    group = builder.snapshot.group_key_of(candidate.pod)
    return f"another pod of AppGroup {group} is being moved" if group and builder.evictions["group", group] else ""


def _replica_backoff_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    uid = candidate.pod.uid
    if uid in builder.unevaluated_replacements:
        return "it is the replacement of a moved pod, and the outcome of that move is not known yet"
    backoff = builder.history.running_backoff(uid, builder.now)
    if backoff is None:
        return ""
    return f"{backoff.reason}; not moved for another {(backoff.until_s - builder.now) / 60:.0f} min"


def _workload_backoff_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    workload = workload_of(candidate.pod)
    backoff = builder.history.running_backoff(workload, builder.now)
    if backoff is None:
        return ""
    failed = f"{backoff.failures} moves that did not help ({backoff.reason})"
    return f"{workload} backs off for another {(backoff.until_s - builder.now) / 60:.0f} min after {failed}"


def _replicas_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    pod, min_replicas = candidate.pod, builder.config.protection.min_replicas
    size = builder.workload_size(pod).pods
    is_small = pod.workload and size < min_replicas
    return f"{pod.workload} has {size} of at least {min_replicas} pods" if is_small else ""


def _workload_limit_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    workload, limits = workload_of(candidate.pod), builder.config.limits
    since_s = builder.now - limits.workload_backoff_s
    earlier = sum(e.at_s > since_s and e.workload == workload for e in builder.history.evictions)
    recent = earlier + builder.evictions_by_workload[workload]
    limit = resolve_limit(limits.per_workload, builder.workload_size(candidate.pod).pods)
    if recent < limit:
        return ""
    return f"{recent} moves of {workload} in {limits.workload_backoff_s:g} s, at most {limit}"


def _unavailable_refusal(builder: PlanBuilder, candidate: Candidate) -> str:
    workload = workload_of(candidate.pod)
    size = builder.workload_size(candidate.pod)
    missing = max(size.not_ready, builder.awaited_replacements[workload]) + builder.evictions_by_workload[workload]
    limit = resolve_limit(builder.config.limits.unavailable_per_workload, size.pods)
    if missing < limit:
        return ""
    return f"{missing} of {size.pods} pods of {workload} are not available, at most {limit} may be"


REASON_CONDITIONS = (
    MoveCondition("reason-duration", "The reason has lasted: overutilized for `consecutiveAbnormalities` rounds, or a better node for `holdS`.",
              lambda _, c: c.duration_refusal, scope="node"),
    MoveCondition("usage-lag", "The node's usage shows the moves of the last `limits.usageLagS`.", _usage_lag_refusal, LOAD_STRATEGIES, "node"),
)  # fmt: skip
"""Conditions on the reason for a move, checked first. A node that does not meet them is not reported as stuck."""
POD_CONDITIONS = (
    MoveCondition("eviction-protection", "It is not a mirror, static, DaemonSet or critical pod, and no annotation forbids its eviction.",
              lambda _, c: c.pod.eviction_forbidden_by),
    MoveCondition("bare-pod", "A controller replaces it, or the annotation `descheduler.alpha.kubernetes.io/evict` is true.",
              lambda _, c: "no controller would replace it" if c.pod.is_bare and not c.pod.is_eviction_allowed else ""),
    MoveCondition("owner-kind", "The kind of its workload is one of `protection.ownerKinds`, or it has none.", _owner_refusal),
    MoveCondition("volume-claim", "It mounts no PersistentVolumeClaim, or `protection.evictVolumeClaims` is set.", _volume_refusal),
    MoveCondition("local-storage", "It has no emptyDir or hostPath volume, or `protection.evictLocalStorage` is set.", _local_storage_refusal),
    MoveCondition("namespace", "`evictableNamespaces` admits its namespace, which is not one of the cluster's or netaware's own.", _namespace_refusal),
    MoveCondition("pod-selector", "One of `podSelectors` matches it, if there are any.", _selector_refusal, LOAD_STRATEGIES),
    MoveCondition("pod-age", "It is older than `protection.minPodAgeS`.", _age_refusal),
    MoveCondition("min-replicas", "Its workload has at least `protection.minReplicas` pods.", _replicas_refusal),
    MoveCondition("pod-usage", "It uses a resource that is exceeded on its node.", _usage_refusal, LOAD_STRATEGIES),
)  # fmt: skip
"""Conditions on the pod itself, checked for all pods of a hot node before one is chosen."""
MOVE_CONDITIONS = (
    MoveCondition("breaker", "At least `limits.minSuccessPercent` of the strategy's moves of the last day helped.",
              lambda r, c: r.breaker.stop_reason(c.strategy), scope="round"),
    MoveCondition("round-limit", "`limits.perRound` is not reached.",
              lambda r, _: _limit_refusal(r, ("round", ""), r.config.limits.per_round, "round"), scope="round"),
    MoveCondition("node-limit", "`limits.perNode` is not reached.",
              lambda r, c: _limit_refusal(r, ("node", c.pod.node), r.config.limits.per_node, "node and round"), scope="node"),
    MoveCondition("free-capacity", "More than `numberOfNodes` nodes have low load, and they can take more of every resource.",
              lambda _, c: c.finder.capacity_refusal(c), LOAD_STRATEGIES, "node"),
    MoveCondition("namespace-limit", "`limits.perNamespace` is not reached.",
              lambda r, c: _limit_refusal(r, ("namespace", c.pod.namespace), r.config.limits.per_namespace, "namespace and round")),
    MoveCondition("group-limit", "No other pod of its AppGroup is being moved.", _group_limit_refusal),
    MoveCondition("group-readiness", "All pods of its AppGroup are ready.", lambda _, c: c.group_refusal, NETWORK_STRATEGIES),
    MoveCondition("replica-backoff", "It is in no back-off after its own move, or after the planner refused to move it.",
              _replica_backoff_refusal),
    MoveCondition("workload-backoff", "Its workload is not in a back-off after moves that did not help.", _workload_backoff_refusal),
    MoveCondition("workload-limit", "Its workload had fewer than `limits.perWorkload` moves in the last `limits.workloadBackoffS`.",
              _workload_limit_refusal),
    MoveCondition("unavailable-limit", "Fewer than `limits.unavailablePerWorkload` pods of its workload are missing.", _unavailable_refusal),
    MoveCondition("disruption-budget", "No PodDisruptionBudget selects it, or exactly one, which allows a disruption.",
              lambda r, c: r.budgets.unevictable_reason(c.pod)),
    MoveCondition("node-fit", "It fits on a better node, by requests, usage and the scheduler's constraints.",
              lambda _, c: c.finder.find_target(c)),
)  # fmt: skip
PLANNER = MoveCondition("planner", "If a plan placed it: each of two new plans places its replacement on a better node.",
                    lambda _, c: c.planner_refusal)  # fmt: skip
CONDITIONS = (*REASON_CONDITIONS, *POD_CONDITIONS, *MOVE_CONDITIONS, PLANNER)
