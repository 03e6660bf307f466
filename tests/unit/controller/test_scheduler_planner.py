"""Plans of whole groups: pods fit on their targets, constraints hold, and equal snapshots give equal plans."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from controller.cluster.costs import CostTable
from controller.cluster.crds import WORKLOAD_LABEL
from controller.cluster.hosts import NodeCache
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import Container, ContainerStatus, Pod, PodSpec, PodStatus, Target
from controller.cluster.resource_requests import requests_of
from controller.scheduler.affinity import NARROWED_ANNOTATION
from controller.scheduler.placement.planner import Plan, plan_group
from controller.scheduler.placement.snapshot import without_pod
from kubekit.wire import Condition, Node, ResourceRequirements
from tests.unit.controller import groups
from tests.unit.controller.groups import make_bound_pod, make_snapshot, make_waiting_pod, make_zone_node, plan_case


def chain(replicas: tuple[int, ...] = (1, 1, 1), limit: int = 100) -> groups.GroupCase:
    """w0 calls w1, which calls w2; of three zones, neighbours have cost 5, the outer two cost 50."""
    edges = tuple((i, i + 1, limit) for i in range(len(replicas) - 1))
    return groups.GroupCase(replicas, edges, ((0, 5, 50), (5, 0, 5), (50, 5, 0)), (9, 9, 9))


def nodes_of(**cpus: str) -> list[Node]:
    """Nodes with these amounts of cpu: a and a2 in z0, b in z1, c in z2."""
    return [make_zone_node(name, f"z{'abc'.index(name[0])}", cpu) for name, cpu in cpus.items()]


def node_by_pod(plan: Plan) -> dict[str, str | None]:
    """Pod -> node, None for an unplaced pod."""
    nodes: dict[str, str | None] = {key: target.node for key, target in plan.targets.items()}
    return {key.removeprefix("default/"): node for key, node in (nodes | dict.fromkeys(plan.unplaced)).items()}


def zone_by_pod(plan: Plan) -> dict[str, str]:
    return {key.removeprefix("default/"): target.zone for key, target in plan.targets.items()}


def with_metadata(pod: Pod, **changes: Any) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **changes))


def make_aged_pods(workload: str, *names: str) -> list[Pod]:
    """Pods of a workload, the oldest first."""
    pods = enumerate(make_waiting_pod(name, workload) for name in names)
    return [with_metadata(pod, creation_timestamp=f"2026-11-22T10:{minute:02}:00Z") for minute, pod in pods]


def required_zone(zone: str, *, by_us: bool) -> Pod:
    """A pod whose required zone its user, or an earlier plan, wrote."""
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    pod = make_waiting_pod("w0-0", "w0", affinity=affinity)
    return with_metadata(
        pod, annotations={NARROWED_ANNOTATION: msgspec.json.encode(expression).decode()} if by_us else {}
    )


ON_A, ON_B, ON_C = Target("z0", "r", "a"), Target("z1", "r", "b"), Target("z2", "r", "c")
ON_DELETED_NODE = Target("z9", "r", "gone")
FIRST, SECOND = make_waiting_pod("w0-0", "w0"), make_waiting_pod("w1-0", "w1")
FIRST_KEY, SECOND_KEY = "default/w0-0", "default/w1-0"
FINISHED = msgspec.structs.replace(FIRST, status=msgspec.structs.replace(FIRST.status, phase="Succeeded"))
OTHERWISE_GATED = make_waiting_pod(
    "w0-0", "w0", schedulingGates=[{"name": "netaware.io/topological-order"}, {"name": "kueue.x-k8s.io/admission"}]
)
TWO_WORKLOADS, ONE_WORKLOAD = chain((1, 1)), groups.GroupCase((5,), (), ((0, 5), (5, 0)), (9, 9))
FIRST_BOUND = [make_bound_pod("w0-0", "w0", "b"), SECOND]


PLANS: dict[str, tuple[groups.GroupCase, str | dict[str, str], dict[str, Any], dict[str, str | None]]] = {
    "bound pods stay and attract the rest": (
        chain(), "999", {"pods": [FIRST, SECOND, make_bound_pod("w2-0", "w2", "c")]},
        {"w0-0": "c", "w1-0": "c"},
    ),
    "requests of bound pods are not free": (TWO_WORKLOADS, "22", {"used": {"a": {"cpu": 1000}}}, {"w0-0": "b", "w1-0": "b"}),
    "a released pod keeps its target": (
        chain(), "199", {"released_targets": {FIRST_KEY: ON_A}},
        {"w0-0": "a", "w1-0": "b", "w2-0": "b"},
    ),
    "a released pod whose target is gone gets another": (chain((1,)), "9", {"released_targets": {FIRST_KEY: ON_DELETED_NODE}}, {"w0-0": "a"}),
    "a bound pod that is not counted yet attracts the rest": (TWO_WORKLOADS, "12", {"pods": FIRST_BOUND, "assigned_nodes": {}}, {"w1-0": "b"}),
    "a bound pod that is not counted yet uses its node's resources": (TWO_WORKLOADS, "11", {"pods": FIRST_BOUND, "assigned_nodes": {}}, {"w1-0": "a"}),
    "a pod is counted but still looks waiting": (
        TWO_WORKLOADS, "12", {"used": {"b": {"cpu": 1000, "pods": 1}}, "assigned_nodes": {FIRST_KEY: "b"}},
        {"w1-0": "b"},
    ),
    "the previous plan is kept if no other is better": (
        chain(), "999", {"previous_targets": {f"default/w{i}-0": ON_B for i in range(3)}},
        {"w0-0": "b", "w1-0": "b", "w2-0": "b"},
    ),
    "the previous plan is kept on the last node": (
        chain(), "999", {"previous_targets": {f"default/w{i}-0": ON_C for i in range(3)}},
        {"w0-0": "c", "w1-0": "c", "w2-0": "c"},
    ),
    "a pod with another gate gets no target": (
        TWO_WORKLOADS, "1", {"pods": [OTHERWISE_GATED, SECOND], "replicas": {"w0": 1}},
        {"w1-0": "a"},
    ),
    "no limit is violated to avoid a host": (
        chain((1, 1), limit=9), "999", {"avoided_nodes": frozenset("ab"), "pods": [make_bound_pod("w0-0", "w0", "a"), SECOND]},
        {"w1-0": "a"},
    ),
    "finished pods and pods of unknown workloads get no target": (
        TWO_WORKLOADS, "9", {"pods": [FINISHED, SECOND, make_waiting_pod("x", "unknown")]},
        {"w1-0": "a"},
    ),
    "a host that refused a pod gets other pods": (
        TWO_WORKLOADS, "91", {"refused_nodes": {FIRST_KEY: frozenset("a")}},
        {"w0-0": "b", "w1-0": "a"},
    ),
    "reservations of other groups are not free": (
        TWO_WORKLOADS, "31", {"reserved": {"a": {"cpu": 1000, "pods": 1}}},
        {"w0-0": "a", "w1-0": "a"},
    ),
    "released pods count beside reservations of other groups": (
        TWO_WORKLOADS, "31", {"reserved": {"a": {"cpu": 2000}}, "released_targets": {FIRST_KEY: ON_A}},
        {"w0-0": "a", "w1-0": "b"},
    ),
    "a zone that an earlier plan required is not a constraint": (chain((1,)), "9", {"pods": [required_zone("z1", by_us=True)]}, {"w0-0": "a"}),
    "a zone that the user requires is a constraint": (chain((1,)), "9", {"pods": [required_zone("z1", by_us=False)]}, {"w0-0": None}),
    "the oldest pods get zones in turn, the youngest has no place": (
        ONE_WORKLOAD, "22", {"pods": make_aged_pods("w0", *"edcba")},
        {"e": "a", "d": "b", "c": "a", "b": "b", "a": None},
    ),
    "zones with several hosts also get pods in turn": (
        ONE_WORKLOAD, {"a": "2", "a2": "1", "b": "1"}, {"pods": make_aged_pods("w0", *"dcba")},
        {"d": "a", "c": "b", "b": "a", "a": "a2"},
    ),
    "the older of two pods keeps a host that fits one": (
        ONE_WORKLOAD, "11", {"pods": make_aged_pods("w0", *"ba"), "previous_targets": {"default/a": ON_A, "default/b": ON_A}},
        {"b": "a", "a": "b"},
    ),
    "equal pods keep their hosts": (
        groups.GroupCase((3,), (), ((0, 5), (5, 0)), (1, 2)), "12", {"previous_targets": {FIRST_KEY: ON_B, "default/w0-1": ON_A, "default/w0-2": ON_B}},
        {"w0-0": "b", "w0-1": "a", "w0-2": "b"},
    ),
    "a pod whose previous host is gone gets another": (
        groups.GroupCase((2,), (), ((0, 5), (5, 0)), (1, 2)), "11", {"previous_targets": {FIRST_KEY: ON_DELETED_NODE, "default/w0-1": ON_A}},
        {"w0-0": "b", "w0-1": "a"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "cpus", "changes", "hosts"), PLANS.values(), ids=PLANS)
def test_targets_of_pods(
    case: groups.GroupCase, cpus: str | dict[str, str], changes: dict[str, Any], hosts: dict[str, str | None]
) -> None:
    sizes = cpus if isinstance(cpus, dict) else dict(zip("abc", cpus, strict=False))
    assert node_by_pod(plan_case(case, nodes_of(**sizes), **changes)) == hosts


@pytest.mark.parametrize("distribution", ["", "PreferSameZone", "PreferSameNode"])
@pytest.mark.parametrize("seed", range(4))
def test_a_plan_fits_and_its_figures_equal_those_of_its_bound_pods(seed: int, distribution: str) -> None:
    case = groups.draw_case(random.Random(seed))
    tight = msgspec.structs.replace(case, edges=tuple((a, b, limit // 3) for a, b, limit in case.edges))
    services = [groups.make_service(f"w{i}", distribution) for i in range(len(case.replicas))]
    start = make_snapshot(tight, services=services, objective="time" if distribution else "parity")
    plan = plan_group(start)
    for name, host in start.hosts.items():
        assert sum(t.node == name for t in plan.targets.values()) <= host.allocatable["cpu"] // 1000
    bound = [
        make_bound_pod(pod.metadata.name, pod.workload, plan.targets[pod.metadata.key].node)
        for pod in start.pods
        if pod.metadata.key in plan.targets
    ]
    plan_of_bound = plan_group(msgspec.structs.replace(start, pods=bound))
    assert (plan_of_bound.cost, plan_of_bound.violations) == (plan.cost, plan.violations)


def test_a_pod_group_that_does_not_fit_wholly_gets_no_target() -> None:
    gang: dict[str, Any] = {"schedulingGroup": {"podGroupName": "gang"}}
    pods = [make_waiting_pod("w0-0", "w0", **gang), SECOND, make_waiting_pod("w0-1", "w0", "99", **gang)]
    plan = plan_case(chain((2, 1)), nodes_of(a="2", b="1"), pods=pods)
    assert set(plan.targets) == {SECOND_KEY}
    assert (plan.cost, plan.traffic) == (0, 0)


def test_a_limit_is_violated_only_if_that_is_unavoidable() -> None:
    nodes, pods = nodes_of(a="1", b="1", c="1"), [FIRST, SECOND]
    assert plan_case(chain(limit=5), nodes, pods=pods).violations == 0
    assert plan_case(chain(limit=5), [nodes[0], nodes[2]], pods=pods).violations == 1


@pytest.mark.parametrize("objective", ["parity", "time"])
def test_latency_is_reported_for_every_objective(objective: str) -> None:
    plan = plan_case(TWO_WORKLOADS, nodes_of(a="1", b="1"), objective=objective)
    assert (plan.cost, plan.latency_us) == (5, 5000.0)


def test_a_limit_per_dependency_does_not_multiply_the_cost_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may have thousands of limits, and other groups wait for its plan."""
    zones, workloads, comparisons = 12, 16, list[int]()
    compare = CostTable.compare_with_limit

    def count(*args: Any) -> Any:
        comparisons.append(1)
        return compare(*args)

    monkeypatch.setattr(CostTable, "compare_with_limit", count)
    pairs = [(i, j) for i in range(workloads) for j in range(workloads) if i != j]
    cost = tuple(tuple(abs(a - b) * 10 for b in range(zones)) for a in range(zones))
    counts = []
    for limits in ([50] * len(pairs), range(50, 50 + len(pairs))):
        edges = tuple((i, j, limit) for (i, j), limit in zip(pairs, limits, strict=True))
        comparisons.clear()
        plan_group(
            groups.make_snapshot(groups.GroupCase((1,) * workloads, edges, cost, (2,) * zones)), time_limit_s=0.5
        )
        counts.append(len(comparisons))
    assert counts[1] < 2 * counts[0]


