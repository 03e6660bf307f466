"""Builds the patches that open a pod's gate or requeue the pod in the scheduler. No I/O.

They are strategic merge patches with the pod's uid and resourceVersion, so the API server refuses them if the pod has changed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from controller.cluster.pods import GATE, TARGET_ANNOTATION, NodeAffinity, PlacementMode, Pod, Target, calls_extender
from controller.scheduler.affinity import (
    NARROWED_ANNOTATION,
    has_min_domains,
    is_daemon_pod,
    narrow_node_affinity,
    preferred_terms,
    score_zones,
    zone_requirement,
)
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.state import State

RETRY_ANNOTATION = "netaware.io/retry"
"""Annotation of a pod; a change of its value requeues the pod in the scheduler."""

PodPatch = dict[str, Any]
_REMOVE_GATE = {"$patch": "delete", "name": GATE}


def placement_mode_of_pod(pod: Pod, config: SchedulerConfig, state: State) -> PlacementMode:
    """How the scheduler learns a pod's placement: always by affinity if it does not call our extender."""
    if not calls_extender(pod.spec.scheduler_name, config.scheduler_names):
        return "affinity"
    return state.placement_mode_of(pod.metadata.labels, pod.metadata.namespace, config.placement)


def build_release_patch(
    state: State,
    config: SchedulerConfig,
    pod: Pod,
    target: Target | None,
    *,
    hostname: str = "",
    may_require_zones: bool = True,
    keep_user_affinity: bool = False,
) -> PodPatch:
    """The patch that opens the gate and, with a target, adds the target annotation.

    In affinity mode the patch also adds node affinity, except to daemon pods. `NARROWED_ANNOTATION` then repeats the added requirement.

    Args:
        state: scores and locations.
        config: names of the schedulers, and the default placement.
        pod: the gated pod.
        target: its planned node; None without one.
        hostname: value of the hostname label of the target's node; without it, no node is preferred.
        may_require_zones: see `UnschedulablePods.may_require_zones`.
        keep_user_affinity: adds no affinity, because the plan has no node for the pod: an autoscaler should see what the user wrote.
    """
    spec: dict[str, Any] = {"schedulingGates": [_REMOVE_GATE]}
    annotations = _target_annotations(target)
    if placement_mode_of_pod(pod, config, state) == "affinity" and not keep_user_affinity and not is_daemon_pod(pod):
        zone_scores = score_zones(state.score_table_of(pod), state.locations, sorted(state.node_count_by_location))
        requirement = None
        # With a required zone, there would be too few domains for minDomains.
        if may_require_zones and not has_min_domains(pod):
            requirement = zone_requirement(zone_scores, target)
        affinity = narrow_node_affinity(pod, requirement, preferred_terms(zone_scores, target, hostname))
        if affinity != NodeAffinity():
            spec["affinity"] = {"nodeAffinity": msgspec.to_builtins(affinity)}
        if requirement is not None:
            annotations[NARROWED_ANNOTATION] = msgspec.json.encode(requirement).decode()
    return _build_patch(pod, annotations, spec)


def build_gate_removal_patch(pod: Pod) -> PodPatch:
    """The patch that only opens the gate."""
    return _build_patch(pod, {}, {"schedulingGates": [_REMOVE_GATE]})


def build_retry_patch(pod: Pod, new_target: Target | None, retry_value: str) -> PodPatch:
    """The patch that requeues an unschedulable pod. ``retry_value`` must be new, because only a changed pod is requeued."""
    return _build_patch(pod, {RETRY_ANNOTATION: retry_value, **_target_annotations(new_target)}, {})


def _target_annotations(target: Target | None) -> dict[str, str]:
    return {} if target is None else {TARGET_ANNOTATION: msgspec.json.encode(target).decode()}


def _build_patch(pod: Pod, annotations: dict[str, str], spec: dict[str, Any]) -> PodPatch:
    metadata: dict[str, Any] = {"resourceVersion": pod.metadata.resource_version, "uid": pod.metadata.uid}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, **({"spec": spec} if spec else {})}
