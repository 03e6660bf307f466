"""Plans of whole groups: near the optimum, within what fits, honouring what pods ask for, the same for the same state."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from controller.cluster.costs import CostTable
from controller.cluster.hosts import NodeCache
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import GroupPod, GroupPodSpec, PodContainer, Target
from controller.cluster.requests import requests_of
from controller.cluster.resources import WORKLOAD_LABEL
from controller.cluster.services import Service
from controller.scheduler.affinity import NARROWED_ANNOTATION
from controller.scheduler.placement.planner import Plan, plan_group
from controller.scheduler.placement.snapshot import GroupSnapshot, without_pod
from kubekit.wire import Condition, Node, ResourceRequirements
from tests.unit.controller import groups
from tests.unit.controller.groups import bound_pod, node, plan_of, snapshot, waiting_pod


def line(replicas: tuple[int, ...] = (1, 1, 1), most: int = 100) -> groups.Case:
    """w0 -> w1 -> w2, in three zones 5 apart from the next and 50 from the one after."""
    edges = tuple((i, i + 1, most) for i in range(len(replicas) - 1))
    return groups.Case(replicas, edges, ((0, 5, 50), (5, 0, 5), (50, 5, 0)), (9, 9, 9))


THREE = [node("a", "z0"), node("b", "z1"), node("c", "z2")]


def worth_of(start: GroupSnapshot, plan: Plan) -> tuple[int, int]:
    """Cost and violations once everything is bound as planned."""
    bound = [
        msgspec.structs.replace(
            pod, spec=msgspec.structs.replace(pod.spec, node_name=plan.targets[pod.metadata.key].node)
        )
        for pod in start.pods
        if pod.metadata.key in plan.targets
    ]
    found = plan_group(msgspec.structs.replace(start, pods=bound))
    return found.cost, found.violations


def zones_of(plan: Plan) -> dict[str, str]:
    return {key.removeprefix("default/"): target.zone for key, target in plan.targets.items()}


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_never_puts_more_on_a_host_than_fits_and_its_figures_are_those_of_its_targets(seed: int) -> None:
    case = groups.random_case(random.Random(seed))
    start = groups.snapshot_of(case)
    plan = plan_group(start)
    for name, host in start.hosts.items():
        assert sum(t.node == name for t in plan.targets.values()) <= host.allocatable["cpu"] // 1000
    assert worth_of(start, plan) == (plan.cost, plan.violations)


def test_a_limit_for_each_dependency_costs_a_plan_no_more_than_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may have thousands of limits, and the other groups wait for its plan."""
    zones, workloads, asked = 12, 16, list[int]()
    check = CostTable.check_limit

    def count(*args: Any) -> Any:
        asked.append(1)
        return check(*args)

    monkeypatch.setattr(CostTable, "check_limit", count)
    pairs = [(i, j) for i in range(workloads) for j in range(workloads) if i != j]
    cost = tuple(tuple(abs(a - b) * 10 for b in range(zones)) for a in range(zones))
    counts = []
    for limits in ([50] * len(pairs), range(50, 50 + len(pairs))):
        edges = tuple((i, j, limit) for (i, j), limit in zip(pairs, limits, strict=True))
        asked.clear()
        plan_group(groups.snapshot_of(groups.Case((1,) * workloads, edges, cost, (2,) * zones)), deadline_s=0.5)
        counts.append(len(asked))
    assert counts[1] < 2 * counts[0]


def test_the_same_state_gives_the_same_plan_whatever_the_order_of_its_parts() -> None:
    one = groups.snapshot_of(groups.random_case(random.Random(4)))
    other = msgspec.structs.replace(one, pods=list(reversed(one.pods)), hosts=dict(reversed(list(one.hosts.items()))))
    assert plan_group(one) == plan_group(other)


def test_what_is_bound_stays_and_draws_the_rest_and_room_that_others_take_is_not_given_away() -> None:
    pods = [waiting_pod("w0-0", "w0"), waiting_pod("w1-0", "w1"), bound_pod("w2-0", "w2", "c")]
    assert zones_of(plan_of(line(), THREE, pods=pods)) == {"w0-0": "z2", "w1-0": "z2"}
    small = [node("a", "z0", "2"), node("b", "z1", "2"), node("c", "z2", "2")]
    plan = plan_of(line(), small, used={"a": {"cpu": 2000}, "b": {"cpu": 1000}})
    assert sorted(zones_of(plan).values()) == ["z1", "z2", "z2"]


