"""Topology spread constraints in the planner allow the nodes that kube-scheduler allows, on random clusters."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import msgspec
import numpy as np

from controller.cluster.eligibility import Constraints
from controller.cluster.hosts import host_of
from controller.cluster.pods import Pod
from controller.scheduler.placement.pod_topology import DomainRuleBuilder, unschedulable_reasons
from controller.scheduler.placement.solve import solve
from kubekit.wire import Node
from tests.unit.controller.oracle_cluster import matches_node, tolerates
from tests.unit.controller.search_problems import make_problem

Json = dict[str, Any]


class SpreadCase(NamedTuple):
    """Nodes, bound pods with the index of their node, and a new pod with spread constraints."""

    nodes: list[Json]
    bound_pods: list[tuple[int, Json]]
    new_pod: Json


def draw_node(rng: random.Random, name: str) -> Json:
    labels = {key: rng.choice("abc") for key in ("zone", "rack", "pool") if rng.random() < 0.8}
    taints = [{"key": "t", "effect": "NoSchedule"}] if rng.random() < 0.2 else []
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}


def draw_pod(rng: random.Random, name: str, *, terminating_share: float = 0.0) -> Json:
    labels = {key: rng.choice("xy") for key in ("app", "tier") if rng.random() < 0.8}
    metadata = {"name": name, "namespace": rng.choice(("a", "a", "b")), "labels": labels}
    if rng.random() < terminating_share:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "spec": {}}


def draw_constraint(rng: random.Random) -> Json:
    match_labels = rng.choice(({"app": "x"}, {"app": "y"}, {"tier": "x", "app": "x"}, {}))
    constraint = {
        "topologyKey": rng.choice(("zone", "rack")),
        "maxSkew": rng.randint(1, 2),
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": match_labels},
        "nodeAffinityPolicy": rng.choice(("Honor", "Ignore")),
        "nodeTaintsPolicy": rng.choice(("Honor", "Ignore")),
    }
    return constraint | ({"minDomains": rng.randint(1, 4)} if rng.random() < 0.5 else {})


def draw_case(rng: random.Random) -> SpreadCase:
    nodes = [draw_node(rng, f"n{i}") for i in range(rng.randint(1, 6))]
    names = [f"p{i}" for i in range(rng.randint(0, 8))]
    bound_pods = [(rng.randrange(len(nodes)), draw_pod(rng, name, terminating_share=0.2)) for name in names]
    new_pod = draw_pod(rng, "new")
    new_pod["spec"]["topologySpreadConstraints"] = [draw_constraint(rng) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.4:
        new_pod["spec"]["nodeSelector"] = {"pool": rng.choice("abc")}
    return SpreadCase(nodes, bound_pods, new_pod)


def is_node_counted(case: SpreadCase, node: Json, constraint: Json) -> bool:
    """Whether a node has all topology keys of the new pod, and the constraint's policies count it."""
    spec, labels = case.new_pod["spec"], node["metadata"]["labels"]
    if any(other["topologyKey"] not in labels for other in spec["topologySpreadConstraints"]):
        return False
    if constraint["nodeAffinityPolicy"] == "Honor" and not matches_node(spec, node):
        return False
    return constraint["nodeTaintsPolicy"] == "Ignore" or tolerates(spec, node)


def is_pod_counted(case: SpreadCase, pod: Json, constraint: Json) -> bool:
    match_labels, metadata = constraint["labelSelector"]["matchLabels"], pod["metadata"]
    is_in_namespace = metadata["namespace"] == case.new_pod["metadata"]["namespace"]
    # countPodsMatchSelector counts no pods for an empty selector, but the new pod matches an empty selector itself.
    is_selected = bool(match_labels) and match_labels.items() <= metadata["labels"].items()
    return is_in_namespace and is_selected and "deletionTimestamp" not in metadata


def is_allowed_by_constraint(case: SpreadCase, node: Json, constraint: Json) -> bool:
    """The rule of kube-scheduler's filter (plugins/podtopologyspread/filtering.go), for selectors that are ``matchLabels``."""
    key, metadata = constraint["topologyKey"], case.new_pod["metadata"]
    count_by_domain: dict[str, int] = {}
    for i, other in enumerate(case.nodes):
        if is_node_counted(case, other, constraint):
            pod_count = sum(index == i and is_pod_counted(case, pod, constraint) for index, pod in case.bound_pods)
            domain = other["metadata"]["labels"][key]
            count_by_domain[domain] = count_by_domain.get(domain, 0) + pod_count
    has_min_domains = len(count_by_domain) >= constraint.get("minDomains", 1)
    min_count = min(count_by_domain.values()) if has_min_domains else 0
    selects_itself = constraint["labelSelector"]["matchLabels"].items() <= metadata["labels"].items()
    domain = node["metadata"]["labels"].get(key)
    return domain is not None and (count_by_domain.get(domain, 0) + selects_itself - min_count <= constraint["maxSkew"])


def test_topology_spread_allows_the_nodes_that_kube_scheduler_allows() -> None:
    """The reasons of unplaced pods and the search agree with kube-scheduler's rule."""
    rng, refusal_count = random.Random(1), 0
    for _ in range(200):
        case = draw_case(rng)
        spec = case.new_pod["spec"]
        eligible = [matches_node(spec, node) and tolerates(spec, node) for node in case.nodes]
        expected = [
            is_eligible and all(is_allowed_by_constraint(case, node, c) for c in spec["topologySpreadConstraints"])
            for node, is_eligible in zip(case.nodes, eligible, strict=True)
        ]
        hosts = [host_of(msgspec.convert(node, Node)) for node in case.nodes]
        new_pod = msgspec.convert(case.new_pod, Pod)
        assert [not host.unschedulable_reason(Constraints(new_pod.spec)) for host in hosts] == eligible, case

        bound_pods = [(i, msgspec.convert(pod, Pod)) for i, pod in case.bound_pods]
        reasons = unschedulable_reasons(new_pod, hosts, bound_pods)
        assert [is_eligible and i not in reasons for i, is_eligible in enumerate(eligible)] == expected, case

        rules = DomainRuleBuilder([new_pod], hosts, bound_pods).build()
        for i, is_eligible in enumerate(eligible):
            only_host = (np.arange(len(hosts)) == i) & is_eligible
            problem = make_problem([0] * len(hosts), [1], domain_rules=rules, allowed=only_host[None])
            is_placed = solve(problem).tolist() == [i]
            assert is_placed == expected[i], case
        refusal_count += sum(eligible) - sum(expected)
    assert refusal_count > 50, "the random clusters have many nodes that only the constraints exclude"
