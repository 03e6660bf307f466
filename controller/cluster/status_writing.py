"""Writes statuses of custom resources, with or without a status subresource.

Our definitions have a status subresource and conditions, upstream's have neither; which are installed is asked of discovery,
which everybody may read, so that no permission on CustomResourceDefinitions is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from controller.cluster.resources import FIELD_MANAGER, AppGroupStatus, NetworkTopologyStatus
from kubekit.client import Client
from kubekit.events import EventRecorder, Reference
from kubekit.wire import Condition, Object, Resource, Wire

StatusType = TypeVar("StatusType", AppGroupStatus, NetworkTopologyStatus)
Written = TypeVar("Written", bound=Object)


def stored(status: StatusType, *, has_subresource: bool) -> StatusType:
    """The part of a status that the definition stores: upstream's has neither conditions nor observedGeneration."""
    return status if has_subresource else msgspec.structs.replace(status, conditions=None, observed_generation=0)


async def write_status(
    client: Client,
    resource: Resource,
    read: Written,
    wanted: StatusType,
    current: StatusType,
    *,
    has_subresource: bool,
    count_field: str,
) -> Written | None:
    """Write a status if it differs (in fields that the definition stores) from the current one; returns the new object, else None.

    Args:
        client: fenced by the leadership.
        resource: of the object.
        read: the object as it was read; with its version the API server refuses a write that comes late.
        wanted: the status.
        current: the status in the object.
        has_subresource: from `Capabilities.has_status`.
        count_field: the field that upstream's definition requires even where it is 0.

    Raises:
        KubekitError: it was not written.
    """
    status, meta = stored(wanted, has_subresource=has_subresource), read.metadata
    if status == stored(current, has_subresource=has_subresource):
        return None
    names = {"name": meta.name, "namespace": meta.namespace, "resourceVersion": meta.resource_version}
    return await client.apply(
        resource,
        meta.name,
        {**resource.type_meta, "metadata": names, "status": {count_field: 0, **msgspec.to_builtins(status)}},
        type(read),
        field_manager=FIELD_MANAGER,
        namespace=meta.namespace,
        subresource="status" if has_subresource else None,
    )


def announce(
    recorder: EventRecorder,
    about: Reference,
    changes: Iterable[Condition],
    is_bad: Callable[[Condition], bool],
    *,
    action: str,
) -> None:
    """One event per condition that changed; a warning where a person should look."""
    for change in changes:
        say = recorder.warning if is_bad(change) else recorder.normal
        say(about, change.reason, f"{change.type} is {change.status}: {change.message}", action=action)


_ASK_AGAIN_S = 120.0


class _ApiResource(Wire, frozen=True):
    name: str = ""


class _ApiResourceList(Wire, frozen=True):
    resources: list[_ApiResource] = []


_decode_api_resource_list = msgspec.json.Decoder(_ApiResourceList).decode


class Capabilities:
    """Answers about definitions, remembered for two minutes."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._known: dict[Resource, tuple[float, bool]] = {}

    async def has_status(self, resource: Resource) -> bool:
        """Whether the resource has a status subresource, and with it our conditions.

        Raises:
            KubekitError: discovery could not be read; ApiError 404 when the group is not installed.
        """
        asked_at, answer = self._known.get(resource, (float("-inf"), False))
        if self._clock() - asked_at < _ASK_AGAIN_S:
            return answer
        body = await self._client.request("GET", f"/apis/{resource.api_version}")
        served = _decode_api_resource_list(body).resources
        answer = any(entry.name == f"{resource.plural}/status" for entry in served)
        self._known[resource] = (self._clock(), answer)
        return answer
