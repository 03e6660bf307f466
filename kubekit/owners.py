"""Finds a pod's top-level owner: the Deployment rather than its ReplicaSet."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kubekit.wire import ObjectMeta, OwnerReference

HASH_LABEL = "pod-template-hash"
"""Pod label with the hash of the template, which is also the suffix of the ReplicaSet's name."""
_REVISION_LABEL = "controller-revision-hash"
"""The same for a StatefulSet."""
_NAME, _KIND = re.compile(r"[a-z0-9]([-a-z0-9.:]*[a-z0-9])?"), re.compile(r"[A-Za-z][A-Za-z0-9]*")


def controller_of(metadata: ObjectMeta) -> OwnerReference | None:
    """The owner that controls a pod, and so would replace it; None without one."""
    return next((o for o in metadata.owner_references or () if o.controller), None)


def owner_of(metadata: ObjectMeta) -> tuple[str, str] | None:
    """Kind and name of a pod's workload; None if no controller owns it, or if kind or name is invalid.

    The API server does not validate either, and users paste commands with them into a shell.
    """
    owner = controller_of(metadata)
    if owner is None or not _NAME.fullmatch(owner.name) or not _KIND.fullmatch(owner.kind):
        return None
    suffix = f"-{metadata.label(HASH_LABEL)}"
    if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
        return "Deployment", owner.name.removesuffix(suffix)
    return owner.kind, owner.name


def find_outdated_pods(pods: Iterable[ObjectMeta]) -> set[str]:
    """Keys of the pods that a rollout will replace: those with another template than the newest pod of their workload."""
    by_owner: dict[tuple[str, str, str], dict[str, list[ObjectMeta]]] = {}
    owners: dict[str, tuple[str, str] | None] = {}  # thousands of pods have one ReplicaSet
    for pod in pods:
        revision, controller = revision_of(pod), controller_of(pod)
        if not revision or controller is None:
            continue
        if controller.uid not in owners or not controller.uid:
            owners[controller.uid] = owner_of(pod)
        owner = owners[controller.uid]
        if owner is not None:
            by_owner.setdefault((pod.namespace, *owner), {}).setdefault(revision, []).append(pod)
    outdated: set[str] = set()
    for revisions in by_owner.values():
        if len(revisions) > 1:
            newest = {r: max(pod.creation_timestamp or "" for pod in siblings) for r, siblings in revisions.items()}
            # Timestamps are in whole seconds; within a second, the template that comes last in ``pods`` is the current one.
            del revisions[max(reversed(newest), key=newest.__getitem__)]
            outdated.update(pod.key for siblings in revisions.values() for pod in siblings)
    return outdated


def revision_of(pod: ObjectMeta) -> str:
    """Hash of the template that a Deployment or StatefulSet made a pod from; empty without one."""
    return pod.label(HASH_LABEL) or pod.label(_REVISION_LABEL)
