"""What changed in the last hour, by the times that objects carry themselves: it is there after a restart, and costs no memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from controller.diagnosis.reading import seconds
from controller.views.model import ChangeView
from controller.views.snapshot import ClusterSnapshot
from kubekit.conditions import find
from kubekit.wire import Condition

SPAN_S, MOST = 3600.0, 40
_GOOD = {
    "Ordered": "True",
    "Complete": "True",
    "CostsMet": "True",
    "SpecValid": "True",
    "Admitted": "True",
    "Planned": "True",
    "Measured": "True",
    "InputValid": "True",
    "Stale": "False",
    "Incomplete": "False",
    "Unreachable": "False",
    "OutlierNodes": "False",
}
"""Conditions that are told, and the status of each that is good."""


def build_changes(snapshot: ClusterSnapshot) -> tuple[ChangeView, ...]:
    """The newest first, at most `MOST`."""
    found = [
        *_conditions("AppGroup", ((g.metadata.key, g.status.conditions) for g in snapshot.groups)),
        *_conditions("NetworkTopology", ((t.metadata.key, t.status.conditions) for t in snapshot.topologies)),
        *_nodes(snapshot),
        *_placed(snapshot),
    ]
    recent = [change for change in found if 0 <= snapshot.now_s - change.at <= SPAN_S]
    return tuple(sorted(recent, key=lambda change: (-change.at, change.about, change.what))[:MOST])


def _conditions(kind: str, objects: Iterable[tuple[str, list[Condition] | None]]) -> Iterator[ChangeView]:
    for key, conditions in objects:
        for found in conditions or ():
            at, good = seconds(found.last_transition_time), _GOOD.get(found.type)
            if at is not None and good is not None and found.status != "Unknown":
                is_good = found.status == good
                what = found.reason if is_good else f"{found.reason}: {found.message}"
                yield ChangeView(at=at, about=f"{kind} {key}", what=what, good=is_good)


def _nodes(snapshot: ClusterSnapshot) -> Iterator[ChangeView]:
    for node in snapshot.nodes:
        ready = find(node.status.conditions, "Ready")
        at = seconds(ready.last_transition_time) if ready is not None else None
        born = seconds(node.metadata.creation_timestamp) or 0.0
        if ready is None or at is None or (ready.status == "True" and snapshot.now_s - born <= SPAN_S):
            continue
        good = ready.status == "True"
        yield ChangeView(at=at, about=f"Node {node.metadata.name}", what="Ready" if good else "not Ready", good=good)


def _placed(snapshot: ClusterSnapshot) -> Iterator[ChangeView]:
    """Pods that were bound, a group and a minute at a time."""
    bound: dict[tuple[str, int], list[float]] = defaultdict(list)
    membership = snapshot.membership
    for pod in snapshot.pods:
        found = pod.condition("PodScheduled")
        at = seconds(found.last_transition_time) if found is not None and found.status == "True" else None
        group = membership.group_of(pod.metadata.namespace, pod.group)
        if at is not None and group:
            bound[group, int(at // 60)].append(at)
    for (group, _), times in bound.items():
        what = f"{len(times)} {'pod' if len(times) == 1 else 'pods'} placed"
        yield ChangeView(at=max(times), about=f"AppGroup {group}", what=what, good=True)