def test_the_order_of_pods_and_nodes_does_not_change_the_plan() -> None:
    start = groups.make_snapshot(groups.draw_case(random.Random(4)))
    pods, hosts = list(reversed(start.pods)), dict(reversed(list(start.hosts.items())))
    assert plan_group(start) == plan_group(msgspec.structs.replace(start, pods=pods, hosts=hosts))


@pytest.mark.parametrize(
    ("services", "elsewhere", "near"),
    [
        ((), False, False),
        ((groups.make_service("w1", "PreferSameZone"),), False, True),
        ((groups.make_service("w1", "PreferSameZone"),), True, False),
    ],
    ids=["none", "one", "pods of a second namespace that it does not select"],
)
def test_services_of_a_workload_decide_the_routing_of_its_calls(services: Any, *, elsewhere: bool, near: bool) -> None:
    """With several namespaces the Service with the weakest preference decides, not the first by name."""
    full = {"a": {"cpu": 1000}, "b": {"cpu": 1000}}
    pods = [make_bound_pod("w0-0", "w0", "a"), make_bound_pod("w0-1", "w0", "b"), *groups.make_pods(chain((0, 2)))]
    if elsewhere:
        pods[-1] = with_metadata(pods[-1], namespace="elsewhere")
    nodes = [make_zone_node("a", "z0", "2"), make_zone_node("b", "z1", "2")]
    plan = plan_case(chain((2, 2, 0)), nodes, used=full, pods=pods, objective="time", services=services)
    assert plan.latency_us < 1000.0 if near else plan.latency_us > 2000.0


