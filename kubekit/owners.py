"""What made a pod, at the height at which people know it: the Deployment rather than its ReplicaSet."""

from __future__ import annotations

from kubekit.wire import ObjectMeta

HASH_LABEL = "pod-template-hash"
"""A ReplicaSet that a Deployment made is named after it and the template's hash, which the pod carries as a label."""


def owner_of(metadata: ObjectMeta) -> tuple[str, str] | None:
    """Kind and name of a pod's workload; None when no controller owns it."""
    owner = next((o for o in metadata.owner_references or () if o.controller), None)
    if owner is None:
        return None
    suffix = f"-{metadata.label(HASH_LABEL)}"
    if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
        return "Deployment", owner.name.removesuffix(suffix)
    return owner.kind, owner.name