@pytest.mark.parametrize(
    ("services", "elsewhere", "near"),
    [
        ((), False, False),
        ((groups.service("w1", "PreferSameZone"),), False, True),
        ((groups.service("w1", "PreferSameZone"),), True, False),
    ],
    ids=["none", "one", "pods of a second namespace that it does not select"],
)
def test_the_services_that_select_a_workload_tell_who_answers(services: Any, *, elsewhere: bool, near: bool) -> None:
    """Of several namespaces the Service that keeps least near counts: one that sorts first decides nothing."""
    full = {"a": {"cpu": 1000}, "b": {"cpu": 1000}}
    pods = [bound_pod("w0-0", "w0", "a"), bound_pod("w0-1", "w0", "b"), *groups.pods_of(line((0, 2)))]
    if elsewhere:
        moved = msgspec.structs.replace(pods[-1].metadata, namespace="elsewhere")
        pods[-1] = msgspec.structs.replace(pods[-1], metadata=moved)
    nodes = [node("a", "z0", "2"), node("b", "z1", "2")]
    plan = plan_of(line((2, 2, 0)), nodes, used=full, pods=pods, objective="time", services=services)
    assert plan.latency_us < 1000.0 if near else plan.latency_us > 2000.0


def test_targets_of_released_pods_stay_and_hold_their_room() -> None:
    nodes = [node("a", "z0", "1"), node("b", "z1", "9"), node("c", "z2", "9")]
    released = {"default/w0-0": Target("z0", "r", "a")}
    plan = plan_of(line(), nodes, released=released)
    assert zones_of(plan) == {"w0-0": "z0", "w1-0": "z1", "w2-0": "z1"}


def test_two_watches_that_disagree_count_nothing_twice_and_nothing_never() -> None:
    case, nodes = line((1, 1)), [node("a", "z0", "1"), node("b", "z1", "2")]
    first, second = groups.pods_of(case)
    bound = msgspec.structs.replace(
        first, spec=msgspec.structs.replace(first.spec, node_name="b", scheduling_gates=None)
    )
    # The pod is known to be bound, but nobody has counted what it uses.
    ahead = plan_of(case, nodes, pods=[bound, second], assigned_nodes={})
    # What it uses is counted, but the pod itself still looks as if it waited.
    used = {"b": {"cpu": 1000, "pods": 1}}
    behind = plan_of(case, nodes, pods=[first, second], used=used, assigned_nodes={"default/w0-0": "b"})
    assert zones_of(ahead) == zones_of(behind) == {"w1-0": "z1"}
    small = [node("a", "z0", "1"), node("b", "z1", "1")]
    assert zones_of(plan_of(case, small, pods=[bound, second], assigned_nodes={})) == {"w1-0": "z0"}


def test_a_released_pod_whose_host_is_gone_is_planned_anew() -> None:
    released = {"default/w0-0": Target("z9", "r", "gone")}
    plan = plan_of(line(), [node("a", "z0")], released=released)
    assert zones_of(plan)["w0-0"] == "z0"


def test_replicas_that_are_declared_but_not_there_yet_get_their_room() -> None:
    """Two more of w0 are on their way: two of the four call from the other zone, wherever what is there goes."""
    asked = snapshot(line((1, 1)), [node("a", "z0", "2"), node("b", "z1", "2")])
    assert plan_group(asked).cost == 0
    plan = plan_group(msgspec.structs.replace(asked, replicas={"w0": 3, "w1": 1}))
    assert plan.cost == 10
    assert set(plan.targets) == {"default/w0-0", "default/w1-0"}, "and no target for what does not exist"
    assert plan.unplaced == ()


def test_replicas_to_come_are_like_the_first_of_their_workload_by_name() -> None:
    case, nodes = groups.Case((2,), (), ((0, 5), (5, 0)), (9, 9)), [node("a", "z0", "4"), node("b", "z1", "2")]
    pods = [waiting_pod("w0-0", "w0", "1"), waiting_pod("w0-1", "w0", "3")]
    asked = snapshot(case, nodes, pods=pods, replicas={"w0": 4})
    plan = plan_group(asked)
    assert plan.unplaced == ()
    assert plan_group(msgspec.structs.replace(asked, pods=pods[::-1])) == plan


def test_a_dependency_weighs_as_much_as_it_has_callers() -> None:
    """w1 is called by three of w0, which are 5 or 15 away, and by one of w2, which is 30 or 5 away."""
    cost = ((0, 30, 5, 15), (30, 0, 30, 5), (5, 30, 0, 20), (15, 5, 20, 0))
    case = groups.Case((3, 1, 1), ((0, 1, 100), (2, 1, 100)), cost, (9, 9, 9, 9))
    full = {"a": {"cpu": 8000}, "b": {"cpu": 8000}}
    nodes = [node("a", "z0"), node("b", "z1"), node("c", "z2"), node("d", "z3")]

    def placed(callers: int) -> dict[str, str]:
        pods = [bound_pod(f"w0-{i}", "w0", "a") for i in range(callers)] + [bound_pod("w2-0", "w2", "b")]
        pods.append(waiting_pod("w1-0", "w1"))
        return zones_of(plan_of(case, nodes, used=full, pods=pods, objective="time"))

    assert placed(3) == {"w1-0": "z2"}
    assert placed(2) == {"w1-0": "z3"}


