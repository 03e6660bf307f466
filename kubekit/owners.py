"""What made a pod, at the height at which people know it: the Deployment rather than its ReplicaSet."""

from __future__ import annotations

import re

from kubekit.wire import ObjectMeta, OwnerReference

HASH_LABEL = "pod-template-hash"
"""A ReplicaSet that a Deployment made is named after it and the template's hash, which the pod carries as a label."""
_NAME, _KIND = re.compile(r"[a-z0-9]([-a-z0-9.:]*[a-z0-9])?"), re.compile(r"[A-Za-z][A-Za-z0-9]*")


def controller_of(metadata: ObjectMeta) -> OwnerReference | None:
    """Who made a pod, and would make it anew; None when nobody would."""
    return next((o for o in metadata.owner_references or () if o.controller), None)


def owner_of(metadata: ObjectMeta) -> tuple[str, str] | None:
    """Kind and name of a pod's workload; None when no controller owns it, or one that no object can be called.

    The API server takes any text for both, and people paste lines with them into a shell.
    """
    owner = controller_of(metadata)
    if owner is None or not _NAME.fullmatch(owner.name) or not _KIND.fullmatch(owner.kind):
        return None
    suffix = f"-{metadata.label(HASH_LABEL)}"
    if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
        return "Deployment", owner.name.removesuffix(suffix)
    return owner.kind, owner.name
