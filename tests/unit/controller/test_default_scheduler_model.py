"""The model of the default scheduler scores and fills hosts as kube-scheduler does; impossible requests break neither it nor a plan.

A user may bind a pod to a node, and request eight exabytes for each container.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from controller.cluster.hosts import NodeCache, host_of
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import Pod
from controller.cluster.resource_requests import MAX_AMOUNT
from controller.scheduler.default_scheduler import DefaultSchedulerModel, simulate_scheduling
from controller.scheduler.placement.planner import plan_group
from kubekit.wire import Node
from tests.unit.controller import groups

GIB = 1 << 30
EXABYTES = "9E"
"""Of two containers, more than 64 bits can count."""
RACK_SPREAD = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}
ALL_PODS = {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}
SPREAD = {"topologySpreadConstraints": [{**RACK_SPREAD, "labelSelector": ALL_PODS}]}
EMPTY_SPREAD = {"topologySpreadConstraints": [{**RACK_SPREAD, "labelSelector": {}}]}
AWAY = {"weight": 1, "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {}}}
ANTI_AFFINITY = {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [AWAY]}}}


@pytest.fixture
def node_cache() -> NodeCache:
    """One node, n."""
    node_cache = NodeCache()
    node_cache.on_node_change("n", None, make_node())
    return node_cache


def make_node(name: str = "n") -> Node:
    return groups.make_zone_node(name, "z", "4")


def make_pod(name: str, *memory: str, node_name: str = "n") -> PodInfo:
    """A pod on a node, with a container for each request of memory."""
    containers = [{"resources": {"requests": {"memory": quantity}}} for quantity in memory]
    body = {"metadata": {"name": name, "namespace": "d"}, "spec": {"nodeName": node_name, "containers": containers}}
    return PodReader().read(msgspec.convert(body, Pod))


def compute_scores(
    spec: dict[str, Any], labels_by_host: dict[str, dict[str, str]], *occupied: str, full: str = ""
) -> list[int]:
    """The model's scores of hosts with these labels, by pods on the occupied hosts; a full host takes no more pods."""
    pod = PodReader().read(msgspec.convert({"metadata": {"name": "p", "namespace": "d"}, "spec": spec}, Pod))
    hosts = [
        msgspec.structs.replace(host_of(make_node(name)), labels=labels) for name, labels in labels_by_host.items()
    ]
    others = [make_pod(f"other-{number}", node_name=name) for number, name in enumerate(occupied)]
    is_feasible = np.array([name != full for name in labels_by_host])
    return [int(score) for score in DefaultSchedulerModel(hosts).scores(pod, [], others, is_feasible)]


def test_an_updated_pod_counts_once(node_cache: NodeCache) -> None:
    node_cache.on_pod_change("d/small", None, make_pod("small", "1Gi"))
    node_cache.on_pod_change("d/small", make_pod("small", "1Gi"), make_pod("small", "2Gi"))
    assert node_cache.requested["n"] == {"memory": 2 * GIB, "pods": 1}


def test_an_unchanged_node_does_not_change_the_version(node_cache: NodeCache) -> None:
    version = node_cache.version
    node_cache.on_node_change("n", None, make_node())
    assert node_cache.version == version


def test_requests_beyond_64_bits_fill_a_host_and_are_subtracted_again(node_cache: NodeCache) -> None:
    node_cache.on_pod_change("d/small", None, make_pod("small", "1Gi"))
    greedy = make_pod("greedy", EXABYTES, EXABYTES)
    for i in range(40):
        node_cache.on_pod_change(f"d/p{i}", None, greedy)
    assert node_cache.requested["n"]["memory"] > MAX_AMOUNT
    for i in range(40):
        node_cache.on_pod_change(f"d/p{i}", greedy, None)
    assert node_cache.requested["n"] == {"memory": GIB, "pods": 1}


def test_pods_with_impossible_requests_do_not_prevent_a_plan() -> None:
    case = groups.GroupCase((2, 1), ((0, 1, 9),), ((0,),), (9,))
    snapshot = groups.make_snapshot(case)
    container = {"resources": {"requests": {"memory": EXABYTES}}}
    greedy = msgspec.convert({"containers": [container, container, container]}, type(snapshot.pods[0].spec))
    pods = [msgspec.structs.replace(snapshot.pods[0], spec=greedy), *snapshot.pods[1:]]
    reserved = {next(iter(snapshot.hosts)): {"memory": 3 * MAX_AMOUNT}}
    plan = plan_group(msgspec.structs.replace(snapshot, pods=pods, reserved=reserved))
    assert plan.unplaced == (pods[0].metadata.key,)
    assert len(plan.targets) == len(pods) - 1


def test_the_model_of_the_default_scheduler_accepts_impossible_requests() -> None:
    greedy, small = make_pod("g", EXABYTES, EXABYTES, node_name="a"), make_pod("s", "1Gi", node_name="b")
    model = DefaultSchedulerModel([host_of(make_node("a")), host_of(make_node("b"))])
    both_feasible = np.ones(2, np.bool_)
    for _ in range(21):
        model.add_pod(greedy, "a")
    assert np.argmax(model.scores(small, [], [], both_feasible)) == 1, "a is full"
    assert model.scores(greedy, [], [], both_feasible).min() >= 0


def test_the_model_gives_no_points_for_spread_to_a_host_without_the_topology_key() -> None:
    scores = compute_scores(SPREAD, {"a": {"rack": "1"}, "b": {"rack": "2"}, "c": {}}, "a", "a", "b")
    assert np.argsort(scores).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("spec", "is_counted"),
    [
        (SPREAD, True),
        (EMPTY_SPREAD, False),
        (ANTI_AFFINITY, True),
        (SPREAD | {"nodeSelector": {"pool": "ours"}}, False),
    ],
    ids=[
        "spread",
        "spread by an empty selector",
        "preferred anti-affinity",
        "spread of a pod that may not run on the full host",
    ],
)
def test_the_model_counts_pods_on_full_hosts_unless_selector_or_node_affinity_exclude_these(
    spec: dict[str, Any], *, is_counted: bool
) -> None:
    """podtopologyspread/scoring.go, interpodaffinity/scoring.go: a is full, b is in its rack, c in another."""
    labels = {"a": {"rack": "1"}, "b": {"rack": "1", "pool": "ours"}, "c": {"rack": "2", "pool": "ours"}}
    _, same_rack, other_rack = compute_scores(spec, labels, "a", full="a")
    assert (other_rack > same_rack) == is_counted


def test_the_model_gives_a_host_port_to_at_most_one_pod() -> None:
    spec = {"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]}
    pods = [msgspec.convert({"metadata": {"name": name, "namespace": "d"}, "spec": spec}, Pod) for name in "abc"]
    waiting = [("web", PodReader().read(pod)) for pod in pods]
    hosts = {name: host_of(make_node(name)) for name in ("m", "n", "o")}
    nodes = simulate_scheduling(waiting, hosts, {"o": {"port:TCP/80": 1}}, random.Random(1))
    assert sorted(nodes) == ["", "m", "n"]