def test_a_hot_host_is_not_taken_where_it_would_help_nobody() -> None:
    nodes = [node("a", "z0"), node("b", "z1")]
    nowhere = waiting_pod("w1-0", "w1", nodeSelector={"disk": "none"})
    previous = {"default/w0-0": Target("z0", "r", "a")}
    asked = snapshot(line((1, 1)), nodes, hot=frozenset({"a"}), previous=previous)
    asked = msgspec.structs.replace(asked, pods=[asked.pods[0], nowhere])
    plan = plan_group(asked)
    assert (zones_of(plan), plan.unplaced) == ({"w0-0": "z1"}, ("default/w1-0",))
    plan = plan_group(msgspec.structs.replace(asked, hot=frozenset({"a", "b"})))
    assert (zones_of(plan), plan.unplaced) == ({"w0-0": "z0"}, ("default/w1-0",)), "nothing else will do"
    full = waiting_pod("w1-0", "w1", cpu="99")
    plan = plan_group(msgspec.structs.replace(asked, pods=[asked.pods[0], full]))
    assert "2 insufficient cpu" in plan.unplaced_reasons["default/w1-0"], "a is hot, but that is not why"


def test_pods_whose_pod_group_is_not_complete_are_not_in_the_figures_of_a_plan() -> None:
    gang: dict[str, Any] = {"schedulingGroup": {"podGroupName": "gang"}}
    pods = [waiting_pod("w0-0", "w0", **gang), waiting_pod("w1-0", "w1"), waiting_pod("w0-1", "w0", "99", **gang)]
    case = line((2, 1))
    plan = plan_of(case, [node("a", "z0", "2"), node("b", "z1", "1")], pods=pods)
    assert set(plan.targets) == {"default/w1-0"}
    assert (plan.cost, plan.traffic) == (0, 0)


@pytest.mark.parametrize(
    ("spec", "zone"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, "z2"),
        ({"nodeSelector": {"disk": "nvme"}}, None),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["hdd", "ssd"]}]}
                            ]
                        }
                    }
                }
            },
            "z1",
        ),
        ({"tolerations": [{"key": "only", "operator": "Exists"}], "nodeSelector": {"disk": "hdd"}}, "z0"),
        ({"nodeSelector": {"disk": "hdd"}}, None),
    ],
    ids=["selector", "no-such-node", "affinity", "tolerated-taint", "taint"],
)
def test_node_selectors_affinity_and_taints_are_honoured(spec: dict[str, Any], zone: str | None) -> None:
    nodes = [
        node("a", "z0", labels={"disk": "hdd"}, taints=[{"key": "only", "value": "x", "effect": "NoSchedule"}]),
        node("b", "z1"),
        node("c", "z2", labels={"disk": "ssd"}),
    ]
    pods = [waiting_pod("w0-0", "w0", **spec)]
    plan = plan_of(line(), nodes, pods=pods)
    assert zones_of(plan).get("w0-0") == zone
    assert plan.unplaced == (() if zone else ("default/w0-0",))


def test_replicas_spread_over_zones_when_a_constraint_asks_for_it() -> None:
    constraint = {
        "topologyKey": "topology.kubernetes.io/zone",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {WORKLOAD_LABEL: "w0"}},
    }
    pods = [waiting_pod(f"w0-{k}", "w0", topologySpreadConstraints=[constraint]) for k in range(3)]
    where = zones_of(plan_of(line((3, 1, 1)), THREE, pods=[*pods, waiting_pod("w1-0", "w1")]))
    assert ({where[f"w0-{k}"] for k in range(3)}, where["w1-0"]) == ({"z0", "z1", "z2"}, "z1")


@pytest.mark.parametrize("required", [True, False], ids=["required", "preferred"])
def test_anti_affinity_keeps_replicas_on_different_hosts(required: bool) -> None:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"appgroup.diktyo.x-k8s.io.workload": "w0"}},
    }
    kind = "required" if required else "preferred"
    terms: list[dict[str, Any]] = [term if required else {"weight": 1, "podAffinityTerm": term}]
    affinity = {"podAntiAffinity": {f"{kind}DuringSchedulingIgnoredDuringExecution": terms}}
    pods = [waiting_pod(f"w0-{k}", "w0", affinity=affinity) for k in range(3)]
    hosts = [node("a", "z0"), node("b", "z0"), node("c", "z2")]
    plan = plan_of(line((3, 1, 1)), hosts, pods=pods)
    assert sorted(t.node for t in plan.targets.values()) == ["a", "b", "c"]
    crowded = plan_of(line((3, 1, 1)), hosts[:2], pods=pods)
    assert len(crowded.targets) == (2 if required else 3)
    assert len(crowded.unplaced) == (1 if required else 0)


def test_a_violation_is_accepted_only_where_none_can_be_avoided() -> None:
    nodes = [node("a", "z0", "1"), node("b", "z1", "1"), node("c", "z2", "1")]
    pods = [waiting_pod("w0-0", "w0"), waiting_pod("w1-0", "w1")]
    assert plan_of(line(most=5), nodes, pods=pods).violations == 0
    assert plan_of(line(most=5), [nodes[0], nodes[2]], pods=pods).violations == 1


