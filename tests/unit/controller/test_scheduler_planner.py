"""Plans of whole groups: near the optimum, within what fits, honouring what pods ask for, the same for the same state."""

from __future__ import annotations

import random
import statistics
from typing import Any

import msgspec
import pytest

from controller.scheduler.fleet import BoundPod, Fleet
from controller.scheduler.planner import GroupSnapshot, Plan, plan_group, total_cost
from controller.scheduler.pods import Container, GroupPod, Target
from controller.scheduler.requests import requests_of
from kubekit.wire import Node
from tests.unit.controller import groups


def node(name: str, zone: str, cpu: str = "8", **spec: Any) -> Node:
    labels = {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "r", "kubernetes.io/hostname": name}
    labels |= spec.pop("labels", {})
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    return msgspec.convert({**body, "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}}, Node)


def line(replicas: tuple[int, ...] = (1, 1, 1), most: int = 100) -> groups.Case:
    """w0 -> w1 -> w2, in three zones 5 apart from the next and 50 from the one after."""
    edges = tuple((i, i + 1, most) for i in range(len(replicas) - 1))
    return groups.Case(replicas, edges, ((0, 5, 50), (5, 0, 5), (50, 5, 0)), (9, 9, 9))


def snapshot(case: groups.Case, nodes: list[Node], **changes: Any) -> GroupSnapshot:
    base = groups.snapshot_of(case)
    return msgspec.structs.replace(base, hosts=groups.hosts_of(*nodes), **changes)


def zones_of(plan: Plan) -> dict[str, str]:
    return {key.removeprefix("default/"): target.zone for key, target in plan.targets.items()}


def test_plans_are_near_the_optimum_on_random_groups_with_capacities_that_bind() -> None:
    rng, ratios = random.Random(11), []
    for _ in range(30):
        case = groups.random_case(rng, most_workloads=6, most_replicas=2, most_zones=4)
        violations, cost = groups.optimum(case)
        plan = plan_group(groups.snapshot_of(case))
        assert not plan.unplaced
        if not violations:
            assert plan.violations == 0
            ratios.append(plan.cost / max(cost, 1))
    assert len(ratios) >= 15
    assert min(ratios) >= 1.0
    assert statistics.median(ratios) <= 1.01
    assert sorted(ratios)[int(len(ratios) * 0.9)] <= 1.05


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_never_puts_more_on_a_host_than_fits_and_its_figures_are_those_of_its_targets(seed: int) -> None:
    case = groups.random_case(random.Random(seed))
    start = groups.snapshot_of(case)
    plan = plan_group(start)
    for name, host in start.hosts.items():
        assert sum(t.node == name for t in plan.targets.values()) <= host.allocatable["cpu"] // 1000
    pods = {p.metadata.key: p for p in start.pods}
    places = [(pods[key].workload, start.hosts[t.node].location, t.node) for key, t in plan.targets.items()]
    assert total_cost(start.graph, places, start.costs) == (plan.cost, plan.violations)


def test_the_same_state_gives_the_same_plan_whatever_the_order_of_its_parts() -> None:
    case = groups.random_case(random.Random(4))
    one = groups.snapshot_of(case)
    other = msgspec.structs.replace(one, pods=list(reversed(one.pods)), hosts=dict(reversed(list(one.hosts.items()))))
    assert plan_group(one) == plan_group(other)


def test_everything_goes_onto_one_host_when_it_fits() -> None:
    plan = plan_group(snapshot(line(), [node("a", "z0"), node("b", "z1"), node("c", "z1")]))
    assert len({t.node for t in plan.targets.values()}) == 1
    assert plan.cost == 0


def test_what_is_bound_stays_and_draws_the_rest() -> None:
    case = line()
    bound = msgspec.convert(
        {
            "metadata": {"name": "w2-0", "namespace": "default", "labels": groups.pods_of(case)[2].metadata.labels},
            "spec": {"nodeName": "c"},
            "status": {"phase": "Running"},
        },
        GroupPod,
    )
    plan = plan_group(
        snapshot(case, [node("a", "z0"), node("b", "z1"), node("c", "z2")], pods=[*groups.pods_of(case)[:2], bound])
    )
    assert zones_of(plan) == {"w0-0": "z2", "w1-0": "z2"}


def test_room_that_others_take_is_not_given_away() -> None:
    nodes = [node("a", "z0", "2"), node("b", "z1", "2"), node("c", "z2", "2")]
    plan = plan_group(snapshot(line(), nodes, used={"a": {"cpu": 2000}, "b": {"cpu": 1000}}))
    assert sorted(zones_of(plan).values()) == ["z1", "z2", "z2"]


def test_targets_of_released_pods_stay_and_hold_their_room() -> None:
    nodes = [node("a", "z0", "1"), node("b", "z1", "9"), node("c", "z2", "9")]
    released = {"default/w0-0": Target("z0", "r", "a")}
    plan = plan_group(snapshot(line(), nodes, released=released))
    assert zones_of(plan) == {"w0-0": "z0", "w1-0": "z1", "w2-0": "z1"}


def test_two_watches_that_disagree_count_nothing_twice_and_nothing_never() -> None:
    case, nodes = line((1, 1)), [node("a", "z0", "1"), node("b", "z1", "2")]
    first, second = groups.pods_of(case)
    bound = msgspec.structs.replace(
        first, spec=msgspec.structs.replace(first.spec, node_name="b", scheduling_gates=None)
    )
    # The pod is known to be bound, but nobody has counted what it uses.
    ahead = plan_group(snapshot(case, nodes, pods=[bound, second], seats={}))
    # What it uses is counted, but the pod itself still looks as if it waited.
    used = {"b": {"cpu": 1000, "pods": 1}}
    behind = plan_group(snapshot(case, nodes, pods=[first, second], used=used, seats={"default/w0-0": "b"}))
    assert zones_of(ahead) == zones_of(behind) == {"w1-0": "z1"}
    small = [node("a", "z0", "1"), node("b", "z1", "1")]
    assert zones_of(plan_group(snapshot(case, small, pods=[bound, second], seats={}))) == {"w1-0": "z0"}


def test_a_released_pod_whose_host_is_gone_is_planned_anew() -> None:
    released = {"default/w0-0": Target("z9", "r", "gone")}
    plan = plan_group(snapshot(line(), [node("a", "z0")], released=released))
    assert zones_of(plan)["w0-0"] == "z0"


def test_replicas_that_are_declared_but_not_there_yet_get_their_room() -> None:
    """Two w0 pods are on their way: the zone that holds all is taken, and not the one that holds what is there."""
    nodes = [node("a", "z0", "3"), node("c", "z2", "5")]
    plan = plan_group(snapshot(line(), nodes, replicas={"w0": 3, "w1": 1, "w2": 1}))
    assert set(zones_of(plan).values()) == {"z2"}


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
    pods = [groups.waiting_pod("w0-0", "w0", **spec)]
    plan = plan_group(snapshot(line(), nodes, pods=pods))
    assert zones_of(plan).get("w0-0") == zone
    assert plan.unplaced == (() if zone else ("default/w0-0",))


def test_cordoned_nodes_get_nothing() -> None:
    plan = plan_group(snapshot(line(), [node("a", "z0", unschedulable=True), node("b", "z1")]))
    assert set(zones_of(plan).values()) == {"z1"}


def test_replicas_spread_over_zones_when_a_constraint_asks_for_it() -> None:
    constraint = {
        "topologyKey": "topology.kubernetes.io/zone",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"appgroup.diktyo.x-k8s.io.workload": "w0"}},
    }
    pods = [groups.waiting_pod(f"w0-{k}", "w0", topologySpreadConstraints=[constraint]) for k in range(3)]
    pods += [groups.waiting_pod("w1-0", "w1")]
    nodes = [node("a", "z0"), node("b", "z1"), node("c", "z2")]
    plan = plan_group(snapshot(line((3, 1, 1)), nodes, pods=pods))
    where = zones_of(plan)
    assert {where[f"w0-{k}"] for k in range(3)} == {"z0", "z1", "z2"}
    assert where["w1-0"] == "z1"


