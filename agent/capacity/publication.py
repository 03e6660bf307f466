"""Plans the patches that publish the capacity on the node, or withdraw it. No I/O.

Only our resource is written. The kubelet copies capacity to allocatable, and overwrites an allocatable written by hand, so
allocatable is set only where no kubelet runs. The withdrawal removes both everywhere, without waiting for the kubelet.
"""

from __future__ import annotations

import re

import msgspec

from agent.capacity.node_capacity import NodeCapacity
from agent.node import OwnNode
from kubekit import conditions, patches, quantity
from kubekit.patches import Operation, pointer
from kubekit.text import cut_bytes
from kubekit.wire import Condition
from netperf.contract import (
    AGENT,
    AGENT_ANNOTATION,
    BANDWIDTH_OWNER_ANNOTATION,
    BANDWIDTH_RESOURCE,
    BANDWIDTH_SOURCE_ANNOTATION,
    MAX_ANNOTATION_BYTES,
)

CONDITION = "NetawareBandwidth"
"""Type of the node condition: True if the capacity is known and published; False if it is unknown, disputed, owned by another program
or misconfigured. Its message says why."""

KWOK_ANNOTATION = "kwok.x-k8s.io/node"  # on nodes without a kubelet
_KUBELET_VERSION = re.compile(r"v?\d+\.\d+")


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """The patches to send for one node; empty ones are not sent.

    Attributes:
        status: a JSON patch of nodes/status.
        metadata: a merge patch of the node.
        condition: a strategic merge patch of nodes/status.
    """

    status: tuple[Operation, ...] = ()
    metadata: dict[str, object] | None = None
    condition: dict[str, object] | None = None

    def __bool__(self) -> bool:
        return bool(self.status or self.metadata or self.condition)


def bandwidth_owner_of(node: OwnNode) -> str:
    """The owner of the node's bandwidth by annotation; empty if there is none."""
    return node.metadata.annotation(BANDWIDTH_OWNER_ANNOTATION)


def find_foreign_capacity(node: OwnNode, our_bps: int | None) -> str:
    """Find a published capacity other than ours; empty if there is none, or only the 0 that a kubelet leaves behind."""
    published = _read_bandwidth(node, "capacity") or "0"
    # The API server normalizes 10000000000 to 10G.
    is_ours = our_bps is not None and quantity.parse_int_or_none(published) == our_bps
    return "" if published == "0" or is_ours else published


def plan_writes(node: OwnNode, node_capacity: NodeCapacity, now_s: float, *, dispute: str = "") -> Writes:
    """Plan the writes that publish a capacity; only the condition if it is published already, or another writer's value stays.

    A published capacity that is no longer known stays, because its removal would keep new pods away; a kubelet's 0 is removed.

    Args:
        node: as the API server has it.
        node_capacity: the chosen capacity.
        now_s: seconds since the epoch, for the condition.
        dispute: description of another writer's repeated writes; empty if there are none.
    """
    blocking_condition = _make_blocking_condition(node, node_capacity, dispute)
    condition = _make_condition_patch(node, blocking_condition or _make_capacity_condition(node_capacity), now_s)
    if blocking_condition is not None:
        return Writes(condition=condition)
    fields = ("capacity",) if _has_kubelet(node) else ("capacity", "allocatable")
    if node_capacity.rate_bps is None:
        removals = tuple(
            patches.remove(pointer("status", field, BANDWIDTH_RESOURCE))
            for field in fields
            if bandwidth_owner_of(node) and _read_bandwidth(node, field) == "0"
        )
        return Writes(status=removals, condition=condition)
    value = str(node_capacity.rate_bps)
    operations: list[Operation] = []
    for field in fields:
        if getattr(node.status, field) is None:
            operations.append(patches.add(pointer("status", field), {BANDWIDTH_RESOURCE: value}))
        elif quantity.parse_int_or_none(_read_bandwidth(node, field)) != node_capacity.rate_bps:
            operations.append(patches.add(pointer("status", field, BANDWIDTH_RESOURCE), value))
    source = cut_bytes(f"{node_capacity.source}: {node_capacity.explanation}", MAX_ANNOTATION_BYTES)
    annotations = {BANDWIDTH_OWNER_ANNOTATION: AGENT, BANDWIDTH_SOURCE_ANNOTATION: source}
    has_changed = any(node.metadata.annotation(name) != text for name, text in annotations.items())
    metadata: dict[str, object] | None = {"metadata": {"annotations": annotations}} if has_changed else None
    return Writes(status=tuple(operations), metadata=metadata, condition=condition)


