"""Finds the workload that owns a pod (the Deployment rather than its ReplicaSet), the revision of a pod's template, and outdated pods."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kubekit.wire import ObjectMeta, OwnerReference

TEMPLATE_HASH_LABEL = "pod-template-hash"
"""Label of a Deployment's pods: the hash of their template, which is the suffix of the ReplicaSet's name."""
_REVISION_LABEL = "controller-revision-hash"
"""Label of the pods of a StatefulSet (the name of their revision) or DaemonSet (its hash)."""
_OWNER_NAME = re.compile(r"[a-z0-9]([-a-z0-9.:]*[a-z0-9])?")
_OWNER_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]*")


def controller_of(metadata: ObjectMeta) -> OwnerReference | None:
    """The owner that replaces the pod after its deletion; None for a pod without a controller."""
    return next((o for o in metadata.owner_references or () if o.controller), None)


def find_workload(metadata: ObjectMeta) -> tuple[str, str] | None:
    """Kind and name of the workload that owns a pod; None if no controller owns the pod, or if kind or name is invalid.

    The API server validates neither of them, and users paste commands with them into a shell.
    """
    owner = controller_of(metadata)
    if owner is None or not _OWNER_NAME.fullmatch(owner.name) or not _OWNER_KIND.fullmatch(owner.kind):
        return None
    suffix = f"-{metadata.label(TEMPLATE_HASH_LABEL)}"
    if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
        return "Deployment", owner.name.removesuffix(suffix)
    return owner.kind, owner.name


def find_outdated_pod_keys(pod_metadata: Iterable[ObjectMeta]) -> set[str]:
    """Keys of the pods with another template than their workload's newest pod, which a rollout replaces.

    Pods without a revision or a valid owner are never outdated. Pods that a StatefulSet keeps at an old revision (``partition``,
    ``OnDelete``) are outdated too.
    """
    pods_by_revision_by_workload: dict[tuple[str, str, str], dict[str, list[ObjectMeta]]] = {}
    workload_by_controller_uid: dict[str, tuple[str, str] | None] = {}  # thousands of pods have one ReplicaSet
    for metadata in pod_metadata:
        if not (revision := revision_of(metadata)) or (controller := controller_of(metadata)) is None:
            continue
        # Without a uid, owners are not told apart.
        if controller.uid not in workload_by_controller_uid or not controller.uid:
            workload_by_controller_uid[controller.uid] = find_workload(metadata)
        workload = workload_by_controller_uid[controller.uid]
        if workload is not None:
            pods_by_revision = pods_by_revision_by_workload.setdefault((metadata.namespace, *workload), {})
            pods_by_revision.setdefault(revision, []).append(metadata)
    return {
        pod.key
        for pods_by_revision in pods_by_revision_by_workload.values()
        if len(pods_by_revision) > 1
        for revision in pods_by_revision.keys() - {_find_current_revision(pods_by_revision)}
        for pod in pods_by_revision[revision]
    }


def _find_current_revision(pods_by_revision: Mapping[str, Iterable[ObjectMeta]]) -> str:
    """The revision of a workload's newest pod; of revisions with equally new pods, the one that was given last."""
    newest_pod_at = {
        revision: max(pod.creation_timestamp or "" for pod in pods) for revision, pods in pods_by_revision.items()
    }
    # Timestamps are in whole seconds, and two rollouts may start within one second.
    return max(reversed(newest_pod_at), key=newest_pod_at.__getitem__)


def revision_of(metadata: ObjectMeta) -> str:
    """Revision of the pod's template, from the labels of a Deployment, StatefulSet or DaemonSet; empty for other pods."""
    labels = metadata.labels or {}
    return labels.get(TEMPLATE_HASH_LABEL) or labels.get(_REVISION_LABEL, "")