@pytest.mark.parametrize("required", [True, False], ids=["required", "preferred"])
def test_anti_affinity_keeps_replicas_on_different_hosts(required: bool) -> None:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"appgroup.diktyo.x-k8s.io.workload": "w0"}},
    }
    kind = "required" if required else "preferred"
    terms: list[dict[str, Any]] = [term if required else {"weight": 1, "podAffinityTerm": term}]
    affinity = {"podAntiAffinity": {f"{kind}DuringSchedulingIgnoredDuringExecution": terms}}
    pods = [groups.waiting_pod(f"w0-{k}", "w0", affinity=affinity) for k in range(3)]
    hosts = [node("a", "z0"), node("b", "z0"), node("c", "z2")]
    plan = plan_group(snapshot(line((3, 1, 1)), hosts, pods=pods))
    assert sorted(t.node for t in plan.targets.values()) == ["a", "b", "c"]
    crowded = plan_group(snapshot(line((3, 1, 1)), hosts[:2], pods=pods))
    assert len(crowded.targets) == (2 if required else 3)
    assert len(crowded.unplaced) == (1 if required else 0)


def test_a_violation_is_accepted_only_where_none_can_be_avoided() -> None:
    nodes = [node("a", "z0", "1"), node("b", "z1", "1"), node("c", "z2", "1")]
    pods = [groups.waiting_pod("w0-0", "w0"), groups.waiting_pod("w1-0", "w1")]
    assert plan_group(snapshot(line(most=5), nodes, pods=pods)).violations == 0
    assert plan_group(snapshot(line(most=5), [nodes[0], nodes[2]], pods=pods)).violations == 1