def test_an_earlier_plan_is_kept_when_no_other_is_better() -> None:
    nodes = [node("a", "z0"), node("b", "z1"), node("c", "z2")]
    for name, zone in (("a", "z0"), ("b", "z1"), ("c", "z2")):
        before = {f"default/w{i}-0": Target(zone, "r", name) for i in range(3)}
        plan = plan_of(line(), nodes, previous=before)
        assert set(zones_of(plan).values()) == {zone}


def test_nothing_to_place_and_nowhere_to_place_are_answered() -> None:
    nothing = plan_of(line(), [node("a", "z0")], pods=[])
    assert (nothing.targets, nothing.cost, nothing.violations, nothing.latency_us) == ({}, 0, 0, 0.0)
    assert sorted(plan_of(line(), []).unplaced) == ["default/w0-0", "default/w1-0", "default/w2-0"]


def test_requests_are_counted_as_kube_scheduler_counts_them() -> None:
    def container(cpu: str, **fields: Any) -> PodContainer:
        return msgspec.convert({"resources": {"requests": {"cpu": cpu}}, **fields}, PodContainer)

    def of(containers: list[PodContainer], first: list[PodContainer] | None = None, **fields: Any) -> dict[str, int]:
        return requests_of(GroupPodSpec(containers=containers, init_containers=first, **fields))

    sidecar = container("200m", restartPolicy="Always")
    whole = ResourceRequirements(requests={"cpu": "700m", "memory": "1Ki", "example.com/gpu": "3"})
    assert of([container("1"), container("500m")]) == {"cpu": 1500, "pods": 1}
    assert of([container("1")], [container("3")], overhead={"cpu": "100m"}) == {"cpu": 3100, "pods": 1}
    assert of([container("1")], [sidecar, container("900m")]) == {"cpu": 1200, "pods": 1}
    assert of([container("1")], [sidecar, container("2")]) == {"cpu": 2200, "pods": 1}
    assert of([container("1")], resources=whole) == {"cpu": 700, "memory": 1024, "pods": 1}
    assert of([container("1")], resources=whole, overhead={"cpu": "1"})["cpu"] == 1700


@pytest.mark.parametrize(
    ("asked", "allocated", "has", "conditions", "cpu"),
    [
        ("1", None, None, [], 1000),
        ("1", "1", "2", [], 2000),  # it shrinks, and its node has not taken the rest back yet
        ("4", "2", "2", [], 4000),  # it grows
        ("1", "3", "2", [], 3000),
        ("4", "2", "2", [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}], 2000),
        ("4", "2", "2", [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}], 4000),
    ],
)
def test_a_container_that_is_resized_in_place_holds_the_larger_of_what_it_has_and_what_it_gets(
    asked: str, allocated: str | None, has: str | None, conditions: list[dict[str, str]], cpu: int
) -> None:
    held: dict[str, Any] = {"name": "c"}
    if allocated:
        held["allocatedResources"] = {"cpu": allocated}
    if has:
        held["resources"] = {"requests": {"cpu": has}}
    body = {
        "metadata": {"name": "p", "namespace": "d"},
        "spec": {"nodeName": "a", "containers": [{"name": "c", "resources": {"requests": {"cpu": asked}}}]},
        "status": {"containerStatuses": [held], "conditions": conditions},
    }
    pod, reader = msgspec.convert(body, GroupPod), PodReader()
    assert requests_of(pod.spec, pod.status)["cpu"] == cpu
    other = msgspec.convert({**body, "status": {}}, GroupPod)
    assert (reader.read(other).requests["cpu"], reader.read(pod).requests["cpu"]) == (int(asked) * 1000, cpu)


def test_the_fleet_counts_each_bound_pod_once_however_often_it_is_seen() -> None:
    def bound(cpu: str, where: str = "a") -> PodInfo:
        containers = [{"resources": {"requests": {"cpu": cpu}}}]
        spec = {"nodeName": where, "containers": containers}
        pod = msgspec.convert({"metadata": {"name": "p", "namespace": "d"}, "spec": spec}, GroupPod)
        return PodReader().read(pod)

    node_cache = NodeCache()
    node_cache.on_node_change("a", None, node("a", "z0"))
    for _ in range(2):
        node_cache.on_pod_change("d/p", None, bound("1"))
    assert node_cache.used["a"] == {"cpu": 1000, "pods": 1}
    node_cache.on_pod_change("d/p", bound("1"), bound("2"))
    assert node_cache.used["a"] == {"cpu": 2000, "pods": 1}
    node_cache.on_pod_change("d/p", bound("2"), None)
    assert node_cache.used["a"] == {"cpu": 0, "pods": 0}
    version = node_cache.version
    node_cache.on_node_change("a", None, node("a", "z0"))
    assert node_cache.version == version
    node_cache.on_node_change("a", None, None)
    assert node_cache.hosts == {}


