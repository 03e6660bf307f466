"""The patches of a pod: open its gate, or requeue it in the scheduler. Pure.

A strategic merge patch with the pod's resourceVersion: it applies to the pod as we saw it, or not at all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from controller.cluster.pods import GATE, TARGET_ANNOTATION, GroupPod, NodeAffinity, Placement, Target, has_extender
from controller.scheduler.affinity import (
    NARROWED_ANNOTATION,
    is_daemon_pod,
    narrow_node_affinity,
    preferred_terms,
    requirement,
    score_zones,
)
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.state import State

RETRY_ANNOTATION = "netaware.io/retry"
"""On a pod: changes when the pod should be tried again; the change puts it back into the scheduler's queue."""

PodPatch = dict[str, Any]
_OPEN = {"$patch": "delete", "name": GATE}


def placement_of_pod(pod: GroupPod, config: SchedulerConfig, state: State) -> Placement:
    """How a pod's placement is delivered; always by affinity for schedulers without our extender."""
    if not has_extender(pod.spec.scheduler_name, config.scheduler_names):
        return "affinity"
    return state.placement_of(pod.metadata.labels, pod.metadata.namespace, config.placement)


def release_patch(
    state: State,
    config: SchedulerConfig,
    pod: GroupPod,
    target: Target | None,
    *,
    hostname: str = "",
    may_require_zones: bool = True,
    keep_user_affinity: bool = False,
) -> PodPatch:
    """Open the gate, and add the target annotation and the node affinity in the same patch.

    Args:
        state: the cluster.
        config: the section ``scheduler``.
        pod: gated.
        target: of the plan; None without a plan.
        hostname: the hostname label of the target's node, for affinity mode; empty if unknown.
        may_require_zones: whether zones may be required; false if required terms could not be met before.
        keep_user_affinity: add no terms of ours, because the plan has no node for the pod, and an autoscaler reads its affinity.
    """
    spec: dict[str, Any] = {"schedulingGates": [dict(_OPEN)]}
    annotations = _target_annotation(target)
    if placement_of_pod(pod, config, state) == "affinity" and not keep_user_affinity and not is_daemon_pod(pod):
        zone_scores = score_zones(state.score_table_of(pod), state.locations, sorted(state.node_counts))
        ours = requirement(zone_scores, target) if may_require_zones else None
        affinity = narrow_node_affinity(pod, ours, preferred_terms(zone_scores, target, hostname))
        if affinity != NodeAffinity():
            spec["affinity"] = {"nodeAffinity": msgspec.to_builtins(affinity)}
        if ours is not None:
            annotations[NARROWED_ANNOTATION] = msgspec.json.encode(ours).decode()
    return _patch(pod, annotations, spec)


def opening_patch(pod: GroupPod) -> PodPatch:
    """The patch that only opens the gate."""
    return _patch(pod, {}, {"schedulingGates": [dict(_OPEN)]})


def retry_patch(pod: GroupPod, target: Target | None, reason: str) -> PodPatch:
    """Make the scheduler try a pod again: any change of a pod does that.

    Args:
        pod: unschedulable so far.
        target: its new target; None to keep the old one.
        reason: must differ from that of the last retry.
    """
    return _patch(pod, {RETRY_ANNOTATION: reason, **_target_annotation(target)}, {})


def _target_annotation(target: Target | None) -> dict[str, str]:
    return {} if target is None else {TARGET_ANNOTATION: msgspec.json.encode(target).decode()}


def _patch(pod: GroupPod, annotations: dict[str, str], spec: dict[str, Any]) -> PodPatch:
    metadata: dict[str, Any] = {"resourceVersion": pod.metadata.resource_version, "uid": pod.metadata.uid}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, **({"spec": spec} if spec else {})}
