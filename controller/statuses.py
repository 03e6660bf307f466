"""Statuses as both controllers write them: as much as the installed definition keeps, under the version that was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from controller.resources import AppGroupStatus, NetworkTopologyStatus
from kubekit.events import EventRecorder, Reference
from kubekit.wire import Condition, ObjectMeta, Resource

Status = TypeVar("Status", AppGroupStatus, NetworkTopologyStatus)


def stored(wanted: Status, *, kept: bool) -> Status:
    """The part of a status that the definition keeps: upstream's has neither conditions nor observedGeneration."""
    return wanted if kept else msgspec.structs.replace(wanted, conditions=None, observed_generation=0)


def status_body(resource: Resource, metadata: ObjectMeta, wanted: Status, *, count: str) -> dict[str, object]:
    """What to apply.

    Args:
        resource: of the object.
        metadata: of the object as it was read; with its version the API server refuses a write that comes late.
        wanted: the status.
        count: the field that upstream's definition requires even where it is 0.
    """
    names = {"name": metadata.name, "namespace": metadata.namespace, "resourceVersion": metadata.resource_version}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": names,
        "status": {count: 0, **msgspec.to_builtins(wanted)},
    }


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
