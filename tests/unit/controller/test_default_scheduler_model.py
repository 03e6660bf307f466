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


def node(name: str = "n") -> Node:
    body = {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}
    return msgspec.convert(body, Node)


def bound_pod(name: str, *memory: str, node_name: str = "n") -> PodInfo:
    containers = [{"resources": {"requests": {"memory": text}}} for text in memory]
    body = {"metadata": {"name": name, "namespace": "d"}, "spec": {"nodeName": node_name, "containers": containers}}
    return PodReader().read(msgspec.convert(body, Pod))


def test_requests_beyond_64_bits_fill_a_host_and_are_subtracted_again() -> None:
    node_cache = NodeCache()
    node_cache.on_node_change("n", None, node())
    node_cache.on_pod_change("d/small", None, bound_pod("small", "1Gi"))
    node_cache.on_pod_change("d/small", bound_pod("small", "1Gi"), bound_pod("small", "2Gi"))
    before, greedy = dict(node_cache.requested["n"]), bound_pod("greedy", "9E", "9E")
    assert before == {"memory": 2 * GIB, "pods": 1}, "an updated pod counts once"
    version = node_cache.version
    node_cache.on_node_change("n", None, node())
    assert node_cache.version == version
    for i in range(40):
        node_cache.on_pod_change(f"d/p{i}", None, greedy)
    assert node_cache.requested["n"]["memory"] > MAX_AMOUNT
    for i in range(40):
        node_cache.on_pod_change(f"d/p{i}", greedy, None)
    assert node_cache.requested["n"] == before
    node_cache.on_pod_change("d/small", bound_pod("small", "2Gi"), None)
    node_cache.on_node_change("n", None, None)
    assert (node_cache.hosts, node_cache.requested) == ({}, {}), "nothing is kept of nodes that are gone"


def test_pods_with_impossible_requests_do_not_prevent_a_plan() -> None:
    case = groups.GroupCase((2, 1), ((0, 1, 9),), ((0,),), (9,))
    start = groups.make_snapshot(case)
    container = {"resources": {"requests": {"memory": "9E"}}}
    greedy = msgspec.convert({"containers": [container, container, container]}, type(start.pods[0].spec))
    pods = [msgspec.structs.replace(p, spec=greedy) if i == 0 else p for i, p in enumerate(start.pods)]
    reserved = {next(iter(start.hosts)): {"memory": 3 * MAX_AMOUNT}}
    plan = plan_group(msgspec.structs.replace(start, pods=pods, reserved=reserved))
    assert plan.unplaced == (pods[0].metadata.key,)
    assert len(plan.targets) == len(pods) - 1


def test_the_model_of_the_default_scheduler_accepts_impossible_requests() -> None:
    hosts = [host_of(node("a")), host_of(node("b"))]
    greedy, small = bound_pod("g", "9E", "9E", node_name="a"), bound_pod("s", "1Gi", node_name="b")
    model, both = DefaultSchedulerModel(hosts), np.ones(2, np.bool_)
    for _ in range(21):
        model.add_pod(greedy, "a")
    assert np.argmax(model.scores(small, [], [], both)) == 1
    assert model.scores(greedy, [], [], both).min() >= 0


def scores_of(spec: dict[str, Any], labels: dict[str, dict[str, str]], *occupied: str, full: str = "") -> list[int]:
    """The model's scores of hosts with these labels, by pods on the occupied hosts; a full host takes no more pods."""
    pod = PodReader().read(msgspec.convert({"metadata": {"name": "p", "namespace": "d"}, "spec": spec}, Pod))
    hosts = [msgspec.structs.replace(host_of(node(name)), labels=of_host) for name, of_host in labels.items()]
    others = [bound_pod(f"other-{number}", node_name=name) for number, name in enumerate(occupied)]
    is_feasible = np.array([name != full for name in labels])
    return [int(score) for score in DefaultSchedulerModel(hosts).scores(pod, [], others, is_feasible)]


RACK_SPREAD = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}
ALL_PODS = {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}
SPREAD = {"topologySpreadConstraints": [{**RACK_SPREAD, "labelSelector": ALL_PODS}]}
EMPTY_SPREAD = {"topologySpreadConstraints": [{**RACK_SPREAD, "labelSelector": {}}]}
AWAY = {"weight": 1, "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {}}}
ANTI_AFFINITY = {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [AWAY]}}}


def test_the_model_gives_no_points_for_spread_to_a_host_without_the_topology_key() -> None:
    scores = scores_of(SPREAD, {"a": {"rack": "1"}, "b": {"rack": "2"}, "c": {}}, "a", "a", "b")
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
    _, same_rack, other_rack = scores_of(spec, labels, "a", full="a")
    assert (other_rack > same_rack) == is_counted


def test_the_model_gives_a_host_port_to_at_most_one_pod() -> None:
    spec = {"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]}
    pods = [msgspec.convert({"metadata": {"name": name, "namespace": "d"}, "spec": spec}, Pod) for name in "abc"]
    waiting = [("web", PodReader().read(pod)) for pod in pods]
    hosts = {name: host_of(node(name)) for name in ("m", "n", "o")}
    nodes = simulate_scheduling(waiting, hosts, {"o": {"port:TCP/80": 1}}, random.Random(1))
    assert sorted(nodes) == ["", "m", "n"]