def test_declared_replicas_without_a_pod_are_placed_without_a_target() -> None:
    """w0 declares two more replicas: two of the four callers are in the other zone, wherever the pods are placed."""
    inputs = make_snapshot(chain((1, 1)), [make_zone_node("a", "z0", "2"), make_zone_node("b", "z1", "2")])
    assert plan_group(inputs).cost == 0
    plan = plan_group(msgspec.structs.replace(inputs, replicas={"w0": 3, "w1": 1}))
    assert plan.cost == 10
    assert set(plan.targets) == {"default/w0-0", "default/w1-0"}, "a replica without a pod has no target"
    assert plan.unplaced == ()


def test_the_first_pod_by_name_is_the_model_of_missing_replicas() -> None:
    case, nodes = (
        groups.GroupCase((2,), (), ((0, 5), (5, 0)), (9, 9)),
        [make_zone_node("a", "z0", "4"), make_zone_node("b", "z1", "2")],
    )
    pods = [make_waiting_pod("w0-0", "w0", "1"), make_waiting_pod("w0-1", "w0", "3")]
    inputs = make_snapshot(case, nodes, pods=pods, replicas={"w0": 4})
    plan = plan_group(inputs)
    assert plan.unplaced == ()
    assert plan_group(msgspec.structs.replace(inputs, pods=pods[::-1])) == plan