def test_pods_behind_another_gate_take_nobodys_place() -> None:
    case = groups.Case((1, 1), (), ((0, 5), (5, 0)), (1, 1))
    held = waiting_pod(
        "w0-0", "w0", schedulingGates=[{"name": "netaware.io/topological-order"}, {"name": "kueue.x-k8s.io/admission"}]
    )
    found = snapshot(case, [node("a", "z0", cpu="1")], pods=[held, waiting_pod("w1-0", "w1")], replicas={"w0": 1})
    plan = plan_group(found)
    assert set(plan.targets) == {"default/w1-0"}
    assert plan.unplaced == ()


def test_a_limit_is_not_broken_for_the_sake_of_a_cool_host() -> None:
    """w0 stands in z0, and w1 may be no more than 9 away: only z0 and z1 will do, and both are hot."""
    nodes = [node("a1", "z0"), node("b1", "z1"), node("c1", "z2")]
    case = line((1, 1, 0), most=9)
    pods = list(snapshot(case, nodes).pods)
    pinned = msgspec.convert({**msgspec.to_builtins(pods[0]), "spec": {"nodeName": "a1"}}, GroupPod)
    view = snapshot(case, nodes, hot=frozenset({"a1", "b1"}), pods=[pinned, *pods[1:]])
    plan = plan_group(view)
    assert plan.violations == 0
    assert {target.node for target in plan.targets.values()} <= {"a1", "b1"}


@pytest.mark.parametrize(
    ("taint", "ready", "why"),
    [
        ("DeletionCandidateOfClusterAutoscaler", "True", "about to be removed"),
        ("karpenter.sh/disrupted", "True", "about to be removed"),
        ("node.kubernetes.io/not-ready", "False", "not Ready"),
        ("node.kubernetes.io/unreachable", "Unknown", "not Ready"),
    ],
)
def test_a_pod_that_tolerates_every_taint_is_not_planned_where_it_could_not_start(
    taint: str, ready: str, why: str
) -> None:
    closed = node("a1", "z0", taints=[{"key": taint, "effect": "PreferNoSchedule"}])
    conditions = [Condition(type="Ready", status=ready)]
    closed = msgspec.structs.replace(closed, status=msgspec.structs.replace(closed.status, conditions=conditions))
    pod = waiting_pod("w0-0", "w0", tolerations=[{"operator": "Exists"}])
    assert plan_of(line((1, 0, 0)), [closed], pods=[pod]).unplaced_reasons == {
        "default/w0-0": f"0/1 nodes are available: 1 {why}"
    }


@pytest.mark.parametrize(("restarts", "held"), [("Always", True), (None, False)])
def test_a_sidecar_holds_its_host_port_and_an_init_container_does_not(restarts: str | None, held: bool) -> None:
    """Whoever asks, the planner or the account of what hosts have: kube-scheduler counts ports of what goes on running."""
    first = {"name": "i", "restartPolicy": restarts, "ports": [{"containerPort": 9100, "hostPort": 9100}]}
    spec = {"containers": [{"name": "c"}], "initContainers": [first]}
    body = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"nodeName": "a", **spec}}
    node_cache = NodeCache()
    node_cache.on_node_change("a", None, node("a", "z0"))
    node_cache.on_pod_change("d/p", None, PodReader().read(msgspec.convert(body, GroupPod)))
    assert node_cache.used["a"].get("port:TCP/9100", 0) == held
    pods = [waiting_pod(f"w0-{i}", "w0", initContainers=[first], containers=[{"name": "c"}]) for i in range(2)]
    plan = plan_of(groups.Case((2,), (), ((0,),), (9,)), [node("b", "z0")], pods=pods)
    assert len(plan.unplaced) == held


def test_the_room_of_a_pod_that_holds_more_than_it_asks_for_is_free_once_it_is_gone() -> None:
    """A resize in place that is under way: what its host counts for the pod is what leaves with it."""
    kept = {"name": "c", "resources": {"requests": {"cpu": "2"}}}
    spec = {"nodeName": "a", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    labels = waiting_pod("w0-0", "w0").metadata.labels
    meta = {"name": "w0-0", "namespace": "default", "labels": labels}
    body = {"metadata": meta, "spec": spec, "status": {"phase": "Running", "containerStatuses": [kept]}}
    pod = msgspec.convert(body, GroupPod)
    node_cache = NodeCache()
    node_cache.on_node_change("a", None, node("a", "z0"))
    node_cache.on_pod_change("default/w0-0", None, PodReader().read(pod))
    case = groups.Case((1,), (), ((0,),), (9,))
    gone = without_pod(snapshot(case, [], hosts=node_cache.hosts, used=node_cache.used, pods=[pod]), "default/w0-0")
    assert node_cache.used["a"]["cpu"] + gone.promised["a"]["cpu"] == 0


def aged(name: str, workload: str, minute: int, **spec: Any) -> GroupPod:
    pod = waiting_pod(name, workload, **spec)
    created = f"2026-11-22T10:{minute:02}:00Z"
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, creation_timestamp=created))


