"""The condition Overutilized on nodes that were found hot, so that `kubectl describe node` says it without our metrics.

Written on a change alone, by a patch that is keyed on the condition's type: the kubelet's own conditions are not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from controller.descheduler.anomaly import Detector
from controller.descheduler.decision import NodeState
from kubekit.client import STRATEGIC_PATCH, Client
from kubekit.conditions import find
from kubekit.wire import NODES, Condition, Node, Object, format_time

OVERUTILIZED = "Overutilized"


def plan_conditions(
    states: Iterable[NodeState], detectors: Mapping[str, Detector], current: Mapping[str, Sequence[Condition]]
) -> dict[str, Condition]:
    """Which nodes' condition has to change, and to what.

    Args:
        states: of the round.
        detectors: after the round; hot is what they say, not one round's usage.
        current: conditions of each node as they stand.
    """
    wanted: dict[str, Condition] = {}
    for state in states:
        detector = detectors.get(state.node)
        if state.kind == "unknown" or detector is None:
            continue
        if detector.hot:
            exceeded = [r for r, limit in state.high.items() if state.share.get(r, 0.0) > limit]
            what = ", ".join(f"{r} above {state.high[r]:g} %" for r in exceeded or state.high)
            fresh = Condition(OVERUTILIZED, "True", "AboveHighThreshold", f"{what} for several rounds")
        else:
            fresh = Condition(OVERUTILIZED, "False", "WithinThresholds", "usage is within the high thresholds")
        before = find(current.get(state.node), OVERUTILIZED)
        same = before is not None and before.status == fresh.status
        if not same and not (before is None and fresh.status == "False"):
            wanted[state.node] = fresh
    return wanted


async def write_condition(client: Client, node: str, condition: Condition, now: float) -> None:
    """Write one node's condition.

    Raises:
        KubekitError: it was not written.
    """
    moment = format_time(now)
    entry = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": moment,
        "lastHeartbeatTime": moment,
    }
    body = {"status": {"conditions": [entry]}}
    await client.patch(NODES, node, body, Object, kind=STRATEGIC_PATCH, subresource="status")


def conditions_of(nodes: Mapping[str, Node]) -> dict[str, Sequence[Condition]]:
    """Conditions by node."""
    return {name: node.status.conditions or () for name, node in nodes.items()}