def test_the_weight_of_a_dependency_is_its_number_of_callers() -> None:
    """w1 is called by three of w0, which are 5 or 15 away, and by one of w2, which is 30 or 5 away."""
    cost = ((0, 30, 5, 15), (30, 0, 30, 5), (5, 30, 0, 20), (15, 5, 20, 0))
    case = groups.GroupCase((3, 1, 1), ((0, 1, 100), (2, 1, 100)), cost, (9, 9, 9, 9))
    full = {"a": {"cpu": 8000}, "b": {"cpu": 8000}}
    nodes = [make_zone_node("a", "z0"), make_zone_node("b", "z1"), make_zone_node("c", "z2"), make_zone_node("d", "z3")]

    def placed(callers: int) -> dict[str, str]:
        pods = [make_bound_pod(f"w0-{i}", "w0", "a") for i in range(callers)] + [make_bound_pod("w2-0", "w2", "b")]
        pods.append(make_waiting_pod("w1-0", "w1"))
        return zone_by_pod(plan_case(case, nodes, used=full, pods=pods, objective="time"))

    assert placed(3) == {"w1-0": "z2"}
    assert placed(2) == {"w1-0": "z3"}


def test_an_avoided_host_is_used_only_if_that_places_more_pods() -> None:
    def plan_avoiding(hosts: str, second: Pod) -> Plan:
        avoided, previous = frozenset(hosts), {FIRST_KEY: ON_A}
        nodes, pods = nodes_of(a="8", b="8"), [FIRST, second]
        return plan_case(TWO_WORKLOADS, nodes, avoided_nodes=avoided, previous_targets=previous, pods=pods)

    nowhere = make_waiting_pod("w1-0", "w1", nodeSelector={"disk": "none"})
    assert node_by_pod(plan_avoiding("a", nowhere)) == {"w0-0": "b", "w1-0": None}
    assert node_by_pod(plan_avoiding("ab", nowhere)) == {"w0-0": "a", "w1-0": None}, "avoided: the last resort"
    reasons = plan_avoiding("a", make_waiting_pod("w1-0", "w1", cpu="99")).unplaced_reasons
    assert "2 insufficient cpu" in reasons[SECOND_KEY], "the avoided host is not the reason"


