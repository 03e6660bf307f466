"""The ordered list of conditions that a pod must meet to be evicted; docs/generate.py writes it into docs/descheduling.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from controller.cluster.pod_info import SYSTEM_NAMESPACES
from controller.descheduler.config import STRATEGIES, StrategyName, resolve_limit
from controller.descheduler.history import BackoffEntry
from controller.descheduler.plan_builder import Candidate, LimitScope, PlanBuilder, limit_key_of

ALL_STRATEGIES = frozenset(STRATEGIES)
LOAD_STRATEGIES: frozenset[StrategyName] = frozenset({"LowNodeLoad"})
NETWORK_STRATEGIES = ALL_STRATEGIES - LOAD_STRATEGIES


class MoveCondition(NamedTuple):
    """A condition that a candidate must meet to be moved.

    Attributes:
        name: also the label ``condition`` of a metric.
        check: returns why a candidate fails the condition; empty if it passes. Its docstring tells users what the condition requires.
        strategies: those whose candidates must meet it.
        scope: whether the pod, its node or the whole round fails. In LowNodeLoad, the last two end the moves off the node.
    """

    name: str
    check: Callable[[PlanBuilder, Candidate], str]
    strategies: frozenset[StrategyName] = ALL_STRATEGIES
    scope: Literal["pod", "node", "round"] = "pod"


class FailedCondition(NamedTuple):
    """A condition that a candidate fails, and the reason."""

    condition: MoveCondition
    reason: str


def report_first_failure(
    builder: PlanBuilder, candidate: Candidate, conditions: tuple[MoveCondition, ...]
) -> FailedCondition | None:
    """Find the first condition that the candidate fails, None if it meets all, and add it to the skips or notes of the plan.

    In LowNodeLoad, failures of scope node or round are not added to the skips: the caller reports them in its `NodeState`.
    """
    for condition in conditions:
        if candidate.strategy in condition.strategies and (reason := condition.check(builder, candidate)):
            if condition.scope == "round":
                builder.add_note(reason)
            if condition.scope == "pod" or candidate.node_load is None:
                builder.add_skip(candidate.pod, condition.name, reason)
            return FailedCondition(condition, reason)
    return None


def _check_reason_duration(_: PlanBuilder, candidate: Candidate) -> str:
    """There has been a better node for `misplacement.holdS`."""
    return candidate.duration_failure


def _check_usage_lag(builder: PlanBuilder, candidate: Candidate) -> str:
    """Each pod that was moved off the node has ended, and `limits.usageLagS` has passed since its move."""
    departures = builder.departures_by_node[candidate.pod.node]
    return f"waiting until {departures} recent moves show in its usage" if departures else ""


def _check_eviction_protection(_: PlanBuilder, candidate: Candidate) -> str:
    """It is not a mirror, static, DaemonSet or critical pod, and no annotation forbids its eviction."""
    return candidate.pod.eviction_forbidden_by


def _check_bare_pod(_: PlanBuilder, candidate: Candidate) -> str:
    """A controller replaces it, or its annotation `descheduler.alpha.kubernetes.io/evict` is true."""
    is_kept = candidate.pod.is_bare and not candidate.pod.is_eviction_allowed
    return "no controller would replace it" if is_kept else ""


def _check_owner_kind(builder: PlanBuilder, candidate: Candidate) -> str:
    """The kind of its workload is one of `protection.ownerKinds`, or it has none."""
    kinds = builder.config.protection.owner_kinds
    kind = candidate.pod.workload.split("/")[1] if candidate.pod.workload else ""
    if not kind or kind in kinds:
        return ""
    return f"it belongs to a {kind}, and protection.ownerKinds are {', '.join(kinds)}"


def _check_volume_claim(builder: PlanBuilder, candidate: Candidate) -> str:
    """It mounts no PersistentVolumeClaim, or `protection.evictVolumeClaims` is set."""
    claims = candidate.pod.claim_names
    if not claims or builder.config.protection.evict_volume_claims:
        return ""
    return f"it mounts PersistentVolumeClaim {', '.join(claims)}, which may hold it to this node or zone"


def _check_local_storage(builder: PlanBuilder, candidate: Candidate) -> str:
    """It has no emptyDir or hostPath volume, or `protection.evictLocalStorage` or `descheduler.alpha.kubernetes.io/evict` allows it."""
    is_allowed = builder.config.protection.evict_local_storage or candidate.pod.is_eviction_allowed
    return "it has an emptyDir or hostPath volume" if candidate.pod.has_local_storage and not is_allowed else ""


def _check_namespace(builder: PlanBuilder, candidate: Candidate) -> str:
    """`evictableNamespaces` allows its namespace, which is not one of the cluster's or netaware's own."""
    low_node_load, namespace = builder.config.low_node_load, candidate.pod.namespace
    if namespace in SYSTEM_NAMESPACES or namespace == builder.snapshot.netaware_namespace:
        return f"the admission policy forbids evictions in {namespace}"
    is_allowed = low_node_load is None or low_node_load.args.evictable_namespaces.allows(namespace)
    return "" if is_allowed else f"namespace {namespace} is not evictable"


def _check_pod_selector(builder: PlanBuilder, candidate: Candidate) -> str:
    """One of `podSelectors` matches it, if there are any."""
    low_node_load = builder.config.low_node_load
    selectors = low_node_load.pod_selectors if low_node_load else ()
    is_selected = not selectors or any(selector.matches(candidate.pod.labels) for selector in selectors)
    return "" if is_selected else "no pod selector matches it"


def _check_pod_age(builder: PlanBuilder, candidate: Candidate) -> str:
    """It is older than `protection.minPodAgeS`."""
    age_s = builder.now - candidate.pod.created_s
    is_young = age_s < builder.config.protection.min_pod_age_s
    return f"it is {max(age_s, 0):.0f} s old, less than protection.minPodAgeS" if is_young else ""


def _check_min_replicas(builder: PlanBuilder, candidate: Candidate) -> str:
    """Its workload has at least `protection.minReplicas` pods, or it is a bare pod."""
    pod, min_replicas = candidate.pod, builder.config.protection.min_replicas
    size = builder.workload_size(pod).pod_count
    is_small = pod.workload and size < min_replicas
    return f"{pod.workload} has {size} of at least {min_replicas} pods" if is_small else ""


def _check_pod_usage(_: PlanBuilder, candidate: Candidate) -> str:
    """It uses a resource that is exceeded on its node."""
    exceeded = candidate.node_load.exceeded_resources if candidate.node_load else ()
    if any(candidate.usage.get(resource, 0) > 0 for resource in exceeded):
        return ""
    if measured := [resource for resource in exceeded if resource in candidate.usage]:
        return f"it uses no {' or '.join(measured)}"
    return f"its use of {' and '.join(exceeded)} is not known"


def _check_breaker(builder: PlanBuilder, candidate: Candidate) -> str:
    """At least `limits.minSuccessPercent` of the strategy's moves of the last day helped, or fewer than four were evaluated."""
    return builder.stopped_strategies.get(candidate.strategy, "")


