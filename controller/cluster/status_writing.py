"""Writes statuses of custom resources, and reports changed conditions as events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from controller.cluster.resources import FIELD_MANAGER, AppGroup, AppGroupStatus, NetworkTopology, NetworkTopologyStatus
from kubekit.client import Client
from kubekit.conditions import changed_status_or_reason
from kubekit.errors import ApiError
from kubekit.events import EventRecorder, ObjectReference
from kubekit.stores import Store
from kubekit.wire import Condition, Resource

CONFLICT_RETRY_S = 0.2
"""The store has the newer version by then."""

StatusResource = TypeVar("StatusResource", AppGroup, NetworkTopology)


async def write_status(
    client: Client,
    resource: Resource,
    read: StatusResource,
    wanted: AppGroupStatus | NetworkTopologyStatus,
    *,
    count_field: str,
) -> StatusResource | None:
    """Write a status if it differs from the current one; returns the new object, else None.

    Args:
        client: fenced by the leadership.
        resource: of the object.
        read: the object as it was read; with its version the API server refuses a write that comes late.
        wanted: the status.
        count_field: a required counter, written even if it is 0.

    Raises:
        KubekitError: it was not written.
    """
    meta = read.metadata
    if wanted == read.status:
        return None
    names = {"name": meta.name, "namespace": meta.namespace, "resourceVersion": meta.resource_version}
    return await client.apply(
        resource,
        meta.name,
        {**resource.type_meta, "metadata": names, "status": {count_field: 0, **msgspec.to_builtins(wanted)}},
        type(read),
        field_manager=FIELD_MANAGER,
        namespace=meta.namespace,
        subresource="status",
    )


def retry_after(error: ApiError, key: str, store: Store[StatusResource]) -> float | None:
    """Seconds until an object whose write failed is reconciled again; None if it was deleted.

    Raises:
        ApiError: the error, unless the object was changed or deleted meanwhile.
    """
    if error.is_conflict:
        return CONFLICT_RETRY_S
    # A 404 for an object that exists means that its definition has no status subresource.
    if error.is_not_found and key not in store.items:
        return None
    raise error


def report_conditions(
    recorder: EventRecorder,
    about: ObjectReference,
    before: Sequence[Condition] | None,
    after: Sequence[Condition] | None,
    *,
    is_bad: Callable[[Condition], bool],
    action: str,
) -> None:
    """One event per condition that changed, a warning where a person should look; a new condition only if it is bad."""
    known = {condition.type for condition in before or ()}
    for change in changed_status_or_reason(before, after):
        if change.type in known or is_bad(change):
            say = recorder.warning if is_bad(change) else recorder.normal
            say(about, change.reason, f"{change.type} is {change.status}: {change.message}", action=action)