def test_preferred_anti_affinity_places_replicas_on_different_hosts_if_there_are_enough() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {WORKLOAD_LABEL: "w0"}}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    pods = [make_waiting_pod(f"w0-{k}", "w0", affinity={"podAntiAffinity": preferred}) for k in range(3)]
    hosts = [make_zone_node("a", "z0"), make_zone_node("b", "z0"), make_zone_node("c", "z2")]
    plan = plan_case(chain((3, 1, 1)), hosts, pods=pods)
    assert sorted(t.node for t in plan.targets.values()) == ["a", "b", "c"]
    assert len(plan_case(chain((3, 1, 1)), hosts[:2], pods=pods).targets) == 3


def test_a_group_without_pods_and_a_cluster_without_nodes_are_planned() -> None:
    nothing = plan_case(chain(), [make_zone_node("a", "z0")], pods=[])
    assert (nothing.targets, nothing.cost, nothing.violations, nothing.latency_us) == ({}, 0, 0, 0.0)
    assert sorted(plan_case(chain(), []).unplaced) == ["default/w0-0", "default/w1-0", "default/w2-0"]


def test_requests_are_counted_as_kube_scheduler_counts_them() -> None:
    def container(cpu: str, **fields: Any) -> Container:
        return msgspec.convert({"resources": {"requests": {"cpu": cpu}}, **fields}, Container)

    def requests(containers: list[Container], init: list[Container] | None = None, **fields: Any) -> dict[str, int]:
        return requests_of(PodSpec(containers=containers, init_containers=init, **fields))

    sidecar = container("200m", restartPolicy="Always")
    pod_level = ResourceRequirements(requests={"cpu": "700m", "memory": "1Ki", "example.com/gpu": "3"})
    assert requests([container("1"), container("500m")]) == {"cpu": 1500, "pods": 1}
    assert requests([container("1")], [container("3")], overhead={"cpu": "100m"}) == {"cpu": 3100, "pods": 1}
    assert requests([container("1")], [sidecar, container("900m")]) == {"cpu": 1200, "pods": 1}
    assert requests([container("1")], [sidecar, container("2")]) == {"cpu": 2200, "pods": 1}
    assert requests([container("1")], resources=pod_level) == {"cpu": 700, "memory": 1024, "pods": 1}
    assert requests([container("1")], resources=pod_level, overhead={"cpu": "1"})["cpu"] == 1700


