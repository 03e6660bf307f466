"""Situations: facts in which something is broken, with the expected finding and fix command."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.cluster.pods import PodSpec
from controller.diagnosis.control_plane import ControlPlaneStatus, LeaseStatus
from controller.diagnosis.facts import Facts, NodeFact, PodFact
from tests.unit.controller.cluster_facts import (
    CORDONED,
    DOWN,
    GATE,
    NOW_S,
    OWNER,
    SILENT,
    TAINTED,
    make_agents,
    make_condition,
    make_control_plane,
    make_facts,
    make_gated_pods,
    make_group,
    make_network,
    make_pod_fact,
    make_stuck_facts,
    make_topology_facts,
    make_unready,
    remove_pods,
)


class Situation(msgspec.Struct, frozen=True):
    """Facts in which something is broken; ``code`` is that of the first finding, and ``fix`` a part of one of its commands."""

    name: str
    code: str
    fix: str
    facts: Facts


FRONT_WORKLOAD = {"workload": {"name": "front", "selector": "front"}}
NO_CALLEE = {**FRONT_WORKLOAD, "dependencies": [{"workload": {"selector": "lost"}}]}
BAD_BANDWIDTH = {**FRONT_WORKLOAD, "dependencies": [{"workload": {"selector": "cart"}, "minBandwidth": "much"}]}
SAME_SELECTOR = {"workload": {"name": "other", "selector": "front"}}
A_CALLS_B, B_CALLS_A = (
    {"workload": {"name": name, "selector": name}, "dependencies": [{"workload": {"selector": other}}]}
    for name, other in (("a", "b"), ("b", "a"))
)
ELSEWHERE = {"workload": {"name": "front", "selector": "front", "namespace": "other"}}
NOT_ADMITTED = make_condition(
    "Admitted",
    "False",
    "NoConsent",
    "pods of other are not the group's: these namespaces do not consent to groups of web",
)


def make_situation(name: str, code: str, fix: str, *pods: PodFact, **fields: Any) -> Situation:
    """A healthy cluster with these pods, except for these fields of its facts."""
    return Situation(name, code, fix, make_facts(pods=pods, **fields))


def make_invalid_spec(name: str, code: str, **fields: Any) -> Situation:
    """An AppGroup with an invalid spec."""
    return make_situation(name, code, "edit appgroup shop", groups=(make_group(**fields),))


def make_failed_condition(name: str, code: str, fix: str, type_: str, reason: str, message: str) -> Situation:
    """An AppGroup with a False condition."""
    return make_situation(name, code, fix, groups=(make_group([make_condition(type_, "False", reason, message)]),))


def make_without_node(name: str, code: str, fix: str, message: str, **fields: Any) -> Situation:
    """A pod for which the scheduler finds no node."""
    return Situation(name, f"no-node-{code}", fix, make_stuck_facts(f"0/4 nodes are available: {message}", **fields))


SITUATIONS: tuple[Situation, ...] = (
    Situation(
        "a cluster without netaware",
        "not-installed",
        "kubectl apply",
        Facts(NOW_S, ControlPlaneStatus(is_installed=False)),
    ),
    make_situation(
        "the controller hangs",
        "no-leader",
        "rollout restart deployment/netaware-controller",
        *make_gated_pods(),
        control_plane=make_control_plane(lease=LeaseStatus("a", NOW_S - 32)),
    ),
    make_situation(
        "the controller has no pod",
        "controller-down",
        "scale deployment/netaware-controller",
        *make_gated_pods(),
        control_plane=remove_pods("controller"),
    ),
    make_situation(
        "the controller's image cannot be pulled",
        "controller-down",
        "rollout undo deployment/netaware-controller",
        control_plane=make_unready("controller", reason="ImagePullBackOff"),
    ),
    make_situation(
        "the controller does not reach the API server",
        "controller-not-ready",
        "readyz",
        control_plane=make_control_plane(failed_checks=("controller-0: age: store of nodes is 130 s old (503)",)),
    ),
    make_situation(
        "the scheduler crashes",
        "scheduler-down",
        "rollout undo deployment/netaware-scheduler",
        make_pod_fact(),
        control_plane=make_unready("scheduler", reason="CrashLoopBackOff", template_hash="abc"),
    ),
    make_situation(
        "the extender does not answer",
        "extender-down",
        "rollout restart deployment/netaware-scheduler",
        control_plane=make_unready("extender"),
    ),
    make_situation(
        "the scheduler has no node to run on",
        "scheduler-down",
        "add a toleration",
        control_plane=make_unready(
            "scheduler", node="", reason="0/4 nodes are available: 4 node(s) had untolerated taint {gpu: only}."
        ),
    ),
    make_situation("one agent has failed", "agents-down", "spec.nodeName=n1", agents=make_agents(n1=DOWN)),
    make_situation(
        "one agent cannot read its passphrase",
        "agents-impaired",
        "spec.nodeName=n1",
        agents=make_agents(n1={"reason": "the passphrase cannot be read"}),
    ),
    make_situation(
        "both agents of a zone hang",
        "zone-without-agent",
        "spec.nodeName=n1",
        agents=make_agents(n1=SILENT, n3=SILENT),
        network=make_network(inferred=(("z0", "z1"),)),
    ),
    make_situation(
        "no agent runs anywhere",
        "no-agents",
        "describe daemonset netaware-agent",
        agents=make_agents(n0=DOWN, n1=DOWN, n2=DOWN, n3=DOWN),
    ),
    make_situation(
        "two zones cannot reach each other",
        "zones-unreachable",
        "12865",
        unreachable_pairs=(("z0", "z1"), ("z1", "z0")),
        network=make_network(inferred=(("z0", "z1"),)),
    ),
    make_situation(
        "a pair was never measured",
        "pairs-unmeasured",
        "kubectl netaware costs",
        network=make_network(absent=(("z0", "z1"),)),
    ),
    make_situation(
        "there is no probe plan",
        "no-plan",
        "logs deployment/netaware-controller",
        network=make_network(None, absent=(("z0", "z1"),)),
    ),
    make_situation(
        "the NetworkTopology was deleted",
        "no-topology",
        "bootstrap.networkTopology",
        topology_conditions={},
        network=make_network(absent=(("z0", "z1"),)),
    ),
    Situation(
        "nodes without a zone label",
        "topology-NodesWithoutZone",
        "kubectl label node n7",
        make_topology_facts(
            "InputValid", "False", "NodesWithoutZone", "2 nodes without a zone label: n7, n8", nodes={"n7": NodeFact()}
        ),
    ),
    Situation(
        "an inconsistent costPolicy",
        "topology-BadCostPolicy",
        '"costPolicy":{"expireAfterS":null,"staleAfterS":null}',
        make_topology_facts("InputValid", "False", "BadCostPolicy", "costPolicy.expireAfterS: is below staleAfterS"),
    ),
    Situation(
        "unplanned results",
        "topology-UnplannedResults",
        "logs daemonset/netaware-agent",
        make_topology_facts(
            "OutlierNodes", "True", "UnplannedResults", "results of pairs that no plan names come from n9"
        ),
    ),
    Situation(
        "one node behind a wrong route",
        "topology-NodesContradicted",
        "kubectl describe node n2",
        make_topology_facts(
            "OutlierNodes",
            "True",
            "NodesContradicted",
            "ignored, because other nodes contradict them: n2 (measures higher latencies)",
        ),
    ),
    Situation(
        "old measurements",
        "pairs-stale",
        "kubectl netaware costs",
        make_topology_facts("Measured", "False", "MeasurementsOld", "2 keep their last good value, oldest z0->z1"),
    ),
    make_invalid_spec("a dependency on a missing workload", "spec-UnknownDependency", workloads=[NO_CALLEE]),
    make_invalid_spec(
        "two workloads with one selector", "spec-DuplicateSelector", workloads=[FRONT_WORKLOAD, SAME_SELECTOR]
    ),
    make_invalid_spec(
        "a malformed minBandwidth", "spec-BadBandwidth", workloads=[BAD_BANDWIDTH, {"workload": {"selector": "cart"}}]
    ),
    make_invalid_spec("a cycle of dependencies", "dependency-cycle", workloads=[A_CALLS_B, B_CALLS_A]),
    make_invalid_spec("an unknown algorithm", "spec-UnknownAlgorithm", topologySortingAlgorithm="Bogo"),
    make_situation(
        "a quota prevents the creation of pods",
        "members-missing",
        "reason=FailedCreate",
        make_pod_fact(node="n1"),
        groups=(make_group([make_condition("Complete", "False", "PodsMissing", "1 of 20 pods run")]),),
    ),
    make_situation(
        "a namespace without consent",
        "namespace-not-admitted",
        "kubectl label namespace other",
        groups=(make_group([NOT_ADMITTED], workloads=[ELSEWHERE, {"workload": {"name": "cart", "selector": "cart"}}]),),
    ),
    make_failed_condition(
        "violated dependencies",
        "costs-violated",
        "graph shop -n web",
        "CostsMet",
        "CostsExceeded",
        "front to cart costs 40, at most 5 (z0 to z1)",
    ),
    make_failed_condition(
        "all replicas in one zone",
        "not-balanced",
        "graph shop -n web",
        "Balanced",
        "OneZone",
        "all 2 replicas of cart are in z0",
    ),
    make_situation(
        "a wrong workload label",
        "unknown-workload",
        "appgroup.diktyo.x-k8s.io.workload",
        *make_gated_pods(workload="wrong"),
    ),
    make_situation(
        "an AppGroup that does not exist",
        "unknown-workload",
        "kubectl get appgroups -A",
        make_pod_fact(group="nope", gates=(GATE,)),
    ),
    make_situation(
        "running pods with a wrong workload label",
        "unknown-workload",
        "edit deployment front",
        *(make_pod_fact(f"front-{i}", workload="wrong", node="n1", owner=OWNER) for i in range(3)),
    ),
    make_situation(
        "running pods of a deleted AppGroup",
        "unknown-workload",
        "edit deployment front",
        make_pod_fact(node="n1", owner=OWNER, group_key=""),
        groups=(),
    ),
    make_situation(
        "some pods of a group name another scheduler",
        "other-scheduler",
        "schedulerName: network-aware-scheduler",
        make_pod_fact(node="n1"),
        make_pod_fact("front-2", scheduler="default-scheduler", node="n2"),
    ),
    make_situation(
        "a schedulerName of no scheduler",
        "no-scheduler",
        "schedulerName: network-aware-scheduler",
        make_pod_fact(scheduler="network-aware-schedular", created_s=NOW_S - 300),
    ),
    make_situation(
        "pods gated for ten minutes",
        "gated-too-long",
        "describe appgroup shop",
        *make_gated_pods(created_s=NOW_S - 700),
    ),
    make_without_node(
        "all nodes are full",
        "capacity",
        "Allocated resources",
        "3 Insufficient cpu, 1 node(s) had untolerated taint {a: }. preemption: 0/4 nodes are available: 1 Preemption is not helpful for scheduling, 3 No preemption victims found",
    ),
    make_without_node(
        "every node has a taint",
        "taint",
        '"op":"add","path":"/spec/template/spec/tolerations"',
        "4 node(s) had untolerated taint {gpu: only}.",
        owner=OWNER,
        nodes=TAINTED,
    ),
    make_without_node(
        "every node is cordoned",
        "cordoned",
        "kubectl uncordon n0 n1 n2 n3",
        "4 node(s) were unschedulable.",
        nodes=CORDONED,
    ),
    make_without_node(
        "a node selector that matches no node",
        "selector",
        "correct nodeSelector",
        "4 node(s) didn't match Pod's node affinity/selector.",
        spec=PodSpec(node_selector={"zone": "mars"}),
    ),
    make_without_node(
        "a volume in another zone",
        "volume",
        "kubectl -n web get pvc",
        "1 Insufficient memory, 3 node(s) had volume node affinity conflict.",
    ),
    make_without_node(
        "an unbound claim", "claim", "get storageclass", "pod has unbound immediate PersistentVolumeClaims."
    ),
    make_without_node(
        "a maxNetworkCost that no node meets",
        "max-cost",
        "kubectl netaware costs",
        "1 Node n0 does not meet several network requirements from Workload dependencies: Satisfied: 0 Violated: 1, 1 Node n1 does not meet several network requirements from Workload dependencies: Satisfied: 0 Violated: 1.",
    ),
    make_without_node(
        "no node has enough bandwidth",
        "bandwidth",
        "kubectl netaware bandwidth",
        "4 Insufficient network.aware.com/bandwidth.",
    ),
    make_without_node(
        "host ports in use", "ports", "get pod front-1", "4 node(s) didn't have free ports for the requested pod ports."
    ),
    make_without_node(
        "anti-affinity with more replicas than nodes",
        "spread",
        "get pod front-1",
        "4 node(s) didn't match pod anti-affinity rules.",
    ),
)
