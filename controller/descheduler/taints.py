"""Decides which nodes get the taint `HOT_TAINT`, and makes the patches that add and remove it.

kube-scheduler does not know usage. It prefers other nodes than those with the taint, which would soon be overutilized.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.cluster.hosts import Host
from controller.descheduler.node_load import AnomalyDetector
from controller.descheduler.plan import NodeState
from kubekit import patches
from kubekit.patches import Operation
from kubekit.wire import Node
from netperf.contract import HOT_TAINT

HOT_EFFECT = "PreferNoSchedule"
"""The effect of `HOT_TAINT`; taints of this key with another effect belong to users."""


def nodes_to_taint(
    states: Iterable[NodeState], detectors: Mapping[str, AnomalyDetector], hosts: Mapping[str, Host]
) -> frozenset[str]:
    """Names of the nodes that should have the taint: anomalous ones, and those above the midpoint of their thresholds.

    A node keeps the taint until it is at or below all low thresholds, also while its usage is unknown.
    """

    def is_tainted(name: str) -> bool:
        return name in hosts and any(taint.key == HOT_TAINT for taint in hosts[name].prefer_no_schedule_taints)

    def is_above(state: NodeState, fraction: float) -> bool:
        """Whether usage is above this fraction of the way from the low to the high threshold."""
        low, high = state.low_thresholds, state.high_thresholds
        return any(
            percent > low[resource] + fraction * (high[resource] - low[resource])
            for resource, percent in state.usage_percent.items()
        )

    return frozenset(
        state.node
        for state in states
        if (state.node in detectors and detectors[state.node].is_anomalous)
        or is_above(state, 0.5)
        or (is_tainted(state.node) and (state.kind == "unknown" or is_above(state, 0.0)))
    )


def build_taint_patches(nodes: Mapping[str, Node], tainted: frozenset[str]) -> dict[str, list[Operation]]:
    """JSON patches by name of the node, which add the taint to the nodes named, and remove it from all others.

    A patch does not replace the whole list of taints, because we do not read all of their fields. The API server rejects a removal
    if another taint has the index now, and the addition of the first taint if the node has changed.
    """
    hot_taint = {"key": HOT_TAINT, "effect": HOT_EFFECT}
    operations_by_node: dict[str, list[Operation]] = {}
    for name, node in nodes.items():
        taints = node.spec.taints or []
        index = next(
            (i for i, taint in enumerate(taints) if (taint.key, taint.effect) == (HOT_TAINT, HOT_EFFECT)), None
        )
        if name in tainted and index is None and taints:
            operations_by_node[name] = [patches.add("/spec/taints/-", hot_taint)]
        elif name in tainted and index is None:
            is_unchanged = patches.test("/metadata/resourceVersion", node.metadata.resource_version)
            operations_by_node[name] = [is_unchanged, patches.add("/spec/taints", [hot_taint])]
        elif name not in tainted and index is not None:
            path = f"/spec/taints/{index}"
            operations_by_node[name] = [patches.test(f"{path}/{field}", value) for field, value in hot_taint.items()]
            operations_by_node[name].append(patches.remove(path))
    return operations_by_node