def _check_round_limit(builder: PlanBuilder, _: Candidate) -> str:
    """`limits.perRound` is not reached."""
    return _reached_limit_reason(builder, "round", "", builder.config.limits.per_round)


def _check_node_limit(builder: PlanBuilder, candidate: Candidate) -> str:
    """`limits.perNode` is not reached."""
    return _reached_limit_reason(builder, "node", candidate.pod.node, builder.config.limits.per_node)


def _check_free_capacity(_: PlanBuilder, candidate: Candidate) -> str:
    """More than `numberOfNodes` nodes are underutilized, and together they can take more usage."""
    return candidate.capacity_failure


def _check_namespace_limit(builder: PlanBuilder, candidate: Candidate) -> str:
    """`limits.perNamespace` is not reached."""
    return _reached_limit_reason(builder, "namespace", candidate.pod.namespace, builder.config.limits.per_namespace)


def _check_group_limit(builder: PlanBuilder, candidate: Candidate) -> str:
    """No other pod of its AppGroup is being moved."""
    group = builder.snapshot.group_key_of(candidate.pod)
    is_moving = group and builder.evictions_by_scope["group", group]
    return f"another pod of AppGroup {group} is being moved" if is_moving else ""


def _check_group_readiness(_: PlanBuilder, candidate: Candidate) -> str:
    """All pods of its AppGroup, at least `numMembers`, are ready."""
    return candidate.readiness_failure


def _check_replica_backoff(builder: PlanBuilder, candidate: Candidate) -> str:
    """It is not the recent replacement of a moved pod, and the planner did not recently refuse its move."""
    uid = candidate.pod.uid
    if uid in builder.unevaluated_replacement_uids:
        return "it is the replacement of a moved pod, and the outcome of that move is not known yet"
    backoff = builder.history.active_backoff(uid, builder.now)
    return f"{backoff.reason}; {_describe_remaining_backoff(builder, backoff)}" if backoff is not None else ""


def _check_workload_backoff(builder: PlanBuilder, candidate: Candidate) -> str:
    """Its workload has no back-off after moves that did not help or evictions that were refused."""
    workload = limit_key_of(candidate.pod)
    backoff = builder.history.active_backoff(workload, builder.now)
    if backoff is None:
        return ""
    failed = f"{workload} had {backoff.failures} failed moves in a row ({backoff.reason})"
    return f"{failed}; {_describe_remaining_backoff(builder, backoff)}"


