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

LABELS = {"appgroup.diktyo.x-k8s.io": "shop"}
OURS, THEIRS = {"name": "netaware.io/topological-order"}, {"name": "a/b"}


def patch_for(labels: dict[str, str] | None, **spec: Any) -> Any:
    pod = {"metadata": {"labels": labels, "name": "x"}, "spec": {"containers": [], **spec}}
    request = {"uid": "u-1", "operation": "CREATE", "object": pod}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer = json.loads(answer_review(json.dumps(review).encode()))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert (answer["response"]["uid"], answer["response"]["allowed"]) == ("u-1", True)
    patch = answer["response"].get("patch")
    assert ("patchType" in answer["response"]) == (patch is not None)
    return json.loads(base64.b64decode(patch)) if patch else None


@pytest.mark.parametrize(
    ("labels", "spec", "patch"),
    [
        (LABELS, {}, [{"op": "add", "path": "/spec/schedulingGates", "value": [OURS]}]),
        (LABELS, {"schedulingGates": [THEIRS]}, [{"op": "add", "path": "/spec/schedulingGates/-", "value": OURS}]),
        ({}, {}, None),
        (None, {}, None),
        ({"app": "x"}, {}, None),
        (LABELS, {"nodeName": "n"}, None),
        (LABELS, {"schedulingGates": [THEIRS, OURS]}, None),
    ],
)
def test_only_pods_of_a_group_are_gated(labels: dict[str, str] | None, spec: dict[str, Any], patch: Any) -> None:
    assert patch_for(labels, **spec) == patch


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"apiVersion": "v1", "kind": "Pod", "request": 7}'])
def test_a_body_that_is_no_review_is_rejected(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        answer_review(body)


async def test_a_new_certificate_is_served_once_its_key_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, served = CertificateAuthority(tmp_path / "pki", "tests"), tmp_path / "served"
    first, second = (authority.issue(name, name, hosts=("127.0.0.1",)) for name in ("first", "second"))
    client, (port,) = ssl.create_default_context(cafile=str(authority.certificate)), find_free_ports(1)

    async def handshake() -> bytes:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return certificate

    async def wait_until_served(pair: KeyPair) -> None:
        wanted = ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    if await handshake() == wanted:
                        return
                await asyncio.sleep(0.01)

    monkeypatch.setattr(program, "CERTIFICATE_CHECK_INTERVAL_S", 0.01)
    served.mkdir()
    shutil.copy(first.certificate, served / "tls.crt")
    shutil.copy(first.key, served / "tls.key")
    webhook = asyncio.create_task(program.run_webhook(served, listen=f"127.0.0.1:{port}"))
    await wait_until_served(first)
    shutil.copy(second.certificate, served / "tls.crt")
    await asyncio.sleep(0.2)
    await wait_until_served(first)
    shutil.copy(second.key, served / "tls.key")
    await wait_until_served(second)
    webhook.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await webhook
