"""Answers AdmissionReviews (admission.k8s.io/v1) of pods. Pure."""

from __future__ import annotations

import base64

import msgspec

from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.pods import GATE, Pod
from kubekit import patches
from kubekit.patches import Operation
from kubekit.wire import SchedulingGate

WEBHOOK_PATH = "/gate"
"""URL path of the webhook."""
_GATES_POINTER = patches.pointer("spec", "schedulingGates")


class _Request(msgspec.Struct, frozen=True):
    uid: str
    object: Pod


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: _Request


_decode_review = msgspec.json.Decoder(_Review).decode


def answer_review(body: bytes) -> bytes:
    """The AdmissionReview that allows the pod of a request, with a patch if the pod needs netaware's gate (`plan_gate_patch`).

    The webhook's configuration selects the pods for which requests are sent.

    Raises:
        kubekit.wire.DECODE_ERRORS: the body is not an AdmissionReview of a pod.
    """
    review = _decode_review(body)
    response: dict[str, object] = {"uid": review.request.uid, "allowed": True}
    operations = plan_gate_patch(review.request.object)
    if operations:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(operations)).decode()}
    return msgspec.json.encode({"apiVersion": review.api_version, "kind": review.kind, "response": response})


def plan_gate_patch(pod: Pod) -> list[Operation]:
    """The JSON patch that adds netaware's gate; empty if the pod has it, has a node, or has no AppGroup label."""
    gates = pod.spec.scheduling_gates or []
    # The API server rejects a pod that has both a node and a gate.
    if APPGROUP_LABEL not in (pod.metadata.labels or {}) or pod.spec.node_name or SchedulingGate(GATE) in gates:
        return []
    if not gates:
        return [patches.add(_GATES_POINTER, [SchedulingGate(GATE)])]
    return [patches.add(f"{_GATES_POINTER}/-", SchedulingGate(GATE))]
