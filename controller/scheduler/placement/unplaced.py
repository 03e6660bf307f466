"""The reasons why replicas have no place in a plan, in kube-scheduler's words."""

from __future__ import annotations

from collections import Counter

import numpy as np

from controller.cluster.resource_requests import PORT_PREFIX
from controller.scheduler.placement.problem import Ints, Problem
from controller.scheduler.placement.problem_builder import PlacementRequest, refusal_reasons


def unplaced_reason(request: PlacementRequest, problem: Problem, host_of: Ints, replica: int) -> str:
    """Why a replica has no place in a placement, which is [replica] host or -1: the number of nodes, and of the nodes with each reason."""
    requests = problem.requests[problem.class_of[replica]]
    free_after_plan, is_placed = problem.free.copy(), host_of >= 0
    np.subtract.at(free_after_plan, host_of[is_placed], problem.requests[problem.class_of[is_placed]])
    refused = refusal_reasons(request, request.waiting[replica], problem.host_names)
    reasons = Counter(refused.values())
    for host, name in enumerate(problem.host_names):
        if name in refused:
            continue
        insufficient = np.flatnonzero((requests > 0) & (problem.free[host] < requests))
        if insufficient.size:
            reasons[insufficient_reason(problem.resource_names[insufficient[0]])] += 1
        elif ((requests > 0) & (free_after_plan[host] < requests)).any():
            reasons["insufficient resources beside the other pods of the plan"] += 1
        else:
            reasons["pod affinity, anti-affinity or topology spread constraints"] += 1
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda r: (-r[1], r[0])))
    return f"0/{len(problem.host_names)} nodes are available: {listed or 'there are none'}"


def insufficient_reason(resource: str) -> str:
    """Why a node with too little of a resource refuses a pod."""
    if resource.startswith(PORT_PREFIX):
        return "host port taken"
    return "too many pods" if resource == "pods" else f"insufficient {resource}"
