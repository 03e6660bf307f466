"""Answers AdmissionReviews (admission.k8s.io/v1) of pods. Pure."""

from __future__ import annotations

import base64

import msgspec

from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.pods import GATE, Pod
from kubekit import patches
from kubekit.patches import Operation
from kubekit.wire import SchedulingGate

PATH = "/gate"
"""URL path of the webhook."""
_GATES = patches.pointer("spec", "schedulingGates")


class _Request(msgspec.Struct, frozen=True):
    uid: str
    object: Pod


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: _Request


_decode_review = msgspec.json.Decoder(_Review).decode


def answer(body: bytes) -> bytes:
    """The response that allows the pod, and adds our gate if it has an AppGroup label, no node and not yet our gate.

    The webhook's configuration selects the pods that are sent.

    Raises:
        kubekit.wire.DECODE_ERRORS: the body is no AdmissionReview of a pod.
    """
    review = _decode_review(body)
    response: dict[str, object] = {"uid": review.request.uid, "allowed": True}
    operations = gate_patch(review.request.object)
    if operations:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(operations)).decode()}
    return msgspec.json.encode({"apiVersion": review.api_version, "kind": review.kind, "response": response})


def gate_patch(pod: Pod) -> list[Operation]:
    """The JSON patch that adds our gate to a pod; empty if the pod needs none."""
    gates = pod.spec.scheduling_gates or []
    # The API server refuses a gate on a pod that has a node.
    if APPGROUP_LABEL not in (pod.metadata.labels or {}) or pod.spec.node_name or SchedulingGate(GATE) in gates:
        return []
    if not gates:
        return [patches.add(_GATES, [SchedulingGate(GATE)])]
    return [patches.add(f"{_GATES}/-", SchedulingGate(GATE))]
