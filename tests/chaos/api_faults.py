"""Faults of the API server: admission that refuses, definitions that are gone, etcd without space."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import aiohttp
import msgspec

from controller.cluster.resources import APPGROUPS
from kubekit.client import Client
from kubekit.errors import ApiError, UnreachableError
from kubekit.wire import CUSTOM_RESOURCE_DEFINITIONS, Object, Resource
from lab.controlplane import ControlPlane
from netperf.contract import HOME_NAMESPACE
from tests.chaos.faults import Fault
from tests.support.etcd import client_context

_ADMISSION = "admissionregistration.k8s.io"
POLICIES = Resource(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False)
BINDINGS = Resource(
    _ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False
)
WEBHOOKS = Resource(
    _ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False
)
_PREFIX = "chaos-"
_ETCD_TIMEOUT_S = 5.0
# TCP's discard port, on which nobody listens.
_NOBODY = "https://127.0.0.1:9/"

After = Callable[[Fault, Callable[[], object]], None]


class ApiFaults:
    """Injects them.

    Args:
        client: the administrator's.
        plane: its API server and etcd.
        after: takes a fault back once its time is over.
    """

    def __init__(self, client: Client, plane: ControlPlane, after: After) -> None:
        self._client, self._plane, self._after = client, plane, after
        self._number = 0
        self.by_kind: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "admission-deny": self._deny,
            "webhook-dead": self._deny,
            "definition-delete": self._delete_definition,
            "etcd-full": self._fill_etcd,
        }

    async def _deny(self, fault: Fault) -> None:
        self._number += 1
        name = f"{_PREFIX}{self._number}"
        bodies = _policy(name, fault.target) if fault.kind == "admission-deny" else _webhook(name, fault.target)
        made: list[Resource] = []

        async def end() -> None:
            for resource in reversed(made):
                await _delete(self._client, resource, name)

        self._after(fault, end)
        for resource, body in bodies:
            made.append(resource)
            await self._client.create(resource, body, Object)

    async def _delete_definition(self, fault: Fault) -> None:
        definition = await _read(self._client, CUSTOM_RESOURCE_DEFINITIONS.path(None, fault.target))
        # The topology is the leader's to create; AppGroups are people's, who have them in a file.
        groups = []
        if definition["spec"]["names"]["plural"] == APPGROUPS.plural:
            groups = (await _read(self._client, APPGROUPS.path(None)))["items"]

        async def restore() -> None:
            try:
                found = await _read(self._client, CUSTOM_RESOURCE_DEFINITIONS.path(None, fault.target))
            except ApiError as error:
                if not error.not_found:
                    raise
                await _create(self._client, CUSTOM_RESOURCE_DEFINITIONS, [definition])
            else:
                if "deletionTimestamp" in found["metadata"]:
                    raise UnreachableError("it is still being removed")
            await _create(self._client, APPGROUPS, groups)

        self._after(fault, restore)
        await self._client.delete(CUSTOM_RESOURCE_DEFINITIONS, fault.target)

    async def _fill_etcd(self, fault: Fault) -> None:
        self._after(fault, lambda: self._alarm("DEACTIVATE"))
        await self._alarm("ACTIVATE")

    async def _alarm(self, action: str) -> None:
        """The alarm that etcd raises itself once its quota is used up; while it is on, it refuses whatever needs space."""
        body = {"action": action, "alarm": "NOSPACE"}
        timeout = aiohttp.ClientTimeout(total=_ETCD_TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                url = f"{self._plane.etcd}/v3/maintenance/alarm"
                async with session.post(url, json=body, ssl=client_context(self._plane)) as answer:
                    text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(f"etcd: {type(error).__name__}") from error
        if answer.status != 200:
            raise UnreachableError(f"etcd: {answer.status} {text[:200]}")


async def left_over(client: Client) -> list[str]:
    """What still stands in the way of our programs though its time is over: a defect of this tool, and no finding of it.

    Raises:
        KubekitError: there is no answer.
    """
    return [
        f"{resource.plural} {found.metadata.name}"
        for resource in (POLICIES, BINDINGS, WEBHOOKS)
        for found in await client.list(resource, Object)
        if found.metadata.name.startswith(_PREFIX)
    ]


def _rules(resource: str) -> dict[str, Any]:
    return {
        "apiGroups": ["*"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": [resource, f"{resource}/*"],
        "scope": "*",
    }


_OURS = [
    {
        "name": "ours",
        "expression": f"request.userInfo.username.startsWith('system:serviceaccount:{HOME_NAMESPACE}:netaware-')",
    }
]


def _policy(name: str, resource: str) -> list[tuple[Resource, dict[str, Any]]]:
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_rules(resource)]},
        "matchConditions": _OURS,
        "validations": [{"expression": "false", "message": "denied by tests.chaos", "reason": "Forbidden"}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    meta = {"metadata": {"name": name}}
    return [(POLICIES, {**meta, "spec": spec}), (BINDINGS, {**meta, "spec": binding})]


def _webhook(name: str, resource: str) -> list[tuple[Resource, dict[str, Any]]]:
    webhook = {
        "name": f"{name}.example.com",
        "clientConfig": {"url": _NOBODY},
        "rules": [_rules(resource)],
        "matchConditions": _OURS,
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
    }
    return [(WEBHOOKS, {"metadata": {"name": name}, "webhooks": [webhook]})]


async def _read(client: Client, path: str) -> Any:
    return msgspec.json.decode(await client.request("GET", path))


async def _delete(client: Client, resource: Resource, name: str) -> None:
    try:
        await client.delete(resource, name)
    except ApiError as error:
        if not error.not_found:
            raise


async def _create(client: Client, resource: Resource, bodies: Iterable[dict[str, Any]]) -> None:
    """Objects as they were; those whose namespace is gone or going are left out, and those that stand already."""
    for body in bodies:
        meta = body["metadata"]
        kept = {k: meta[k] for k in ("name", "labels", "annotations") if k in meta}
        fresh = {k: v for k, v in body.items() if k != "status"} | {"metadata": kept}
        try:
            await client.create(resource, fresh, Object, namespace=meta.get("namespace"))
        except ApiError as error:
            gone = error.not_found and "namespaces" in str(error)
            going = error.status == 403 and "is being terminated" in str(error)
            if not error.already_exists and not gone and not going:
                raise