def test_of_pods_alike_the_oldest_take_zones_in_turn_and_the_youngest_go_without() -> None:
    case = groups.Case((5,), (), ((0, 5), (5, 0)), (2, 2))
    pods = [aged("e", "w0", 1), aged("d", "w0", 2), aged("c", "w0", 3), aged("b", "w0", 4), aged("a", "w0", 5)]
    plan = plan_of(case, [node("a", "z0", "2"), node("b", "z1", "2")], pods=pods)
    zones = zones_of(plan)
    assert plan.unplaced == ("default/a",), "the youngest"
    assert zones["e"] != zones["d"]
    assert zones["c"] != zones["b"]
    assert set(plan.unplaced_reasons) == {"default/a"}
    assert plan.unplaced_reasons["default/a"].startswith("0/2 nodes are available: 2 no room left")


@pytest.mark.parametrize(
    ("cpu", "why"),
    [
        ("999m", "insufficient cpu"),
        ("1", "no room left beside the other pods of the plan"),
        ("1999m", "no room left beside the other pods of the plan"),
        ("2", "pod affinity, anti-affinity or topology spread constraints"),
    ],
)
def test_a_pod_without_a_place_shows_what_its_node_lacks(cpu: str, why: str) -> None:
    """Two replicas of one core each that may not share a host: what fits exactly fits."""
    own = {"matchLabels": {WORKLOAD_LABEL: "w0"}}
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": own}]
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    pods = [waiting_pod(f"w0-{k}", "w0", affinity=apart) for k in range(2)]
    plan = plan_of(groups.Case((2,), (), ((0,),), (2,)), [node("a", "z0", cpu)], pods=pods)
    assert plan.unplaced[-1] == "default/w0-1"
    assert plan.unplaced_reasons["default/w0-1"] == f"0/1 nodes are available: 1 {why}"


def test_zones_take_turns_however_many_hosts_each_has() -> None:
    case = groups.Case((4,), (), ((0, 5), (5, 0)), (3, 1))
    pods = [aged("d", "w0", 1), aged("c", "w0", 2), aged("b", "w0", 3), aged("a", "w0", 4)]
    nodes = [node("a", "z0", "2"), node("a2", "z0", "1"), node("b", "z1", "1")]
    zones = zones_of(plan_of(case, nodes, pods=pods))
    assert {zones["d"], zones["c"]} == {"z0", "z1"}, "the two eldest"


def test_of_pods_alike_each_keeps_the_host_it_was_planned_for() -> None:
    case = groups.Case((3,), (), ((0, 5), (5, 0)), (1, 2))
    nodes = [node("a", "z0", "1"), node("b", "z1", "2")]
    for first in ("w0-0", "w0-1", "w0-2"):
        previous = {f"default/w0-{i}": Target("z1", "r", "b") for i in range(3)} | {
            f"default/{first}": Target("z0", "r", "a")
        }
        plan = plan_of(case, nodes, previous=previous)
        assert {k for k, t in plan.targets.items() if t.node == "a"} == {f"default/{first}"}
    gone = {"default/w0-0": Target("z9", "r", "gone"), "default/w0-1": Target("z0", "r", "a")}
    plan = plan_of(case, nodes, previous=gone)
    assert plan.targets["default/w0-1"].node == "a"


def test_a_host_that_was_planned_for_two_and_has_room_for_one_gets_the_elder() -> None:
    case = groups.Case((2,), (), ((0, 5), (5, 0)), (1, 1))
    pods = [aged("a", "w0", 2), aged("b", "w0", 1)]
    previous = {pod.metadata.key: Target("z0", "r", "a") for pod in pods}
    plan = plan_of(case, [node("a", "z0", "1"), node("b", "z1", "1")], pods=pods, previous=previous)
    assert {key: target.node for key, target in plan.targets.items()} == {"default/b": "a", "default/a": "b"}


def test_what_is_over_and_what_no_workload_knows_is_not_planned() -> None:
    case = line((1, 1))
    first, second = groups.pods_of(case)
    done = msgspec.structs.replace(first, status=msgspec.structs.replace(first.status, phase="Succeeded"))
    plan = plan_of(case, [node("a", "z0")], pods=[done, second, waiting_pod("x", "nobody")])
    assert set(plan.targets) == {"default/w1-0"}
    assert plan.unplaced == ()
    only = plan_of(case, [node("a", "z0")], pods=[done])
    assert only == Plan()


@pytest.mark.parametrize("objective", ["parity", "time"])
def test_latency_is_reported_whatever_a_group_is_planned_by(objective: str) -> None:
    plan = plan_of(line((1, 1)), [node("a", "z0", "1"), node("b", "z1", "1")], objective=objective)
    assert (plan.cost, plan.latency_us) == (5, 5000.0)