def plan_withdrawal(node: OwnNode) -> Writes:
    """Plan the removal of our capacity and condition, and of the agent's annotations (``--cleanup``)."""
    our_annotations = (AGENT_ANNOTATION, BANDWIDTH_OWNER_ANNOTATION, BANDWIDTH_SOURCE_ANNOTATION)
    removals = {name: None for name in our_annotations if name in (node.metadata.annotations or {})}
    condition = conditions.find_condition(node.status.conditions, CONDITION)
    deletion: dict[str, object] = {"status": {"conditions": [{"type": CONDITION, "$patch": "delete"}]}}
    fields = ("capacity", "allocatable") if bandwidth_owner_of(node) == AGENT else ()
    return Writes(
        status=tuple(
            patches.remove(pointer("status", field, BANDWIDTH_RESOURCE))
            for field in fields
            if _read_bandwidth(node, field) is not None
        ),
        metadata={"metadata": {"annotations": removals}} if removals else None,
        condition=deletion if condition is not None else None,
    )


def _has_kubelet(node: OwnNode) -> bool:
    """Whether a kubelet copies capacity to allocatable: nodes of kwok and similar have no numeric kubelet version."""
    has_kubelet_version = _KUBELET_VERSION.match(node.status.node_info.kubelet_version) is not None
    return has_kubelet_version and not node.metadata.annotation(KWOK_ANNOTATION)


def _read_bandwidth(node: OwnNode, field: str) -> str | None:
    """Read the quantity of our resource in status.capacity or status.allocatable; None if it is missing."""
    amounts: dict[str, str] = getattr(node.status, field) or {}
    return amounts.get(BANDWIDTH_RESOURCE)


def _make_blocking_condition(node: OwnNode, node_capacity: NodeCapacity, dispute: str) -> Condition | None:
    """The condition that says why another writer's value stays; None if ours may be written."""
    owner, foreign_capacity = bandwidth_owner_of(node), find_foreign_capacity(node, node_capacity.rate_bps)
    if owner not in {"", AGENT}:
        message = f"annotation {BANDWIDTH_OWNER_ANNOTATION} names {owner}; remove the annotation to let {AGENT} publish"
        return _make_false_condition("OwnedByOther", message)
    if not owner and foreign_capacity:
        value = f"another program set {BANDWIDTH_RESOURCE} to {foreign_capacity}"
        message = f"{value}; set annotation {BANDWIDTH_OWNER_ANNOTATION} to {AGENT} to let {AGENT} publish"
        return _make_false_condition("OwnedByOther", message)
    return _make_false_condition("Disputed", dispute) if dispute else None


def _make_capacity_condition(node_capacity: NodeCapacity) -> Condition:
    if node_capacity.warnings:
        return _make_false_condition("Misconfigured", "; ".join(node_capacity.warnings))
    if node_capacity.rate_bps is None:
        return _make_false_condition("CapacityUnknown", node_capacity.explanation)
    reason = "".join(part.capitalize() for part in node_capacity.source.split("-"))
    return conditions.make_condition(CONDITION, holds=True, reason=reason, message=node_capacity.explanation)


def _make_false_condition(reason: str, message: str) -> Condition:
    return conditions.make_condition(CONDITION, holds=False, reason=reason, message=message)


def _make_condition_patch(node: OwnNode, condition: Condition, now_s: float) -> dict[str, object] | None:
    before = node.status.conditions or ()
    changes = [c for c in conditions.merge_conditions(before, [condition], now_s) if c not in before]
    return {"status": {"conditions": msgspec.to_builtins(changes)}} if changes else None
