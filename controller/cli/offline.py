"""`simulate --offline FILE`: the plans that the controller would make of a cluster in a file."""

from __future__ import annotations

import time
from collections import defaultdict

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.offline_objects import ClusterFile
from controller.cli.plan_inputs import inputs_of
from controller.cli.style import BAD, FAINT, GOOD, make_table
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import Pod
from controller.cluster.volumes import Volumes
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.planner import Plan
from kubekit.text import pluralize

NO_WORKLOAD = "its AppGroup has no such workload, so kube-scheduler places it alone"


class OfflinePlan(msgspec.Struct, frozen=True):
    """The placements of pending pods, and sums over all pods of their groups.

    Attributes:
        placements: pending pod (namespace/name) -> node.
        unplaced: pending pod -> reason.
        cost, violations, latency_us: as in `controller.cli.simulate.Outcome`, of placed and planned pods together.
        seconds: duration of planning.
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
        The plan, and remarks on objects that were left out and on costs.
    """
    began, reader = time.perf_counter(), PodReader()
    inputs, members, remarks = _read_inputs(cluster, reader)
    placements: dict[str, str] = {}
    unplaced: dict[str, str] = {}
    plans: list[Plan] = []
    for key in sorted(members, key=lambda key: (len(members[key]), key)):
        pods = members[key]
        plan = inputs.plan_with_preemption(inputs.snapshot(key, pods))
        plans.append(plan)
        remarks += [*_remarks_on_costs(inputs, key), *plan.annotation_errors]
        for pod in pods:
            if not pod.is_waiting:
                continue
            pod_key, target = pod.metadata.key, plan.targets.get(pod.metadata.key)
            if target is None:
                gates = f"held by another scheduling gate: {', '.join(pod.other_gates)}" if pod.other_gates else ""
                unplaced[pod_key] = plan.unplaced_reasons.get(pod_key) or gates or NO_WORKLOAD
                continue
            placements[pod_key] = target.node
            inputs.node_cache.on_pod_change(pod_key, None, msgspec.structs.replace(reader.read(pod), node=target.node))
    traffic = sum(plan.traffic for plan in plans)
    answer = OfflinePlan(
        placements=dict(sorted(placements.items())),
        unplaced=dict(sorted(unplaced.items())),
        cost=sum(plan.cost for plan in plans),
        violations=sum(plan.violations for plan in plans),
        latency_us=round(sum(plan.latency_us * plan.traffic for plan in plans) / traffic, 3) if traffic else 0.0,
        seconds=round(time.perf_counter() - began, 3),
    )
    return answer, list(dict.fromkeys(remarks))


def _read_inputs(cluster: ClusterFile, reader: PodReader) -> tuple[PlanInputs, dict[str, list[Pod]], list[str]]:
    """The planner's inputs, group (``namespace/name``) -> its pods, and remarks on objects that were left out."""
    snapshot = ClusterSnapshot(
        now_s=0.0,
        nodes=tuple(cluster.nodes),
        topologies=tuple(cluster.topologies),
        groups=tuple(cluster.groups),
        namespaces=tuple(cluster.namespaces),
        services=tuple(cluster.services),
    )
    volumes = Volumes.from_objects(cluster.volumes, cluster.claims, cluster.classes)
    inputs = inputs_of(snapshot, map(reader.read, cluster.pods), volumes)
    members: dict[str, list[Pod]] = defaultdict(list)
    for pod in cluster.pods:
        key = inputs.state.group_key_of(pod.metadata.namespace, pod.group) if pod.group else ""
        if key:
            members[key].append(pod)
    refusals = [
        f"AppGroup {key} gets no pods of {', '.join(names)}: the namespace gives no consent"
        for key in inputs.state.groups
        if (names := snapshot.build_membership().refusing_namespaces(key))
    ]
    return inputs, members, [*cluster.problems, *refusals]


def _remarks_on_costs(inputs: PlanInputs, key: str) -> list[str]:
    costs = inputs.state.costs(key.partition("/")[0])
    if not costs.topology:
        return ["the scheduler uses no NetworkTopology: all zones are equally far from each other"]
    if not costs.weight:
        return [f"NetworkTopology {costs.topology} has no weight that the scheduler uses: costs are unknown"]
    return [costs.problem] if costs.problem else []


def render_offline(answer: OfflinePlan) -> RenderableType:
    """The node of every pending pod, then the costs."""
    table = make_table("POD", "NODE")
    reasons = {pod: Text(why, style=BAD) for pod, why in answer.unplaced.items()}
    for pod, node in sorted((answer.placements | reasons).items()):
        table.add_row(pod, node)
    text = Text(f"{answer.latency_us:.0f} µs per call   total cost {answer.cost}   ")
    text.append(pluralize(answer.violations, "violation"), style=BAD if answer.violations else GOOD)
    if answer.unplaced:
        text.append(f"   {pluralize(len(answer.unplaced), 'pod')} without a place", style=BAD)
    text.append(f"   planned in {answer.seconds:.1f} s", style=FAINT)
    if not table.rows:
        return Group(Text("no pod of an AppGroup is pending"), text)
    return Group(table, Text(), text)
