"""Why a replica has no place, in kube-scheduler's manner: how many nodes there are, and what each of them lacks."""

from __future__ import annotations

from collections import Counter

from controller.cluster.eligibility import is_choosy, may_run_on, tolerated
from controller.cluster.requests import PORT_PREFIX
from controller.scheduler.plan.problem import Ints
from controller.scheduler.problem_builder import Demand, Draft, Waiting


def why_unplaced(demand: Demand, draft: Draft, at: Ints, replica: int) -> str:
    """One sentence.

    Args:
        demand: what was asked.
        draft: its arrays.
        at: [replica] host or -1.
        replica: which one has no place.
    """
    problem, waiting = draft.problem, demand.waiting[replica]
    class_ = int(problem.class_of[replica])
    asks = problem.asks[class_]
    taken = problem.free.copy()
    for other, host in enumerate(at.tolist()):
        if host >= 0:
            taken[host] -= problem.asks[problem.class_of[other]]
    reasons: Counter[str] = Counter()
    for number, name in enumerate(draft.names):
        if not draft.eligible[problem.row_of[class_]][number]:
            reasons[_refused(demand, waiting, name)] += 1
            continue
        lacking = [r for r, resource in enumerate(draft.resources) if asks[r] and problem.free[number, r] < asks[r]]
        crowded = [r for r, resource in enumerate(draft.resources) if asks[r] and taken[number, r] < asks[r]]
        if lacking:
            reasons[_lack(draft.resources[lacking[0]])] += 1
        elif crowded:
            reasons["no room left beside the other pods of the plan"] += 1
        else:
            reasons["pod affinity, anti-affinity or topology spread constraints"] += 1
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda r: (-r[1], r[0])))
    return f"0/{len(draft.names)} nodes are available: {listed or 'there are none'}"


def _refused(demand: Demand, waiting: Waiting, name: str) -> str:
    host, spec = demand.hosts[name], waiting.pod.spec
    if not tolerated(host.taints, spec.tolerations):
        return "had taints that the pod does not tolerate"
    if host.closing:
        return "were about to be removed"
    if is_choosy(spec) and not may_run_on(spec, name, host.labels):
        return "did not match the pod's node selector or affinity"
    if name in waiting.refused:
        return "were refused by the scheduler a moment ago, or are hot"
    return "had a volume node affinity conflict"


def _lack(resource: str) -> str:
    if resource.startswith(PORT_PREFIX):
        return "had no free port for the pod's host ports"
    return "had too many pods" if resource == "pods" else f"had insufficient {resource}"
