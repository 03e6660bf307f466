"""Writes statuses of custom resources, builds their conditions, and reports changed conditions as events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from controller.cluster.crds import FIELD_MANAGER, AppGroup, AppGroupStatus, NetworkTopology, NetworkTopologyStatus
from kubekit.client import Client
from kubekit.conditions import find_changed_conditions, make_condition
from kubekit.errors import ApiError
from kubekit.events import EventRecorder, ObjectReference
from kubekit.stores import Store
from kubekit.wire import Condition, Resource

CONFLICT_RETRY_S = 0.2
"""Delay after a conflict; by then the store has the newer version."""

StatusResource = TypeVar("StatusResource", AppGroup, NetworkTopology)


async def write_status(
    client: Client,
    resource: Resource,
    current: StatusResource,
    desired: AppGroupStatus | NetworkTopologyStatus,
    *,
    count_field: str,
) -> StatusResource | None:
    """Write a status if it differs from the current one; returns the new object, or None if nothing was written.

    Args:
        client: client with the leader's write fence.
        resource: kind of the object.
        current: the object as it was read; the API server answers with a conflict if there is a newer version.
        desired: the new status.
        count_field: a counter that the CRD requires; it is written even if it is 0, which the encoder omits.

    Raises:
        KubekitError: the status was not written.
    """
    meta = current.metadata
    if desired == current.status:
        return None
    metadata = {"name": meta.name, "namespace": meta.namespace, "resourceVersion": meta.resource_version}
    return await client.apply(
        resource,
        meta.name,
        {**resource.type_meta, "metadata": metadata, "status": {count_field: 0, **msgspec.to_builtins(desired)}},
        type(current),
        field_manager=FIELD_MANAGER,
        namespace=meta.namespace,
        subresource="status",
    )


def delay_after_failed_write(error: ApiError, key: str, store: Store[StatusResource]) -> float | None:
    """Seconds until an object whose write failed is reconciled again; None if it was deleted.

    Raises:
        ApiError: the same error, unless the object was changed or deleted meanwhile.
    """
    if error.is_conflict:
        return CONFLICT_RETRY_S
    # A 404 for an object that exists means that its CRD has no status subresource.
    if error.is_not_found and key not in store.items:
        return None
    raise error


class ConditionState(NamedTuple):
    """Content of a condition; ``holds`` is whether it is True, None for Unknown."""

    reason: str
    message: str
    holds: bool | None


def make_conditions(states: Mapping[str, ConditionState], generation: int) -> list[Condition]:
    """Conditions by type, without lastTransitionTime."""
    return [
        make_condition(type_, holds=holds, reason=reason, message=message, generation=generation)
        for type_, (reason, message, holds) in states.items()
    ]


def report_conditions(
    recorder: EventRecorder,
    regarding: ObjectReference,
    before: Sequence[Condition] | None,
    after: Sequence[Condition] | None,
    *,
    is_bad: Callable[[Condition], bool],
    action: str,
) -> None:
    """Record an event for each condition whose status or reason changed. A new condition is reported only if it is bad.

    Args:
        recorder: sends the events.
        regarding: the object that has the conditions.
        before: the conditions before the change.
        after: the conditions after the change.
        is_bad: whether a condition reports a problem, so that its event is a warning.
        action: the event's action.
    """
    earlier_types = {condition.type for condition in before or ()}
    for change in find_changed_conditions(before, after):
        is_warning = is_bad(change)
        if change.type in earlier_types or is_warning:
            record = recorder.record_warning if is_warning else recorder.record_normal
            record(regarding, change.reason, f"{change.type} is {change.status}: {change.message}", action=action)
