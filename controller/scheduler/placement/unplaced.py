"""Explains why a replica could not be placed."""

from __future__ import annotations

from collections import Counter

from controller.cluster.requests import PORT_PREFIX
from controller.scheduler.placement.problem import Ints
from controller.scheduler.placement.problem_builder import (
    CompiledProblem,
    PlacementRequest,
    why_refused,
)


def why_unplaced(request: PlacementRequest, compiled: CompiledProblem, at: Ints, replica: int) -> str:
    """Why a replica has no place, in kube-scheduler's manner: how many nodes there are, and what each of them lacks.

    Args:
        request: what was asked.
        compiled: its arrays.
        at: [replica] host or -1.
        replica: which one has no place.
    """
    problem, waiting = compiled.problem, request.waiting[replica]
    class_ = int(problem.class_of[replica])
    asks = problem.asks[class_]
    taken = problem.free.copy()
    for other, host in enumerate(at.tolist()):
        if host >= 0:
            taken[host] -= problem.asks[problem.class_of[other]]
    refused = why_refused(request, waiting, compiled.names)
    reasons = Counter(refused.values())
    for number, name in enumerate(compiled.names):
        if name in refused:
            continue
        lacking = [r for r, resource in enumerate(compiled.resources) if asks[r] and problem.free[number, r] < asks[r]]
        crowded = [r for r, resource in enumerate(compiled.resources) if asks[r] and taken[number, r] < asks[r]]
        if lacking:
            reasons[describe_lack(compiled.resources[lacking[0]])] += 1
        elif crowded:
            reasons["no room left beside the other pods of the plan"] += 1
        else:
            reasons["pod affinity, anti-affinity or topology spread constraints"] += 1
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda r: (-r[1], r[0])))
    return f"0/{len(compiled.names)} nodes are available: {listed or 'there are none'}"


def describe_lack(resource: str) -> str:
    """In kube-scheduler's words."""
    if resource.startswith(PORT_PREFIX):
        return "host port taken"
    return "too many pods" if resource == "pods" else f"insufficient {resource}"