def test_a_way_that_was_not_measured_is_dear_while_others_are() -> None:
    """With a NetworkTopology, as there is one unless somebody says otherwise; without any, zones are taken for near."""
    nodes = [node("a", "z0", "1"), node("b", "z9", "1")]
    unknown = plan_of(line((1, 1)), nodes, objective="time")
    none = plan_of(line((1, 1)), nodes, objective="time", measured=False)
    assert unknown.latency_us == 100_000
    assert none.latency_us < 10_000


@pytest.mark.parametrize(
    ("seats", "used", "promised"),
    [
        ({"default/w0-0": "a", "default/w0-1": "b"}, 1000, 1000),
        ({"default/w0-1": "b"}, 0, 1000),
        ({"default/w0-0": "a", "default/w0-1": "b"}, 1000, 0),
        ({"default/w0-1": "b"}, 0, 0),
    ],
    ids=["counted", "not counted yet", "alone", "alone, not counted yet"],
)
def test_without_one_of_its_pods_a_cluster_has_its_room_and_another_like_it_waits(
    seats: dict[str, str], used: int, promised: int
) -> None:
    """Room for one is left on host a, whoever counted what; the pod on host b stays."""
    waiting = groups.pods_of(line((3,)))
    bound = [
        msgspec.convert(
            {
                **msgspec.to_builtins(pod),
                "spec": {**msgspec.to_builtins(pod.spec), "nodeName": host, "schedulingGates": []},
                "status": {"phase": "Running"},
            },
            GroupPod,
        )
        for pod, host in zip(waiting, "ab", strict=False)
    ]
    nodes = [node("a", "z0", "2" if promised else "1"), node("b", "z1", "1")]
    others = {"a": {"cpu": promised}} if promised else {}
    counted = {"a": {"cpu": used, "pods": used // 1000}, "b": {"cpu": 1000, "pods": 1}}
    start = snapshot(
        line((3,)),
        nodes,
        pods=[*bound, waiting[2]],
        assigned_nodes=seats,
        used=counted,
        promised={k: dict(v) for k, v in others.items()},
    )
    assert plan_group(start).targets == {}
    left = without_pod(start, "default/w0-0")
    assert [pod.metadata.name for pod in left.pods if pod.waiting] == ["w0-0", "w0-2"]
    found = plan_group(left)
    assert [target.node for target in found.targets.values()] == ["a"]
    assert len(found.unplaced) == 1
    assert start.promised == others, "whose it is stays as it was"


def test_a_zone_that_we_required_of_a_pod_does_not_bind_the_next_plan() -> None:
    """It is what an earlier plan wanted, and the annotation tells it from what the pod's user asked for."""
    ours = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z1"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [ours]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    users = waiting_pod("w0-0", "w0", affinity=affinity)
    noted = msgspec.structs.replace(
        users.metadata, annotations={NARROWED_ANNOTATION: msgspec.json.encode(ours).decode()}
    )
    nodes = [node("a", "z0")]
    narrowed = msgspec.structs.replace(users, metadata=noted)
    assert zones_of(plan_of(line((1,)), nodes, pods=[narrowed])) == {"w0-0": "z0"}
    assert zones_of(plan_of(line((1,)), nodes, pods=[users])) == {}


def test_a_host_that_was_refused_to_a_pod_is_given_to_others_alone() -> None:
    case = line((1, 1))
    nodes = [node("a", "z0", "9"), node("b", "z1", "1")]
    plan = plan_of(case, nodes, refused={"default/w0-0": frozenset({"a"})})
    assert {key: target.node for key, target in plan.targets.items()} == {"default/w0-0": "b", "default/w1-0": "a"}


def test_what_others_were_promised_is_not_given_away_and_released_pods_add_to_it() -> None:
    case, nodes = line((1, 1)), [node("a", "z0", "3"), node("b", "z1", "1")]
    promised = {"a": {"cpu": 1000, "pods": 1}}
    both = plan_of(case, nodes, promised=promised)
    assert {t.node for t in both.targets.values()} == {"a"}
    released = {"default/w0-0": Target("z0", "r", "a")}
    full = plan_of(case, nodes, promised={"a": {"cpu": 2000}}, released=released)
    assert {key: target.node for key, target in full.targets.items()} == {"default/w0-0": "a", "default/w1-0": "b"}
    assert promised == {"a": {"cpu": 1000, "pods": 1}}, "whose it is stays as it was"


def test_annotations_that_cannot_be_read_are_reported_once_and_the_default_counts() -> None:
    case = line((1, 1))
    group = groups.group_of(case)
    odd = {"netaware.io/spread": "everywhere", "netaware.io/objective": "speed", "netaware.io/weights": "{"}
    group = msgspec.structs.replace(group, metadata=msgspec.structs.replace(group.metadata, annotations=odd))
    noted = [
        msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=odd))
        for pod in groups.pods_of(case)
    ]
    plan = plan_of(case, [node("a", "z0")], group=group, pods=noted)
    assert len(plan.problems) == len(set(plan.problems)) == 3
    assert plan.problems[0].startswith("annotation netaware.io/spread: 'everywhere' is none of")
    assert {t.node for t in plan.targets.values()} == {"a"}


