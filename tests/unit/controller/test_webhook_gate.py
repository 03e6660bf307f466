"""The webhook gates pods of AppGroups, allows every pod, and serves a certificate that has its key."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.webhook import program
from controller.webhook.gate import answer_review
from lab.certificates import CertificateAuthority, KeyPair
from lab.controlplane import find_free_ports
from lab.polling import poll_until

LABELS = {"appgroup.diktyo.x-k8s.io": "shop"}
OUR_GATE, OTHER_GATE = {"name": "netaware.io/topological-order"}, {"name": "a/b"}


def review_pod(labels: dict[str, str] | None, **spec: Any) -> Any:
    """The patch of the answer to the review of a pod, which is always allowed; None without one."""
    pod = {"metadata": {"labels": labels, "name": "x"}, "spec": {"containers": [], **spec}}
    request = {"uid": "u-1", "operation": "CREATE", "object": pod}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer = json.loads(answer_review(json.dumps(review).encode()))
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    response = answer["response"]
    assert response["uid"] == "u-1"
    assert response["allowed"]
    patch = response.get("patch")
    assert ("patchType" in response) == (patch is not None)
    return json.loads(base64.b64decode(patch)) if patch else None


async def read_certificate(client: ssl.SSLContext, port: int) -> bytes:
    """The certificate that the server at this port presents."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return certificate


async def wait_for_certificate(client: ssl.SSLContext, port: int, pair: KeyPair) -> None:
    expected = ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())

    async def is_served() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            return await read_certificate(client, port) == expected
        return False

    await poll_until(is_served, every_s=0.01)


@pytest.mark.parametrize(
    ("labels", "spec", "patch"),
    [
        (LABELS, {}, [{"op": "add", "path": "/spec/schedulingGates", "value": [OUR_GATE]}]),
        (
            LABELS,
            {"schedulingGates": [OTHER_GATE]},
            [{"op": "add", "path": "/spec/schedulingGates/-", "value": OUR_GATE}],
        ),
        (None, {}, None),
        ({"app": "x"}, {}, None),
        (LABELS, {"nodeName": "n"}, None),
        (LABELS, {"schedulingGates": [OTHER_GATE, OUR_GATE]}, None),
    ],
)
def test_only_pods_of_a_group_are_gated(labels: dict[str, str] | None, spec: dict[str, Any], patch: Any) -> None:
    assert review_pod(labels, **spec) == patch


@pytest.mark.parametrize("body", [b"", b"{}", b'{"apiVersion": "v1", "kind": "Pod", "request": 7}'])
def test_a_body_that_is_no_review_is_rejected(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        answer_review(body)


async def test_a_new_certificate_is_served_once_its_key_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, served = CertificateAuthority(tmp_path / "pki", "tests"), tmp_path / "served"
    old_pair, new_pair = (authority.issue(name, name, hosts=("127.0.0.1",)) for name in ("old", "new"))
    client, (port,) = ssl.create_default_context(cafile=str(authority.certificate)), find_free_ports(1)
    monkeypatch.setattr(program, "CERTIFICATE_CHECK_INTERVAL_S", 0.01)
    served.mkdir()
    shutil.copy(old_pair.certificate, served / "tls.crt")
    shutil.copy(old_pair.key, served / "tls.key")
    webhook = asyncio.create_task(program.run_webhook(served, listen=f"127.0.0.1:{port}"))
    await wait_for_certificate(client, port, old_pair)

    shutil.copy(new_pair.certificate, served / "tls.crt")
    await asyncio.sleep(0.2)  # 20 checks
    await wait_for_certificate(client, port, old_pair)
    shutil.copy(new_pair.key, served / "tls.key")
    await wait_for_certificate(client, port, new_pair)
    webhook.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await webhook
