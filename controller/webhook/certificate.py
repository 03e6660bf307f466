"""Builds the webhook's Secret, with a new certificate, and its MutatingWebhookConfiguration.

A person applies them. No program in the cluster may write such a configuration, because with it a program could change every pod.
"""

from __future__ import annotations

import base64
import copy
import datetime
from typing import Any, get_args

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.pods import OUR_SCHEDULER, PLACEMENT_LABEL, PlacementMode
from controller.webhook.gate import WEBHOOK_PATH
from netperf.contract import PART_OF_LABELS

Json = dict[str, Any]
WEBHOOK_NAME = "netaware-webhook"
"""Name of the webhook's Service, Secret and configuration."""
_MAX_CLOCK_SKEW = datetime.timedelta(minutes=5)
_ANY_SCHEDULER_PLACEMENTS = [placement for placement in get_args(PlacementMode) if placement != "extender"]
"""Values of `PLACEMENT_LABEL` with which pods of any scheduler are gated."""
_HAS_NO_NODE = {"name": "has-no-node", "expression": "!has(object.spec.nodeName) || object.spec.nodeName == ''"}
_IS_PLACED_BY_US = {
    "name": "is-placed-by-us",
    "expression": (
        f"object.spec.schedulerName == '{OUR_SCHEDULER}' || "
        f"('{PLACEMENT_LABEL}' in object.metadata.labels && object.metadata.labels['{PLACEMENT_LABEL}'] in {_ANY_SCHEDULER_PLACEMENTS})"
    ),
}
_HAS_GROUP = {"key": APPGROUP_LABEL, "operator": "Exists"}
_HAS_PLACEMENT = {"key": PLACEMENT_LABEL, "operator": "In", "values": _ANY_SCHEDULER_PLACEMENTS}
_HAS_NO_PLACEMENT = {"key": PLACEMENT_LABEL, "operator": "DoesNotExist"}


def build_webhook_manifests(namespace: str, days: int, now: datetime.datetime) -> list[Json]:
    """The Secret and the MutatingWebhookConfiguration for netaware in ``namespace``; see `issue_certificate`."""
    certificate, key = issue_certificate(f"{WEBHOOK_NAME}.{namespace}.svc", days, now)
    encoded = base64.b64encode(certificate).decode()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": WEBHOOK_NAME, "namespace": namespace, "labels": dict(PART_OF_LABELS)},
        "type": "kubernetes.io/tls",
        "data": {"tls.crt": encoded, "tls.key": base64.b64encode(key).decode()},
    }
    service = {"name": WEBHOOK_NAME, "namespace": namespace, "path": WEBHOOK_PATH, "port": 443}
    client_config = {"service": service, "caBundle": encoded}
    namespace_selector = {"matchExpressions": [_HAS_PLACEMENT]}
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK_NAME, "labels": dict(PART_OF_LABELS)},
        # Pods opt in by themselves, or by their namespace.
        "webhooks": [
            _build_webhook("pods", client_config, {}, [_HAS_GROUP], [_HAS_NO_NODE, _IS_PLACED_BY_US]),
            _build_webhook(
                "namespaces", client_config, namespace_selector, [_HAS_GROUP, _HAS_NO_PLACEMENT], [_HAS_NO_NODE]
            ),
        ],
    }
    return [secret, configuration]


def _build_webhook(
    name: str, client_config: Json, namespace_selector: Json, pod_requirements: list[Json], conditions: list[Json]
) -> Json:
    """One webhook; selectors and conditions are those of the policies in manifests/policies/appgroup-gate.yaml."""
    webhook = {
        "name": f"{name}.gate.netaware.io",
        "clientConfig": client_config,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": namespace_selector,
        "objectSelector": {"matchExpressions": pod_requirements},
        "matchConditions": conditions,
        # If the webhook fails, a pod is created without a gate, and its scheduler places it without a plan.
        "failurePolicy": "Ignore",
        "timeoutSeconds": 2,
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return copy.deepcopy(webhook)  # YAML would have aliases for the parts that both webhooks share.


def issue_certificate(host: str, days: int, now: datetime.datetime) -> tuple[bytes, bytes]:
    """A new self-signed certificate for one host, valid for ``days`` from ``now`` (with a time zone), and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, WEBHOOK_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _MAX_CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM), pem