def test_total_cost_is_of_all_pairs_and_a_host_is_no_distance() -> None:
    nodes = [node(name, zone) for name, zone in (("a", "z0"), ("b", "z1"), ("c", "z2"), ("d", "z1"))]

    def cost(*at: str) -> tuple[int, int]:
        names = ("w0-0", "w0-1", "w1-0")
        pods = [bound_pod(name, name[:2], host) for name, host in zip(names, at, strict=True)]
        plan = plan_of(line((2, 1), most=4), nodes, pods=pods)
        return plan.cost, plan.violations

    assert cost("a", "b", "b") == (5, 1)
    assert cost("d", "b", "b") == (1, 0)
    assert cost("a", "c", "c") == (50, 1)
    assert cost("a", "c", "b") == (10, 2)


@pytest.mark.parametrize("distribution", ["", "PreferSameZone", "PreferSameNode"])
@pytest.mark.parametrize("seed", range(2))
def test_violations_of_a_placement_are_counted_by_who_answers_as_the_plan_counts_them(
    seed: int, distribution: str
) -> None:
    case = groups.random_case(random.Random(seed))
    tight = msgspec.structs.replace(case, edges=tuple((a, b, most // 3) for a, b, most in case.edges))
    start = groups.snapshot_of(tight)
    spec = {"clusterIP": "10.0.0.1", "trafficDistribution": distribution}
    services = [
        msgspec.convert(
            {
                "metadata": {"name": name, "namespace": start.pods[0].metadata.namespace},
                "spec": {**spec, "selector": {WORKLOAD_LABEL: name}},
            },
            Service,
        )
        for name in start.graph.selectors
    ]
    start = snapshot(tight, services=services, objective="time")
    plan = plan_group(start)
    assert worth_of(start, plan) == (plan.cost, plan.violations)


def test_nodes_without_a_zone_are_not_near_each_other_in_a_cluster_that_has_zones() -> None:
    """Where none has one, they are: a cluster in one rack."""
    case = groups.Case((1, 1), ((0, 1, 100),), ((0, 5), (5, 0)), (9, 9))

    def bare(name: str) -> Node:
        return node(name, "z", cpu="1", labels={"topology.kubernetes.io/zone": ""})

    two, zoned = [bare("u1"), bare("u2")], [node("n0", "z0", cpu="1"), node("n1", "z1", cpu="1")]
    wishes = {"spread": "none", "objective": "time"}
    found = plan_of(case, [*two, *zoned], **wishes)
    assert set(zones_of(found).values()) == {"z0", "z1"}
    assert plan_of(case, two, **wishes, measured=False).latency_us == 100.0


def of_revision(pod: GroupPod, revision: str, minute: int, node: str = "") -> GroupPod:
    """A pod of a Deployment's ReplicaSet, or of a StatefulSet, made in this minute."""
    kind, owner, label = "ReplicaSet", f"{pod.workload}-{revision}", "pod-template-hash"
    if pod.workload == "w2":
        kind, owner, label = "StatefulSet", pod.workload, "controller-revision-hash"
    body = msgspec.to_builtins(pod)
    body["metadata"]["labels"][label] = revision
    body["metadata"]["creationTimestamp"] = f"2026-01-01T00:{minute:02d}:00Z"
    body["metadata"]["ownerReferences"] = [{"kind": kind, "name": owner, "uid": owner, "controller": True}]
    body["spec"]["nodeName"] = node
    return msgspec.convert(body, GroupPod)


@pytest.mark.parametrize("workload", ["w1", "w2"])
@pytest.mark.parametrize("rolls_back", [False, True])
def test_what_a_rollout_is_about_to_replace_survives_no_zone(workload: str, *, rolls_back: bool) -> None:
    """The caller is in z0, so is one new replica; the old one in z1 is there for calls, and gone in a moment."""
    nodes = [node("a", "z0"), node("b", "z1"), node("c", "z2")]
    base = snapshot(line((0, 0, 0)), nodes, objective="time", spread="zone")
    calls = {"w1": "w0", "w2": "w1"}[workload]
    caller = msgspec.structs.replace(waiting_pod("caller", calls), spec=GroupPodSpec(node_name="a"))
    old, new = ("b", "a") if rolls_back else ("a", "b")
    pods = [
        caller,
        of_revision(waiting_pod("x", workload), new, 5, node="a"),
        of_revision(waiting_pod("y", workload), old, 1, node="b"),
        of_revision(waiting_pod("z", workload), new, 6),
    ]
    plan = plan_group(msgspec.structs.replace(base, pods=pods))
    assert zones_of(plan)["z"] != "z0"
    # Without a rollout the same replica survives.
    still = [*pods[:2], of_revision(waiting_pod("y", workload), new, 1, node="b"), pods[3]]
    assert zones_of(plan_group(msgspec.structs.replace(base, pods=still)))["z"] == "z0"
