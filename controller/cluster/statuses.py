"""Builds the conditions of custom resources, writes their statuses, and reports changed conditions as events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from controller.cluster.crds import FIELD_MANAGER, AppGroup, AppGroupStatus, NetworkTopology, NetworkTopologyStatus
from kubekit.client import Client
from kubekit.conditions import find_changed_conditions, make_condition
from kubekit.errors import ApiError
from kubekit.events import EventRecorder, EventType, make_reference
from kubekit.stores import Store
from kubekit.wire import Condition, Resource

CONFLICT_RETRY_S = 0.2
"""Delay after a conflict; by then the store has the newer version."""

StatusResource = TypeVar("StatusResource", AppGroup, NetworkTopology)


class ConditionState(NamedTuple):
    """Content of a condition; ``holds`` is whether it is True, None for Unknown."""

    reason: str
    message: str
    holds: bool | None


def make_conditions(states: Mapping[str, ConditionState], generation: int) -> list[Condition]:
    """Conditions by type, without lastTransitionTime."""
    return [
        make_condition(type_, holds=state.holds, reason=state.reason, message=state.message, generation=generation)
        for type_, state in states.items()
    ]


class StatusWriter:
    """Writes statuses of one kind of object, and records an event for each condition whose status or reason changes.

    Args:
        client: client with the leader's write fence.
        count_field: a counter that the CRD requires; it is written even if it is 0, which the encoder omits.
        action: field ``action`` of the events: the controller's work, such as "Order".
        is_bad: whether a condition reports a problem. Its event is a warning, and only then a new condition has an event.
    """

    def __init__(
        self,
        client: Client,
        recorder: EventRecorder,
        resource: Resource,
        *,
        count_field: str,
        action: str,
        is_bad: Callable[[Condition], bool],
    ) -> None:
        self._client, self._recorder, self._resource = client, recorder, resource
        self._count_field, self._action, self._is_bad = count_field, action, is_bad

    async def write(self, current: StatusResource, desired: AppGroupStatus | NetworkTopologyStatus) -> bool:
        """Write a status if it differs from the current one; returns whether it was written.

        ``current`` is the object as it was read; the API server answers with a conflict if there is a newer version.

        Raises:
            KubekitError: the status was not written.
        """
        if desired == current.status:
            return False
        meta, resource = current.metadata, self._resource
        metadata = {"name": meta.name, "namespace": meta.namespace, "resourceVersion": meta.resource_version}
        status = {self._count_field: 0, **msgspec.to_builtins(desired)}
        await self._client.apply(
            resource,
            meta.name,
            {**resource.type_meta, "metadata": metadata, "status": status},
            type(current),
            field_manager=FIELD_MANAGER,
            namespace=meta.namespace,
            subresource="status",
        )
        self._report_conditions(current, desired)
        return True

    def _report_conditions(
        self, current: AppGroup | NetworkTopology, desired: AppGroupStatus | NetworkTopologyStatus
    ) -> None:
        before, regarding = current.status.conditions, make_reference(self._resource, current.metadata)
        earlier_types = {condition.type for condition in before or ()}
        for change in find_changed_conditions(before, desired.conditions):
            is_warning = self._is_bad(change)
            if change.type in earlier_types or is_warning:
                type_: EventType = "Warning" if is_warning else "Normal"
                text = f"{change.type} is {change.status}: {change.message}"
                self._recorder.record(type_, regarding, change.reason, text, action=self._action)


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