def test_an_earlier_plan_is_kept_when_no_other_is_better() -> None:
    nodes = [node("a", "z0"), node("b", "z1"), node("c", "z2")]
    for name, zone in (("a", "z0"), ("b", "z1"), ("c", "z2")):
        before = {f"default/w{i}-0": Target(zone, "r", name) for i in range(3)}
        plan = plan_group(snapshot(line(), nodes, previous=before))
        assert set(zones_of(plan).values()) == {zone}


def test_nothing_to_place_and_nowhere_to_place_are_answered() -> None:
    assert plan_group(snapshot(line(), [node("a", "z0")], pods=[])).targets == {}
    assert sorted(plan_group(snapshot(line(), [])).unplaced) == ["default/w0-0", "default/w1-0", "default/w2-0"]


def test_requests_are_counted_as_kube_scheduler_counts_them() -> None:
    def container(cpu: str, **fields: Any) -> Container:
        return msgspec.convert({"resources": {"requests": {"cpu": cpu}}, **fields}, Container)

    sidecar = container("200m", restartPolicy="Always")
    assert requests_of([container("1"), container("500m")], None, None) == {"cpu": 1500, "pods": 1}
    assert requests_of([container("1")], [container("3")], {"cpu": "100m"}) == {"cpu": 3100, "pods": 1}
    assert requests_of([container("1")], [sidecar, container("900m")], None) == {"cpu": 1200, "pods": 1}
    assert requests_of([container("1")], [sidecar, container("2")], None) == {"cpu": 2200, "pods": 1}


def test_the_fleet_counts_each_bound_pod_once_however_often_it_is_seen() -> None:
    def bound(cpu: str, where: str = "a") -> BoundPod:
        containers = [{"resources": {"requests": {"cpu": cpu}}}]
        spec = {"nodeName": where, "containers": containers}
        return msgspec.convert({"metadata": {"name": "p", "namespace": "d"}, "spec": spec}, BoundPod)

    fleet = Fleet()
    fleet.take_node("a", None, node("a", "z0"))
    for _ in range(2):
        fleet.take_pod("d/p", None, bound("1"))
    assert fleet.used["a"] == {"cpu": 1000, "pods": 1}
    fleet.take_pod("d/p", bound("1"), bound("2"))
    assert fleet.used["a"] == {"cpu": 2000, "pods": 1}
    fleet.take_pod("d/p", bound("2"), None)
    assert fleet.used["a"] == {"cpu": 0, "pods": 0}
    version = fleet.version
    fleet.take_node("a", None, node("a", "z0"))
    assert fleet.version == version
    fleet.take_node("a", None, None)
    assert fleet.hosts == {}
