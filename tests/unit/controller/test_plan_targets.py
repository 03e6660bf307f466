"""The nodes that the plan of one group chooses for its pods, and the reasons of unplaced pods."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import msgspec
import pytest

from controller.cluster.crds import WORKLOAD_LABEL
from controller.cluster.pods import Pod, Target
from controller.scheduler.affinity import NARROWED_ANNOTATION
from controller.scheduler.placement.planner import Plan, plan_group
from kubekit.wire import Condition, Node
from tests.unit.controller import groups

CHAIN, PAIR = groups.make_chain(), groups.make_chain((1, 1))
FIVE_REPLICAS = groups.make_lone_workload(5)
ABC = groups.make_nodes(a=9, b=9, c=9)
ON_A, ON_B, ON_C = Target("z0", "r", "a"), Target("z1", "r", "b"), Target("z2", "r", "c")
ON_DELETED_NODE = Target("z9", "r", "gone")
CALLER, CALLEE = groups.make_waiting_pod("w0-0", "w0"), groups.make_waiting_pod("w1-0", "w1")
CALLER_KEY, CALLEE_KEY = CALLER.metadata.key, CALLEE.metadata.key
BOUND_CALLER = [groups.make_bound_pod("w0-0", "w0", "b"), CALLEE]
FINISHED = msgspec.structs.replace(CALLER, status=msgspec.structs.replace(CALLER.status, phase="Succeeded"))
GATES = [{"name": "netaware.io/topological-order"}, {"name": "kueue.x-k8s.io/admission"}]
WITH_ANOTHER_GATE = groups.make_waiting_pod("w0-0", "w0", schedulingGates=GATES)


SCALE_OUT_GROUP = groups.GroupCase(
    replicas=(3, 3), edges=((0, 1, 100),), cost=((0, 9, 9), (9, 0, 9), (9, 9, 0)), slots=(9, 9, 9)
)
"""w0 calls w1. Nodes and pods are those of each scale-out."""


class TargetCase(NamedTuple):
    """A group on some nodes.

    Attributes:
        changes: fields of the snapshot that differ from `make_snapshot`.
        expected: node by pod, None for an unplaced pod.
    """

    group: groups.GroupCase
    nodes: list[Node]
    changes: dict[str, Any]
    expected: dict[str, str | None]


class ScaleOut(NamedTuple):
    """Zones of the running callers and callees, and those of the new replicas of the workload that is scaled out."""

    workload: str
    callers: tuple[int, ...]
    callees: tuple[int, ...]
    new_zones: list[str]


def make_aged_pods(*names: str) -> list[Pod]:
    """Pods of w0, the oldest first."""
    pods = enumerate(groups.make_waiting_pod(name, "w0") for name in names)
    return [groups.with_metadata(pod, creation_timestamp=f"2026-11-22T10:{minute:02}:00Z") for minute, pod in pods]


def make_pod_with_required_zone(zone: str, *, is_ours: bool) -> Pod:
    """A pod whose required zone an earlier plan, or its user, wrote."""
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    annotations = {NARROWED_ANNOTATION: msgspec.json.encode(expression).decode()} if is_ours else {}
    return groups.with_metadata(groups.make_waiting_pod("w0-0", "w0", affinity=affinity), annotations=annotations)


def plan_avoiding(avoided: str, callee: Pod) -> Plan:
    """The plan of a caller, whose previous target is a, and a callee, on nodes a and b, of which some are avoided."""
    return groups.plan_case(
        PAIR,
        groups.make_nodes(a=8, b=8),
        avoided_nodes=frozenset(avoided),
        previous_targets={CALLER_KEY: ON_A},
        pods=[CALLER, callee],
    )


def plan_new_replicas(case: ScaleOut) -> list[str]:
    """Zones of the new replicas in the plan."""
    pods = [groups.make_bound_pod(f"w0-{i}", "w0", f"n{zone}-0") for i, zone in enumerate(case.callers)]
    pods += [groups.make_bound_pod(f"w1-{i}", "w1", f"n{zone}-0") for i, zone in enumerate(case.callees)]
    pods += [groups.make_waiting_pod(f"{case.workload}-new-{i}", case.workload) for i in range(len(case.new_zones))]
    nodes = [groups.make_zone_node(f"n{zone}-{number}", f"z{zone}", "9") for zone in range(3) for number in range(4)]
    services = [groups.make_service("w1", "PreferSameZone")]
    plan = groups.plan_case(SCALE_OUT_GROUP, nodes, pods=pods, services=services, objective="time", spread="soft")
    assert not plan.unplaced
    return sorted(target.zone for target in plan.targets.values())


CASES = {
    "bound pods stay and attract the rest": TargetCase(
        CHAIN, ABC, {"pods": [CALLER, CALLEE, groups.make_bound_pod("w2-0", "w2", "c")]},
        {"w0-0": "c", "w1-0": "c"},
    ),
    "a released pod keeps its target": TargetCase(
        CHAIN, groups.make_nodes(a=1, b=9, c=9), {"released_targets": {CALLER_KEY: ON_A}},
        {"w0-0": "a", "w1-0": "b", "w2-0": "b"},
    ),
    "a released pod whose target is gone gets another": TargetCase(
        groups.make_chain((1,)), groups.make_nodes(a=9), {"released_targets": {CALLER_KEY: ON_DELETED_NODE}},
        {"w0-0": "a"},
    ),
    "a bound pod that is not counted yet attracts the rest": TargetCase(
        PAIR, groups.make_nodes(a=1, b=2), {"pods": BOUND_CALLER, "assigned_nodes": {}},
        {"w1-0": "b"},
    ),
    "a bound pod that is not counted yet uses its node's resources": TargetCase(
        PAIR, groups.make_nodes(a=1, b=1), {"pods": BOUND_CALLER, "assigned_nodes": {}},
        {"w1-0": "a"},
    ),
    "a pod is counted but still looks waiting": TargetCase(
        PAIR, groups.make_nodes(a=1, b=2), {"used": {"b": {"cpu": 1000, "pods": 1}}, "assigned_nodes": {CALLER_KEY: "b"}},
        {"w1-0": "b"},
    ),
    "a pod with another gate gets no target": TargetCase(
        PAIR, groups.make_nodes(a=1), {"pods": [WITH_ANOTHER_GATE, CALLEE], "replicas": {"w0": 1}},
        {"w1-0": "a"},
    ),
    "no limit is violated to avoid a host": TargetCase(
        groups.make_chain((1, 1), limit=9), ABC,
        {"avoided_nodes": frozenset("ab"), "pods": [groups.make_bound_pod("w0-0", "w0", "a"), CALLEE]},
        {"w1-0": "a"},
    ),
    "finished pods and pods of unknown workloads get no target": TargetCase(
        PAIR, groups.make_nodes(a=9), {"pods": [FINISHED, CALLEE, groups.make_waiting_pod("x", "unknown")]},
        {"w1-0": "a"},
    ),
    "a host that refused a pod gets other pods": TargetCase(
        PAIR, groups.make_nodes(a=9, b=1), {"refused_nodes": {CALLER_KEY: frozenset("a")}},
        {"w0-0": "b", "w1-0": "a"},
    ),
    "released pods count beside reservations of other groups": TargetCase(
        PAIR, groups.make_nodes(a=3, b=1), {"reserved": {"a": {"cpu": 2000}}, "released_targets": {CALLER_KEY: ON_A}},
        {"w0-0": "a", "w1-0": "b"},
    ),
    "a zone that an earlier plan required is not a constraint": TargetCase(
        groups.make_chain((1,)), groups.make_nodes(a=9), {"pods": [make_pod_with_required_zone("z1", is_ours=True)]},
        {"w0-0": "a"},
    ),
    "a zone that the user requires is a constraint": TargetCase(
        groups.make_chain((1,)), groups.make_nodes(a=9), {"pods": [make_pod_with_required_zone("z1", is_ours=False)]},
        {"w0-0": None},
    ),
    "the oldest pods get zones in turn, the youngest has no place": TargetCase(
        FIVE_REPLICAS, groups.make_nodes(a=2, b=2), {"pods": make_aged_pods(*"edcba")},
        {"e": "a", "d": "b", "c": "a", "b": "b", "a": None},
    ),
    "the older of two pods keeps a host that fits one": TargetCase(
        FIVE_REPLICAS, groups.make_nodes(a=1, b=1),
        {"pods": make_aged_pods(*"ba"), "previous_targets": {"default/a": ON_A, "default/b": ON_A}},
        {"b": "a", "a": "b"},
    ),
    "equal pods keep their hosts": TargetCase(
        groups.make_lone_workload(3), groups.make_nodes(a=1, b=2),
        {"previous_targets": {CALLER_KEY: ON_B, "default/w0-1": ON_A, "default/w0-2": ON_B}},
        {"w0-0": "b", "w0-1": "a", "w0-2": "b"},
    ),
    "a pod whose previous host is gone gets another": TargetCase(
        groups.make_lone_workload(2), groups.make_nodes(a=1, b=1),
        {"previous_targets": {CALLER_KEY: ON_DELETED_NODE, "default/w0-1": ON_A}},
        {"w0-0": "b", "w0-1": "a"},
    ),
}  # fmt: skip


SCALE_OUTS = {
    "callees go to zones whose callers have none": ScaleOut("w1", (0, 1, 2), (0,), ["z1", "z2"]),
    "callees go to the zone of most callers": ScaleOut("w1", (0, 0, 1), (1,), ["z0", "z0"]),
    "a callee goes beside an overloaded one": ScaleOut("w1", (0, 0, 0, 0), (0, 1), ["z0"]),
    "callees are spread by the share of callers": ScaleOut("w1", (0, 0, 0, 1), (0, 1), ["z0", "z0"]),
    "a callee goes to the zone with more load per callee": ScaleOut("w1", (1, 1, 2, 2), (1, 1, 2), ["z2"]),
    "a caller goes near a callee without load": ScaleOut("w0", (0, 0), (0, 2), ["z2"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_targets_of_pods(case: TargetCase) -> None:
    assert groups.map_nodes_by_pod(groups.plan_case(case.group, case.nodes, **case.changes)) == case.expected


def test_a_pod_group_that_does_not_fit_wholly_gets_no_target() -> None:
    gang: dict[str, Any] = {"schedulingGroup": {"podGroupName": "gang"}}
    pods = [groups.make_waiting_pod("w0-0", "w0", **gang), CALLEE, groups.make_waiting_pod("w0-1", "w0", "99", **gang)]
    plan = groups.plan_case(groups.make_chain((2, 1)), groups.make_nodes(a=2, b=1), pods=pods)
    assert set(plan.targets) == {CALLEE_KEY}
    assert plan.cost == plan.traffic == 0


def test_the_order_of_pods_and_nodes_does_not_change_the_plan() -> None:
    snapshot = groups.make_snapshot(groups.draw_case(random.Random(4)))
    pods, hosts = list(reversed(snapshot.pods)), dict(reversed(list(snapshot.hosts.items())))
    assert plan_group(snapshot) == plan_group(msgspec.structs.replace(snapshot, pods=pods, hosts=hosts))


def test_declared_replicas_without_a_pod_are_placed_without_a_target() -> None:
    """w0 declares two more replicas: two of the four callers are in the other zone, wherever the pods are placed."""
    snapshot = groups.make_snapshot(PAIR, groups.make_nodes(a=2, b=2))
    assert plan_group(snapshot).cost == 0

    plan = plan_group(msgspec.structs.replace(snapshot, replicas={"w0": 3, "w1": 1}))
    assert plan.cost == 10  # 2 callers * cost 5
    assert set(plan.targets) == {CALLER_KEY, CALLEE_KEY}, "a replica without a pod has no target"
    assert plan.unplaced == ()


def test_the_first_pod_by_name_is_the_model_of_missing_replicas() -> None:
    """Two missing replicas of one core fit beside the two pods; of three cores they do not."""
    pods = [groups.make_waiting_pod("w0-0", "w0", "1"), groups.make_waiting_pod("w0-1", "w0", "3")]
    snapshot = groups.make_snapshot(
        groups.make_lone_workload(2), groups.make_nodes(a=4, b=2), pods=pods, replicas={"w0": 4}
    )
    plan = plan_group(snapshot)
    assert plan.unplaced == ()
    assert plan_group(msgspec.structs.replace(snapshot, pods=pods[::-1])) == plan


def test_an_avoided_host_is_used_only_if_that_places_more_pods() -> None:
    without_node = groups.make_waiting_pod("w1-0", "w1", nodeSelector={"disk": "none"})
    assert groups.map_nodes_by_pod(plan_avoiding("a", without_node)) == {"w0-0": "b", "w1-0": None}
    assert groups.map_nodes_by_pod(plan_avoiding("ab", without_node)) == {"w0-0": "a", "w1-0": None}


def test_an_avoided_host_is_not_the_reason_of_an_unplaced_pod() -> None:
    plan = plan_avoiding("a", groups.make_waiting_pod("w1-0", "w1", cpu="99"))
    assert "2 insufficient cpu" in plan.unplaced_reasons[CALLEE_KEY]


def test_preferred_anti_affinity_places_replicas_on_different_hosts_if_there_are_enough() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {WORKLOAD_LABEL: "w0"}}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    pods = [groups.make_waiting_pod(f"w0-{k}", "w0", affinity={"podAntiAffinity": preferred}) for k in range(3)]
    nodes = groups.make_nodes(a=8, a2=8, c=8)
    plan = groups.plan_case(groups.make_chain((3, 1, 1)), nodes, pods=pods)
    assert sorted(target.node for target in plan.targets.values()) == ["a", "a2", "c"]
    assert len(groups.plan_case(groups.make_chain((3, 1, 1)), nodes[:2], pods=pods).targets) == 3


def test_a_group_without_pods_has_an_empty_plan() -> None:
    assert groups.plan_case(CHAIN, groups.make_nodes(a=8), pods=[]) == Plan()


def test_without_nodes_all_pods_are_unplaced() -> None:
    assert sorted(groups.plan_case(CHAIN, []).unplaced) == ["default/w0-0", "default/w1-0", "default/w2-0"]


@pytest.mark.parametrize(
    ("cpu", "reason"),
    [
        ("999m", "insufficient cpu"),
        ("1", "insufficient resources beside the other pods of the plan"),
        ("1999m", "insufficient resources beside the other pods of the plan"),
        ("2", "pod affinity, anti-affinity or topology spread constraints"),
    ],
)
def test_the_reason_of_an_unplaced_pod_names_what_its_node_lacks(cpu: str, reason: str) -> None:
    """Two replicas of one core each that may not share a host: what fits exactly fits."""
    same_workload = {"matchLabels": {WORKLOAD_LABEL: "w0"}}
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": same_workload}]
    anti_affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    pods = [groups.make_waiting_pod(f"w0-{k}", "w0", affinity=anti_affinity) for k in range(2)]
    plan = groups.plan_case(groups.make_lone_workload(2), [groups.make_zone_node("a", "z0", cpu)], pods=pods)
    assert plan.unplaced[-1] == "default/w0-1"
    assert plan.unplaced_reasons["default/w0-1"] == f"0/1 nodes are available: 1 {reason}"


@pytest.mark.parametrize(
    ("taint", "ready", "reason"),
    [
        ("DeletionCandidateOfClusterAutoscaler", "True", "about to be removed"),
        ("karpenter.sh/disrupted", "True", "about to be removed"),
        ("node.kubernetes.io/not-ready", "False", "not Ready"),
        ("node.kubernetes.io/unreachable", "Unknown", "not Ready"),
    ],
)
def test_tolerations_of_every_taint_do_not_admit_nodes_that_are_not_ready(taint: str, ready: str, reason: str) -> None:
    node = groups.make_zone_node("a1", "z0", taints=[{"key": taint, "effect": "PreferNoSchedule"}])
    status = msgspec.structs.replace(node.status, conditions=[Condition(type="Ready", status=ready)])
    pod = groups.make_waiting_pod("w0-0", "w0", tolerations=[{"operator": "Exists"}])
    plan = groups.plan_case(groups.make_chain((1,)), [msgspec.structs.replace(node, status=status)], pods=[pod])
    assert plan.unplaced_reasons == {"default/w0-0": f"0/1 nodes are available: 1 {reason}"}


@pytest.mark.parametrize("case", SCALE_OUTS.values(), ids=SCALE_OUTS)
def test_new_replicas_go_where_callers_are_and_replicas_are_overloaded(case: ScaleOut) -> None:
    assert plan_new_replicas(case) == case.new_zones