@pytest.mark.parametrize(
    ("requested", "allocated", "in_use", "conditions", "cpu"),
    [
        ("1", None, None, [], 1000),
        ("1", "1", "2", [], 2000),  # the node has not applied a shrink yet
        ("4", "2", "2", [], 4000),  # a growth
        ("1", "3", "2", [], 3000),
        ("4", "2", "2", [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}], 2000),
        ("4", "2", "2", [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}], 4000),
    ],
)
def test_an_in_place_resize_counts_the_larger_of_old_and_new_requests(
    requested: str, allocated: str | None, in_use: str | None, conditions: list[dict[str, str]], cpu: int
) -> None:
    status: dict[str, Any] = {"name": "c"}
    if allocated:
        status["allocatedResources"] = {"cpu": allocated}
    if in_use:
        status["resources"] = {"requests": {"cpu": in_use}}
    body = {
        "metadata": {"name": "p", "namespace": "d"},
        "spec": {"nodeName": "a", "containers": [{"name": "c", "resources": {"requests": {"cpu": requested}}}]},
        "status": {"containerStatuses": [status], "conditions": conditions},
    }
    pod, reader = msgspec.convert(body, Pod), PodReader()
    assert requests_of(pod.spec, pod.status)["cpu"] == cpu
    without_status = msgspec.convert({**body, "status": {}}, Pod)
    assert reader.read(without_status).requests["cpu"] == int(requested) * 1000
    assert reader.read(pod).requests["cpu"] == cpu


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
    tainted = make_zone_node("a1", "z0", taints=[{"key": taint, "effect": "PreferNoSchedule"}])
    status = msgspec.structs.replace(tainted.status, conditions=[Condition(type="Ready", status=ready)])
    tainted = msgspec.structs.replace(tainted, status=status)
    pod = make_waiting_pod("w0-0", "w0", tolerations=[{"operator": "Exists"}])
    plan = plan_case(chain((1, 0, 0)), [tainted], pods=[pod])
    assert plan.unplaced_reasons == {FIRST_KEY: f"0/1 nodes are available: 1 {reason}"}


@pytest.mark.parametrize(("restart_policy", "is_counted"), [("Always", True), (None, False)])
def test_host_ports_of_sidecars_count_and_of_init_containers_do_not(
    restart_policy: str | None, is_counted: bool
) -> None:
    """The planner and the node cache count ports of containers that keep running, as kube-scheduler does."""
    ports = [{"containerPort": 9100, "hostPort": 9100}]
    init_container = {"name": "i", "restartPolicy": restart_policy, "ports": ports}
    spec = {"containers": [{"name": "c"}], "initContainers": [init_container]}
    body = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"nodeName": "a", **spec}}
    node_cache = NodeCache()
    node_cache.on_node_change("a", None, make_zone_node("a", "z0"))
    node_cache.on_pod_change("d/p", None, PodReader().read(msgspec.convert(body, Pod)))
    assert node_cache.requested["a"].get("port:TCP/9100", 0) == is_counted
    pods = [
        make_waiting_pod(f"w0-{i}", "w0", initContainers=[init_container], containers=[{"name": "c"}]) for i in range(2)
    ]
    plan = plan_case(groups.GroupCase((2,), (), ((0,),), (9,)), [make_zone_node("b", "z0")], pods=pods)
    assert len(plan.unplaced) == is_counted