def _check_workload_limit(builder: PlanBuilder, candidate: Candidate) -> str:
    """Its workload had fewer than `limits.perWorkload` moves in the last `limits.workloadBackoffS`."""
    workload, limits = limit_key_of(candidate.pod), builder.config.limits
    recorded_count = sum(eviction.workload == workload for eviction in builder.history.evictions)
    move_count = recorded_count + builder.evictions_by_workload[workload]
    limit = resolve_limit(limits.per_workload, builder.workload_size(candidate.pod).pod_count)
    if move_count < limit:
        return ""
    return f"{move_count} moves of {workload} in {limits.workload_backoff_s:g} s, at most {limit}"


def _check_unavailable_limit(builder: PlanBuilder, candidate: Candidate) -> str:
    """Fewer than `limits.unavailablePerWorkload` pods of its workload are missing, not ready or being moved."""
    workload = limit_key_of(candidate.pod)
    size = builder.workload_size(candidate.pod)
    missing = max(size.not_ready_count, builder.awaited_by_workload[workload]) + builder.evictions_by_workload[workload]
    limit = resolve_limit(builder.config.limits.unavailable_per_workload, size.pod_count)
    if missing < limit:
        return ""
    return f"{missing} of {size.pod_count} pods of {workload} are not available, at most {limit} may be"


def _check_disruption_budget(builder: PlanBuilder, candidate: Candidate) -> str:
    """At most one PodDisruptionBudget selects it, and allows a disruption. One with an unknown operator forbids evictions in its namespace."""
    return builder.allowed_disruptions.unevictable_reason(candidate.pod)


def _check_node_fit(_: PlanBuilder, candidate: Candidate) -> str:
    """It fits on a better node by requests, usage and the scheduler's constraints. LowNodeLoad with `nodeFit` off checks only usage."""
    return candidate.fit_failure


def _check_planner(_: PlanBuilder, candidate: Candidate) -> str:
    """No plan placed it, or two new plans both place its replacement on a better node."""
    return candidate.planner_failure


def _reached_limit_reason(builder: PlanBuilder, scope: LimitScope, scope_name: str, limit: int) -> str:
    if builder.evictions_by_scope[scope, scope_name] < limit:
        return ""
    return f"limit of {limit} evictions per {scope}; earlier ones count until their replacement is bound"


def _describe_remaining_backoff(builder: PlanBuilder, backoff: BackoffEntry) -> str:
    return f"not moved for another {(backoff.until_s - builder.now) / 60:.0f} min"


REASON_CONDITIONS = (
    MoveCondition("reason-duration", _check_reason_duration, NETWORK_STRATEGIES),
    MoveCondition("usage-lag", _check_usage_lag, LOAD_STRATEGIES, scope="node"),
)
"""Conditions on the reason for a move, checked first. A node that fails them is not reported as stuck."""
POD_CONDITIONS = (
    MoveCondition("eviction-protection", _check_eviction_protection),
    MoveCondition("bare-pod", _check_bare_pod),
    MoveCondition("owner-kind", _check_owner_kind),
    MoveCondition("volume-claim", _check_volume_claim),
    MoveCondition("local-storage", _check_local_storage),
    MoveCondition("namespace", _check_namespace),
    MoveCondition("pod-selector", _check_pod_selector, LOAD_STRATEGIES),
    MoveCondition("pod-age", _check_pod_age),
    MoveCondition("min-replicas", _check_min_replicas),
    MoveCondition("pod-usage", _check_pod_usage, LOAD_STRATEGIES),
)
"""Conditions on the pod itself. LowNodeLoad checks them for all pods of a node before it chooses one."""
MOVE_CONDITIONS = (
    MoveCondition("breaker", _check_breaker, scope="round"),
    MoveCondition("round-limit", _check_round_limit, scope="round"),
    MoveCondition("node-limit", _check_node_limit, scope="node"),
    MoveCondition("free-capacity", _check_free_capacity, LOAD_STRATEGIES, scope="node"),
    MoveCondition("namespace-limit", _check_namespace_limit),
    MoveCondition("group-limit", _check_group_limit),
    MoveCondition("group-readiness", _check_group_readiness, NETWORK_STRATEGIES),
    MoveCondition("replica-backoff", _check_replica_backoff),
    MoveCondition("workload-backoff", _check_workload_backoff),
    MoveCondition("workload-limit", _check_workload_limit),
    MoveCondition("unavailable-limit", _check_unavailable_limit),
    MoveCondition("disruption-budget", _check_disruption_budget),
)
"""Conditions on a move at this time, checked before a target is searched."""
NODE_FIT = MoveCondition("node-fit", _check_node_fit)
PLANNER = MoveCondition("planner", _check_planner)
CONDITIONS = (*REASON_CONDITIONS, *POD_CONDITIONS, *MOVE_CONDITIONS, NODE_FIT, PLANNER)
"""All conditions, in the order in which they are checked."""
