"""`simulate --offline FILE`: plans the pending pods of a cluster in a file, as the controller would."""

from __future__ import annotations

import time

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.cluster_file import ClusterFile
from controller.cli.plan_inputs import build_inputs
from controller.cli.style import BAD, FAINT, GOOD, make_table
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import Pod
from controller.cluster.volumes import Volumes
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.planner import Plan
from controller.scheduler.state import State
from kubekit.text import pluralize
from kubekit.wire import split_key

_NO_WORKLOAD = "its AppGroup has no such workload, so kube-scheduler places it alone"


class OfflinePlan(msgspec.Struct, frozen=True):
    """The placements of pending pods, and totals over all pods of their groups. Other programs read it: its field names are fixed.

    Attributes:
        placements: pending pod (namespace/name) -> node.
        unplaced: pending pod -> why it has no node.
        cost, violations, latency_us: as in `controller.cli.simulate.PlacementOutcome`, for placed and planned pods together.
        seconds: duration of planning, with the preparation of its inputs.
    """

    placements: dict[str, str]
    unplaced: dict[str, str]
    cost: int
    violations: int
    latency_us: float
    seconds: float


def plan_offline(cluster: ClusterFile) -> tuple[OfflinePlan, list[str]]:
    """Plan the groups of a file one after the other, small ones first, as the leader does.

    Returns:
        The plan, and notes on objects that were left out, namespaces without consent, costs, and invalid annotations.
    """
    started_s, reader = time.perf_counter(), PodReader()
    inputs = build_offline_inputs(cluster, reader)
    pods_by_group = inputs.state.membership.pods_by_group(cluster.pods)
    notes = [*cluster.problems, *_list_consent_notes(inputs.state)]
    placements: dict[str, str] = {}
    unplaced: dict[str, str] = {}
    plans: list[Plan] = []
    for key, pods in sorted(pods_by_group.items(), key=lambda item: (len(item[1]), item[0])):
        plan = inputs.plan_with_preemption(inputs.build_snapshot(key, pods))
        plans.append(plan)
        notes += [*list_cost_problems(inputs.state, split_key(key)[0]), *plan.annotation_errors]
        for pod in pods:
            if not pod.is_waiting:
                continue
            pod_key, target = pod.metadata.key, plan.targets.get(pod.metadata.key)
            if target is None:
                unplaced[pod_key] = plan.unplaced_reasons.get(pod_key) or _find_unplanned_reason(pod)
                continue
            placements[pod_key] = target.node
            inputs.node_cache.on_pod_change(pod_key, None, msgspec.structs.replace(reader.read(pod), node=target.node))
    traffic = sum(plan.traffic for plan in plans)
    offline_plan = OfflinePlan(
        placements=dict(sorted(placements.items())),
        unplaced=dict(sorted(unplaced.items())),
        cost=sum(plan.cost for plan in plans),
        violations=sum(plan.violations for plan in plans),
        latency_us=round(sum(plan.latency_us * plan.traffic for plan in plans) / traffic, 3) if traffic else 0.0,
        seconds=round(time.perf_counter() - started_s, 3),
    )
    return offline_plan, list(dict.fromkeys(notes))


def build_offline_inputs(cluster: ClusterFile, reader: PodReader) -> PlanInputs:
    """The planner's inputs for a cluster in a file."""
    snapshot = ClusterSnapshot(
        now_s=0.0,
        nodes=tuple(cluster.nodes),
        topologies=tuple(cluster.topologies),
        groups=tuple(cluster.groups),
        namespaces=tuple(cluster.namespaces),
        services=tuple(cluster.services),
    )
    volumes = Volumes.from_objects(cluster.volumes, cluster.claims, cluster.storage_classes)
    return build_inputs(snapshot, map(reader.read, cluster.pods), volumes)


def render_offline(answer: OfflinePlan) -> RenderableType:
    """Each pending pod with its node or why it has none, then the totals."""
    table = make_table("POD", "NODE")
    reasons = {pod: Text(reason, style=BAD) for pod, reason in answer.unplaced.items()}
    for pod, node_or_reason in sorted((answer.placements | reasons).items()):
        table.add_row(pod, node_or_reason)
    summary = Text(f"{answer.latency_us:.0f} µs per call   total cost {answer.cost}   ")
    summary.append(pluralize(answer.violations, "violation"), style=BAD if answer.violations else GOOD)
    if answer.unplaced:
        summary.append(f"   {pluralize(len(answer.unplaced), 'pod')} unplaced", style=BAD)
    summary.append(f"   planned in {answer.seconds:.1f} s", style=FAINT)
    if not table.rows:
        return Group(Text("no pod of an AppGroup is pending"), summary)
    return Group(table, Text(), summary)


def _find_unplanned_reason(pod: Pod) -> str:
    """Why the plan of the pod's group does not contain the pod."""
    gates = ", ".join(pod.other_gates)
    return f"held by another scheduling gate: {gates}" if gates else _NO_WORKLOAD


def _list_consent_notes(state: State) -> list[str]:
    return [
        f"AppGroup {key} gets no pods of {', '.join(namespaces)}: the namespace gives no consent"
        for key in state.groups
        if (namespaces := state.membership.list_namespaces_without_consent(key))
    ]


def list_cost_problems(state: State, namespace: str) -> list[str]:
    """Notes on costs that planning of the namespace's groups lacks."""
    costs = state.costs(namespace)
    if not costs.network_topology:
        return ["the scheduler uses no NetworkTopology: all zones are equally far from each other"]
    if not costs.weight_name:
        return [f"NetworkTopology {costs.network_topology} has no weight that the scheduler uses: costs are unknown"]
    return [costs.latency_error] if costs.latency_error else []