def test_allocated_resources_above_the_requests_are_free_after_the_pod() -> None:
    """During an in-place resize the pod frees all that its host counts for it."""
    pod = make_bound_pod("w0-0", "w0", "a")
    status = ContainerStatus(resources=ResourceRequirements(requests={"cpu": "2"}))
    pod = msgspec.structs.replace(pod, status=PodStatus(phase="Running", container_statuses=[status]))
    node_cache = NodeCache()
    node_cache.on_node_change("a", None, make_zone_node("a", "z0"))
    node_cache.on_pod_change("default/w0-0", None, PodReader().read(pod))
    case = groups.GroupCase((1,), (), ((0,),), (9,))
    after_eviction = without_pod(
        make_snapshot(case, [], hosts=node_cache.hosts, used=node_cache.requested, pods=[pod]), "default/w0-0"
    )
    assert node_cache.requested["a"]["cpu"] + after_eviction.reserved["a"]["cpu"] == 0


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
    pods = [make_waiting_pod(f"w0-{k}", "w0", affinity=anti_affinity) for k in range(2)]
    plan = plan_case(groups.GroupCase((2,), (), ((0,),), (2,)), [make_zone_node("a", "z0", cpu)], pods=pods)
    assert plan.unplaced[-1] == "default/w0-1"
    assert plan.unplaced_reasons["default/w0-1"] == f"0/1 nodes are available: 1 {reason}"


def test_an_unmeasured_path_is_expensive_if_other_paths_are_measured() -> None:
    """There is a NetworkTopology; without one, zones count as near."""
    nodes = [make_zone_node("a", "z0", "1"), make_zone_node("b", "z9", "1")]
    with_topology = plan_case(chain((1, 1)), nodes, objective="time")
    without_topology = plan_case(chain((1, 1)), nodes, objective="time", has_topology=False)
    assert with_topology.latency_us == 100_000
    assert without_topology.latency_us < 10_000


