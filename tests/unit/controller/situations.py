"""Broken situations: what is broken, the finding that names the first cause, and the command of the finding that must end it.

The facts are made up, the rules are the product's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from controller.cluster.eligibility import UNSCHEDULABLE
from controller.cluster.pods import GroupPodSpec, Toleration
from controller.cluster.resources import AppGroup
from controller.diagnosis.facts import Facts, NodeFact, PodFact
from controller.diagnosis.model import AgentView, NetworkView, PairBasis, PairView
from controller.diagnosis.snapshot import ControlPlaneStatus, LeaseFact, Program, ProgramPod
from kubekit.wire import Condition, Taint, format_time

NOW_S = 1_800_000_000.0
GATE = "netaware.io/topological-order"
SCHEDULER = "network-aware-scheduler"
PROGRAMS: tuple[Program, ...] = ("controller", "extender", "scheduler")
READY = tuple(ProgramPod(program, f"{program}-0", "n1", "Running", ready=True) for program in PROGRAMS)
STATUS = ControlPlaneStatus(programs=READY, lease=LeaseFact("a", NOW_S - 2))


class Situation(msgspec.Struct, frozen=True):
    """One of them.

    Attributes:
        name: what is broken, for the table.
        facts: what is left to see of it.
        code: of the finding that must come first.
        says: a part of its summary and causes.
        fix: a part of one of its commands.
    """

    name: str
    facts: Facts
    code: str
    says: str
    fix: str


def group(conditions: list[dict[str, str]] | None = None, **fields: Any) -> AppGroup:
    front = {"kind": "Deployment", "name": "front", "selector": "front"}
    cart = {"kind": "Deployment", "name": "cart", "selector": "cart"}
    spec = {
        "numMembers": 20,
        "topologySortingAlgorithm": "KahnSort",
        "workloads": [
            {"workload": front, "dependencies": [{"workload": cart, "maxNetworkCost": 5}]},
            {"workload": cart},
        ],
    }
    meta = {"name": "shop", "namespace": "web"}
    return msgspec.convert(
        {"metadata": meta, "spec": spec | fields, "status": {"conditions": conditions or []}}, AppGroup
    )


def said(type_: str, status: str, reason: str, message: str, *, ago_s: float = 900.0) -> dict[str, str]:
    at = format_time(NOW_S - ago_s)
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def pod(name: str = "front-1", **fields: Any) -> PodFact:
    known: dict[str, Any] = {
        "group": "shop",
        "workload": "front",
        "scheduler": SCHEDULER,
        "created": NOW_S - 60,
        **fields,
    }
    known.setdefault("group_key", "web/shop" if known["group"] == "shop" else "")
    return PodFact("web", name, **known)


def unscheduled(message: str) -> Condition:
    return Condition("PodScheduled", "False", "Unschedulable", message, format_time(NOW_S - 50))


def agents(**states: Mapping[str, Any]) -> tuple[AgentView, ...]:
    """Four nodes in two zones, all well but for those that are named."""
    found = []
    for i in range(4):
        fields: dict[str, Any] = {"probes": 1, "newest_at": NOW_S - 30, "version": "0.1.0"}
        found.append(AgentView(node=f"n{i}", zone=f"z{i % 2}", **{**fields, **states.get(f"n{i}", {})}))
    return tuple(found)


def network(interval_s: float | None = 60.0, **bases: Iterable[tuple[str, str]]) -> NetworkView:
    """Pairs of zones by what their cost rests on: ``network=network(inferred=(("z0", "z1"),))``."""
    pairs = [
        PairView(origin=a, destination=b, basis=cast("PairBasis", basis))
        for basis, ends in bases.items()
        for a, b in ends
    ]
    return NetworkView(interval_s=interval_s, pairs=tuple(pairs))


def facts(**fields: Any) -> Facts:
    known = {
        "now": NOW_S,
        "control_plane": STATUS,
        "groups": (group(),),
        "agents": agents(),
        "network": network(),
        "nodes": {f"n{i}": NodeFact({"zone": f"z{i % 2}"}, (), f"z{i % 2}") for i in range(4)},
        "topologies": {"netaware-system/nt-default": ()},
    }
    return Facts(**{**known, **fields})


def status(**fields: Any) -> ControlPlaneStatus:
    return msgspec.structs.replace(STATUS, **fields)


def without(program: Program, **fields: Any) -> ControlPlaneStatus:
    known = {"node": "n1", "phase": "Running", **fields}
    dead = ProgramPod(program, f"{program}-0", **known)
    return status(programs=(*(p for p in READY if p.program != program), dead))


def no_pods(program: Program) -> ControlPlaneStatus:
    return status(programs=tuple(p for p in READY if p.program != program))


def waiting(**fields: Any) -> tuple[PodFact, ...]:
    return tuple(pod(f"p{i}", gates=(GATE,), **{"created": NOW_S - 5000, **fields}) for i in range(11))


def no_node(message: str, nodes: Mapping[str, NodeFact] | None = None, **fields: Any) -> Facts:
    pods = (pod(scheduled=unscheduled(message), **fields), pod("cart-1", workload="cart", gates=(GATE,)))
    return facts(pods=pods, **({} if nodes is None else {"nodes": nodes}))


def topology(type_: str, status: str, reason: str, message: str, **fields: Any) -> Facts:
    found = msgspec.convert(said(type_, status, reason, message), Condition)
    return facts(topologies={"netaware-system/nt-default": (found,)}, **fields)


DOWN = {"state": "down", "reason": "no agent has announced itself on this node", "newest_at": None}
SILENT = {"newest_at": NOW_S - 900}
LOST = {"workload": {"name": "front", "selector": "front"}, "dependencies": [{"workload": {"selector": "lost"}}]}
ONE = {"workload": {"name": "a", "selector": "a"}, "dependencies": [{"workload": {"selector": "b"}}]}
OTHER = {"workload": {"name": "b", "selector": "b"}, "dependencies": [{"workload": {"selector": "a"}}]}
TWICE = {"workload": {"name": "other", "selector": "front"}}
BAD = {
    "workload": {"name": "front", "selector": "front"},
    "dependencies": [{"workload": {"selector": "cart"}, "minBandwidth": "much"}],
}
FRONT = ("Deployment", "front")
FOREIGN = "kueue.x-k8s.io/admission"
TAINT = Taint("gpu", "NoSchedule", "only")
CORDONED = {f"n{i}": NodeFact({}, (UNSCHEDULABLE,), f"z{i % 2}") for i in range(4)}
TAINTED = {f"n{i}": NodeFact({}, (TAINT,), f"z{i % 2}") for i in range(4)}

SITUATIONS: tuple[Situation, ...] = (
    Situation(
        "a cluster without netaware",
        Facts(NOW_S, ControlPlaneStatus(installed=False)),
        "not-installed",
        "not installed",
        "kubectl apply",
    ),
    Situation(
        "the controller is frozen",
        facts(control_plane=status(lease=LeaseFact("a", NOW_S - 32)), pods=waiting()),
        "no-leader",
        "renewed 32 s ago by a",
        "rollout restart deployment/netaware-controller",
    ),
    Situation(
        "the controller is gone",
        facts(control_plane=no_pods("controller"), pods=waiting()),
        "controller-down",
        "0 replicas",
        "scale deployment/netaware-controller",
    ),
    Situation(
        "the controller's image cannot be pulled",
        facts(control_plane=without("controller", reason="ImagePullBackOff")),
        "controller-down",
        "ImagePullBackOff",
        "rollout undo deployment/netaware-controller",
    ),
    Situation(
        "the controller does not reach the API server",
        facts(control_plane=status(complaints=("controller-0: age: store of nodes is 130 s old (503)",))),
        "controller-not-ready",
        "store of nodes is 130 s old",
        "readyz",
    ),
    Situation(
        "the scheduler crashes",
        facts(control_plane=without("scheduler", reason="CrashLoopBackOff", template="abc"), pods=(pod(),)),
        "scheduler-down",
        "CrashLoopBackOff",
        "rollout undo deployment/netaware-scheduler",
    ),
    Situation(
        "the extender does not answer",
        facts(control_plane=without("extender")),
        "extender-down",
        "without regard to the network",
        "rollout restart deployment/netaware-scheduler",
    ),
    Situation(
        "the scheduler has no node to run on",
        facts(
            control_plane=without(
                "scheduler", node="", reason="0/4 nodes are available: 4 node(s) had untolerated taint {gpu: only}."
            )
        ),
        "scheduler-down",
        "0/4 nodes are available",
        "add a toleration",
    ),
    Situation(
        "one agent is dead",
        facts(agents=agents(n1=DOWN)),
        "agents-down",
        "no agent has announced itself",
        "spec.nodeName=n1",
    ),
    Situation(
        "one agent cannot read its passphrase",
        facts(agents=agents(n1={"reason": "the passphrase cannot be read"})),
        "agents-impaired",
        "n1: the passphrase cannot be read",
        "spec.nodeName=n1",
    ),
    Situation(
        "both agents of a zone are frozen",
        facts(agents=agents(n1=SILENT, n3=SILENT), network=network(inferred=(("z0", "z1"),))),
        "zone-without-agent",
        "no sample has named it for 900 s",
        "spec.nodeName=n1",
    ),
    Situation(
        "no agent runs anywhere",
        facts(agents=agents(n0=DOWN, n1=DOWN, n2=DOWN, n3=DOWN)),
        "no-agents",
        "no agent works on any of 4 nodes",
        "describe daemonset netaware-agent",
    ),
    Situation(
        "the path between two zones is cut",
        facts(unreachable=(("z0", "z1"), ("z1", "z0")), network=network(inferred=(("z0", "z1"),))),
        "zones-unreachable",
        "z0 and z1 cannot reach each other",
        "12865",
    ),
    Situation(
        "a pair was never measured",
        facts(network=network(absent=(("z0", "z1"),))),
        "pairs-unmeasured",
        "no measurement",
        "kubectl netaware costs",
    ),
    Situation(
        "nobody is told what to measure",
        facts(network=network(None, absent=(("z0", "z1"),))),
        "no-plan",
        "no probe plan",
        "logs deployment/netaware-controller",
    ),
    Situation(
        "the NetworkTopology was deleted",
        facts(topologies={}, network=network(absent=(("z0", "z1"),))),
        "no-topology",
        "no NetworkTopology",
        "rollout restart",
    ),
    Situation(
        "nodes without a zone label",
        topology(
            "InputValid", "False", "NodesWithoutZone", "2 nodes without a zone label: n7, n8", nodes={"n7": NodeFact()}
        ),
        "topology-NodesWithoutZone",
        "n7, n8",
        "kubectl label node n7",
    ),
    Situation(
        "a costPolicy that makes no sense",
        topology("InputValid", "False", "BadCostPolicy", "costPolicy.expireAfterS: is below staleAfterS"),
        "topology-BadCostPolicy",
        "is below staleAfterS",
        '"costPolicy":{"expireAfterS":null,"staleAfterS":null}',
    ),
    Situation(
        "results that nobody asked for",
        topology("OutlierNodes", "True", "UnplannedResults", "results of pairs that no plan names come from n9"),
        "topology-UnplannedResults",
        "n9",
        "logs daemonset/netaware-agent",
    ),
    Situation(
        "one node behind a wrong route",
        topology("OutlierNodes", "True", "NodesContradicted", "set aside: n2 (reads more)"),
        "topology-NodesContradicted",
        "n2 (reads more)",
        "kubectl describe node n2",
    ),
    Situation(
        "old measurements",
        topology("Stale", "True", "MeasurementsOld", "2 of 12 zone pairs keep their last good value"),
        "pairs-stale",
        "2 of 12",
        "kubectl netaware costs",
    ),
    Situation(
        "a dependency on a workload that is not there",
        facts(groups=(group(workloads=[LOST]),)),
        "spec-UnknownDependency",
        "lost",
        "edit appgroup shop",
    ),
    Situation(
        "two workloads with one selector",
        facts(groups=(group(workloads=[{"workload": {"name": "front", "selector": "front"}}, TWICE]),)),
        "spec-DuplicateSelector",
        "front",
        "edit appgroup shop",
    ),
    Situation(
        "a bandwidth that is no quantity",
        facts(groups=(group(workloads=[BAD, {"workload": {"selector": "cart"}}]),)),
        "spec-BadBandwidth",
        "much",
        "edit appgroup shop",
    ),
    Situation(
        "dependencies in a circle",
        facts(groups=(group(workloads=[ONE, OTHER]),)),
        "dependency-cycle",
        "a → b → a",
        "edit appgroup shop",
    ),
    Situation(
        "an algorithm that nobody knows",
        facts(groups=(group(topologySortingAlgorithm="Bogo"),)),
        "spec-UnknownAlgorithm",
        "Bogo",
        "edit appgroup shop",
    ),
    Situation(
        "more pods than members",
        facts(groups=(group(numMembers=1),), pods=(pod(node="n1"), pod("front-2", node="n1"))),
        "members-exceeded",
        "2 pods",
        '"numMembers":2',
    ),
    Situation(
        "a quota keeps pods from being made",
        facts(groups=(group([said("Complete", "False", "PodsMissing", "1 of 20 pods run")]),), pods=(pod(node="n1"),)),
        "members-missing",
        "19 of 20 pods were never created",
        "reason=FailedCreate",
    ),
    Situation(
        "a namespace that does not let the group in",
        facts(
            groups=(
                group(
                    [
                        said(
                            "Admitted",
                            "False",
                            "NamespaceNotAdmitted",
                            "pods of other are not the group's; for example: kubectl label namespace other netaware.io/groups-from=web",
                        )
                    ],
                    workloads=[
                        {"workload": {"name": "front", "selector": "front", "namespace": "other"}},
                        {"workload": {"name": "cart", "selector": "cart"}},
                    ],
                ),
            )
        ),
        "namespace-not-admitted",
        "pods of other are not the group's",
        "kubectl label namespace other",
    ),
    Situation(
        "dependencies that cost too much",
        facts(
            groups=(
                group([said("CostsMet", "False", "CostsExceeded", "front to cart costs 40, at most 5 (z0 to z1)")]),
            )
        ),
        "costs-violated",
        "front to cart costs 40",
        "graph shop -n web",
    ),
    Situation(
        "replicas that one zone's loss would stop",
        facts(groups=(group([said("Balanced", "False", "OneZone", "all 2 replicas of cart are in z0")]),)),
        "not-balanced",
        "all 2 replicas of cart are in z0",
        "graph shop -n web",
    ),
    Situation(
        "a workload label that is wrong",
        facts(pods=waiting(workload="wrong")),
        "unknown-workload",
        "it has cart, front",
        "appgroup.diktyo.x-k8s.io.workload",
    ),
    Situation(
        "an AppGroup that does not exist",
        facts(pods=(pod(group="nope", gates=(GATE,)),)),
        "unknown-workload",
        "there is no AppGroup nope",
        "kubectl get appgroups -A",
    ),
    Situation(
        "running pods whose workload label is wrong",
        facts(pods=tuple(pod(f"front-{i}", workload="wrong", node="n1", owner=FRONT) for i in range(3))),
        "unknown-workload",
        "their dependencies count for nothing",
        "edit deployment front",
    ),
    Situation(
        "running pods whose AppGroup is gone",
        facts(groups=(), pods=(pod(node="n1", owner=FRONT, group_key=""),)),
        "unknown-workload",
        "there is no AppGroup shop",
        "edit deployment front",
    ),
    Situation(
        "some pods of a group name another scheduler",
        facts(pods=(pod(node="n1"), pod("front-2", scheduler="default-scheduler", node="n2"))),
        "other-scheduler",
        "does not ask us",
        "schedulerName: network-aware-scheduler",
    ),
    Situation(
        "a scheduler's name that nobody answers to",
        facts(pods=(pod(scheduler="network-aware-schedular", created=NOW_S - 300),)),
        "no-scheduler",
        "no scheduler named network-aware-schedular",
        "schedulerName: network-aware-scheduler",
    ),
    Situation(
        "a gate that somebody else opens",
        facts(pods=tuple(pod(f"p{i}", gates=(FOREIGN, GATE), created=NOW_S - 300) for i in range(3))),
        "foreign-gate",
        "kueue.x-k8s.io/admission",
        "describe pod p0",
    ),
    Situation(
        "pods that wait at our gate for ten minutes",
        facts(pods=waiting(created=NOW_S - 700)),
        "gated-too-long",
        "11 pods",
        "describe appgroup shop",
    ),
    Situation(
        "no node has room",
        no_node(
            "0/4 nodes are available: 3 Insufficient cpu, 1 node(s) had untolerated taint {a: }. preemption: 0/4 nodes are available: 1 Preemption is not helpful for scheduling, 3 No preemption victims found"
        ),
        "no-node-capacity",
        "nodes are full",
        "Allocated resources",
    ),
    Situation(
        "every node has a taint",
        facts(
            nodes=TAINTED,
            pods=(
                pod(
                    owner=FRONT,
                    scheduled=unscheduled("0/4 nodes are available: 4 node(s) had untolerated taint {gpu: only}."),
                ),
            ),
        ),
        "no-node-taint",
        "tolerates the taints of none of 4 nodes",
        '"op":"add","path":"/spec/template/spec/tolerations"',
    ),
    Situation(
        "every node is cordoned",
        no_node("0/4 nodes are available: 4 node(s) were unschedulable.", nodes=CORDONED),
        "no-node-cordoned",
        "cordoned",
        "kubectl uncordon n0 n1 n2 n3",
    ),
    Situation(
        "a node selector that fits nothing",
        no_node(
            "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.",
            spec=GroupPodSpec(node_selector={"zone": "mars"}),
        ),
        "no-node-selector",
        "nodeSelector zone=mars leaves no node",
        "correct nodeSelector",
    ),
    Situation(
        "a volume in another zone",
        no_node("0/4 nodes are available: 1 Insufficient memory, 3 node(s) had volume node affinity conflict."),
        "no-node-volume",
        "its volume can be used from other nodes only",
        "kubectl -n web get pvc",
    ),
    Situation(
        "a claim that is not bound",
        no_node("0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
        "no-node-claim",
        "PersistentVolumeClaim",
        "get storageclass",
    ),
    Situation(
        "limits that the network cannot keep",
        no_node(
            "0/2 nodes are available: 1 Node n0 does not meet several network requirements from Workload dependencies: Satisfied: 0 Violated: 1, 1 Node n1 does not meet several network requirements from Workload dependencies: Satisfied: 0 Violated: 1."
        ),
        "no-node-max-cost",
        "more of its dependencies would be violated",
        "kubectl netaware costs",
    ),
    Situation(
        "no bandwidth left",
        no_node("0/4 nodes are available: 4 Insufficient network.aware.com/bandwidth."),
        "no-node-bandwidth",
        "free bandwidth",
        "kubectl netaware bandwidth",
    ),
    Situation(
        "host ports that are taken",
        no_node("0/4 nodes are available: 4 node(s) didn't have free ports for the requested pod ports."),
        "no-node-ports",
        "its host ports are taken",
        "get pod front-1",
    ),
    Situation(
        "anti-affinity with more replicas than nodes",
        no_node("0/4 nodes are available: 4 node(s) didn't match pod anti-affinity rules."),
        "no-node-spread",
        "rules about other pods",
        "get pod front-1",
    ),
    Situation(
        "agents of two versions",
        facts(agents=agents(n2={"version": "0.0.9"})),
        "agent-version-skew",
        "0.0.9, 0.1.0",
        "rollout status daemonset/netaware-agent",
    ),
)
BORNE = GroupPodSpec(tolerations=[Toleration(key="gpu", operator="Exists")])
