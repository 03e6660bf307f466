"""What the webhook answers: the gate where one is due, and never a refusal."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from controller.webhook.gate import answer

LABELS = {"appgroup.diktyo.x-k8s.io": "shop"}
OURS = {"name": "netaware.io/topological-order"}


def asked(labels: dict[str, str] | None, **spec: Any) -> Any:
    pod = {"metadata": {"labels": labels, "name": "x"}, "spec": {"containers": [], **spec}}
    request = {"uid": "u-1", "operation": "CREATE", "object": pod}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    given = json.loads(answer(json.dumps(review).encode()))
    assert (given["apiVersion"], given["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert (given["response"]["uid"], given["response"]["allowed"]) == ("u-1", True)
    patch = given["response"].get("patch")
    assert ("patchType" in given["response"]) == (patch is not None)
    return json.loads(base64.b64decode(patch)) if patch else None


def test_pod_of_a_group_is_gated() -> None:
    assert asked(LABELS) == [{"op": "add", "path": "/spec/schedulingGates", "value": [OURS]}]


def test_gates_of_others_stay() -> None:
    wanted = [{"op": "add", "path": "/spec/schedulingGates/-", "value": OURS}]
    assert asked(LABELS, schedulingGates=[{"name": "a/b"}]) == wanted


@pytest.mark.parametrize(
    ("labels", "spec"),
    [
        ({}, {}),
        (None, {}),
        ({"app": "x"}, {}),
        (LABELS, {"nodeName": "n"}),
        (LABELS, {"schedulingGates": [{"name": "a/b"}, OURS]}),
    ],
)
def test_other_pods_are_left_alone(labels: dict[str, str] | None, spec: dict[str, Any]) -> None:
    assert asked(labels, **spec) is None


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"apiVersion": "v1", "kind": "Pod", "request": 7}'])
def test_what_is_no_review_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        answer(body)