@pytest.mark.parametrize(
    ("assigned_nodes", "used_cpu", "reserved_cpu"),
    [
        ({"default/w0-0": "a", "default/w0-1": "b"}, 1000, 1000),
        ({"default/w0-1": "b"}, 0, 1000),
        ({"default/w0-0": "a", "default/w0-1": "b"}, 1000, 0),
        ({"default/w0-1": "b"}, 0, 0),
    ],
    ids=["counted", "not counted yet", "alone", "alone, not counted yet"],
)
def test_after_an_eviction_the_resources_of_the_pod_are_free_and_its_replacement_waits(
    assigned_nodes: dict[str, str], used_cpu: int, reserved_cpu: int
) -> None:
    """Node a has capacity for one pod, whether its usage includes the pod yet or not; the pod on node b stays."""
    bound = [make_bound_pod("w0-0", "w0", "a"), make_bound_pod("w0-1", "w0", "b")]
    nodes = [make_zone_node("a", "z0", "2" if reserved_cpu else "1"), make_zone_node("b", "z1", "1")]
    reserved = {"a": {"cpu": reserved_cpu}} if reserved_cpu else {}
    usage = {"a": {"cpu": used_cpu, "pods": used_cpu // 1000}, "b": {"cpu": 1000, "pods": 1}}
    start = make_snapshot(
        chain((3,)),
        nodes,
        pods=[*bound, make_waiting_pod("w0-2", "w0")],
        assigned_nodes=assigned_nodes,
        used=usage,
        reserved={k: dict(v) for k, v in reserved.items()},
    )
    assert plan_group(start).targets == {}
    after_eviction = without_pod(start, "default/w0-0")
    assert [pod.metadata.name for pod in after_eviction.pods if pod.is_waiting] == ["w0-0", "w0-2"]
    plan = plan_group(after_eviction)
    assert [target.node for target in plan.targets.values()] == ["a"]
    assert len(plan.unplaced) == 1
    assert start.reserved == reserved, "the first snapshot is unchanged"


def test_unreadable_annotations_are_reported_once_and_count_as_absent() -> None:
    unreadable = {"spread": "everywhere", "objective": "speed", "weights": "{"}
    group = groups.make_group(TWO_WORKLOADS, **unreadable)
    pods = [with_metadata(pod, annotations=group.metadata.annotations) for pod in (FIRST, SECOND)]
    plan = plan_case(TWO_WORKLOADS, [make_zone_node("a", "z0")], group=group, pods=pods)
    assert len(plan.annotation_errors) == len(set(plan.annotation_errors)) == 3
    assert plan.annotation_errors[0].startswith("annotation netaware.io/spread: 'everywhere' is none of")
    assert {t.node for t in plan.targets.values()} == {"a"}


def test_total_cost_sums_all_pairs_and_is_0_within_a_host() -> None:
    nodes = [make_zone_node(name, zone) for name, zone in (("a", "z0"), ("b", "z1"), ("c", "z2"), ("d", "z1"))]

    def cost(*at: str) -> tuple[int, int]:
        names = ("w0-0", "w0-1", "w1-0")
        pods = [make_bound_pod(name, name[:2], host) for name, host in zip(names, at, strict=True)]
        plan = plan_case(chain((2, 1), limit=4), nodes, pods=pods)
        return plan.cost, plan.violations

    assert cost("a", "b", "b") == (5, 1)
    assert cost("d", "b", "b") == (1, 0)
    assert cost("a", "c", "c") == (50, 1)
    assert cost("a", "c", "b") == (10, 2)


def test_nodes_without_a_zone_label_are_far_apart_in_a_cluster_with_zones() -> None:
    """If no node has the label, all are one zone, such as a rack."""
    case = groups.GroupCase((1, 1), ((0, 1, 100),), ((0, 5), (5, 0)), (9, 9))

    def unlabelled_node(name: str) -> Node:
        return make_zone_node(name, "z", cpu="1", labels={"topology.kubernetes.io/zone": ""})

    unlabelled = [unlabelled_node("u1"), unlabelled_node("u2")]
    labelled = [make_zone_node("n0", "z0", cpu="1"), make_zone_node("n1", "z1", cpu="1")]
    annotations = {"spread": "none", "objective": "time"}
    plan = plan_case(case, [*unlabelled, *labelled], **annotations)
    assert set(zone_by_pod(plan).values()) == {"z0", "z1"}
    assert plan_case(case, unlabelled, **annotations, has_topology=False).latency_us == 100.0


def with_revision(pod: Pod, revision: str, minute: int, node: str = "") -> Pod:
    """A pod of a Deployment's ReplicaSet, or of a StatefulSet, made in this minute."""
    kind, owner, label = "ReplicaSet", f"{pod.workload}-{revision}", "pod-template-hash"
    if pod.workload == "w2":
        kind, owner, label = "StatefulSet", pod.workload, "controller-revision-hash"
    body = msgspec.to_builtins(pod)
    body["metadata"]["labels"][label] = revision
    body["metadata"]["creationTimestamp"] = f"2026-01-01T00:{minute:02d}:00Z"
    body["metadata"]["ownerReferences"] = [{"kind": kind, "name": owner, "uid": owner, "controller": True}]
    body["spec"]["nodeName"] = node
    return msgspec.convert(body, Pod)


@pytest.mark.parametrize("workload", ["w1", "w2"])
@pytest.mark.parametrize("rolls_back", [False, True])
def test_outdated_replicas_do_not_count_for_spread_over_zones(workload: str, *, rolls_back: bool) -> None:
    """The caller and one new replica are in z0; the replica in z1 is outdated, so the other new replica must not be in z0."""
    base = make_snapshot(chain((0, 0, 0)), nodes_of(a="8", b="8", c="8"), objective="time", spread="zone")
    caller = make_bound_pod("caller", {"w1": "w0", "w2": "w1"}[workload], "a")
    old, new = ("b", "a") if rolls_back else ("a", "b")

    def zone_of_new_replica(revision_in_z1: str) -> str:
        pods = [
            caller,
            with_revision(make_waiting_pod("x", workload), new, 5, node="a"),
            with_revision(make_waiting_pod("y", workload), revision_in_z1, 1, node="b"),
            with_revision(make_waiting_pod("z", workload), new, 6),
        ]
        return zone_by_pod(plan_group(msgspec.structs.replace(base, pods=pods)))["z"]

    assert zone_of_new_replica(old) != "z0"
    assert zone_of_new_replica(new) == "z0", "without a rollout the replica in z1 counts"
