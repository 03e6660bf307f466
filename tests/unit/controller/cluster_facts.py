"""Facts of a healthy cluster, and parts of facts in which something is broken, for tests of findings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.cluster.eligibility import UNSCHEDULABLE_TAINT
from controller.cluster.pods import TARGET_ANNOTATION, PodSpec, PodStatus, Toleration
from controller.diagnosis.cluster_views import AgentView, NetworkView, PairBasis, PairView
from controller.diagnosis.control_plane import ControlPlaneStatus, LeaseStatus, Program, ProgramPod
from controller.diagnosis.facts import Facts, NodeFact, PodFact
from kubekit.wire import Condition, ObjectMeta, OwnerReference, SchedulingGate, Taint, format_time
from tests.support.bodies import make_appgroup_spec

NOW_S = 1_800_000_000.0
GATE = "netaware.io/topological-order"
NO_CONSTRAINTS = PodSpec()
SCHEDULER = "network-aware-scheduler"
PROGRAMS: tuple[Program, ...] = ("controller", "extender", "scheduler")
READY = tuple(ProgramPod(program, f"{program}-0", "n1", "Running", is_ready=True) for program in PROGRAMS)
HEALTHY = ControlPlaneStatus(pods=READY, lease=LeaseStatus("a", NOW_S - 2))
DOWN = {"state": "down", "reason": "no agent has announced itself on this node", "newest_at": None}
SILENT = {"newest_at": NOW_S - 900}
OWNER = ("Deployment", "front")
OTHER_GATE = "kueue.x-k8s.io/admission"
CORDONED = {f"n{i}": NodeFact({}, (UNSCHEDULABLE_TAINT,), f"z{i % 2}") for i in range(4)}
TAINTED = {f"n{i}": NodeFact({}, (Taint("gpu", "NoSchedule", "only"),), f"z{i % 2}") for i in range(4)}
GATED = Condition("PodScheduled", "False", "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
TOLERANT = PodSpec(tolerations=[Toleration(key="gpu", operator="Exists")])


def make_group(conditions: list[dict[str, str]] | None = None, **fields: Any) -> AppGroup:
    spec = make_appgroup_spec({"front": {"cart": 5}, "cart": {}}, members=20) | fields
    meta = {"name": "shop", "namespace": "web"}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"conditions": conditions or []}}, AppGroup)


def make_condition(type_: str, status: str, reason: str, message: str, *, ago_s: float = 900.0) -> dict[str, str]:
    at = format_time(NOW_S - ago_s)
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def make_pod_fact(
    name: str = "front-1",
    *,
    group: str = "shop",
    group_key: str | None = None,
    workload: str = "front",
    created_s: float = NOW_S - 60,
    owner: tuple[str, str] | None = None,
    target: str = "",
    scheduler: str = SCHEDULER,
    node: str = "",
    gates: Iterable[str] = (),
    spec: PodSpec = NO_CONSTRAINTS,
    phase: str = "",
    scheduled: Condition | None = None,
    is_terminating: bool = False,
    needs_no_extender: bool = False,
) -> PodFact:
    metadata = ObjectMeta(
        name=name,
        namespace="web",
        labels={APPGROUP_LABEL: group, WORKLOAD_LABEL: workload},
        annotations={TARGET_ANNOTATION: json.dumps({"node": target})} if target else None,
        creation_timestamp=format_time(created_s),
        deletion_timestamp=format_time(NOW_S) if is_terminating else None,
        owner_references=[OwnerReference(kind=owner[0], name=owner[1], controller=True)] if owner else None,
    )
    scheduling_gates = [SchedulingGate(gate) for gate in gates]
    spec = msgspec.structs.replace(spec, scheduler_name=scheduler, node_name=node, scheduling_gates=scheduling_gates)
    pod_status = PodStatus(phase=phase, conditions=[scheduled] if scheduled else None)
    key = ("web/shop" if group == "shop" else "") if group_key is None else group_key
    return PodFact(metadata=metadata, spec=spec, status=pod_status, group_key=key, needs_no_extender=needs_no_extender)


def make_unschedulable(message: str) -> Condition:
    return Condition("PodScheduled", "False", "Unschedulable", message, format_time(NOW_S - 50))


def make_agents(**states: Mapping[str, Any]) -> tuple[AgentView, ...]:
    """Working agents on four nodes in two zones; ``states`` are other fields by node."""
    defaults: dict[str, Any] = {"probes": 1, "newest_at": NOW_S - 30, "version": "0.1.0"}
    return tuple(
        AgentView(node=f"n{i}", zone=f"z{i % 2}", **(defaults | dict(states.get(f"n{i}", {})))) for i in range(4)
    )


def make_network(interval_s: float | None = 60.0, **bases: Iterable[tuple[str, str]]) -> NetworkView:
    """Pairs of zones by the basis of their cost: ``network(inferred=(("z0", "z1"),))``."""
    zones = [(cast("PairBasis", basis), *pair) for basis, pairs in bases.items() for pair in pairs]
    pairs = tuple(PairView(origin=origin, destination=destination, basis=basis) for basis, origin, destination in zones)
    return NetworkView(interval_s=interval_s, pairs=pairs)


def make_facts(**fields: Any) -> Facts:
    """A healthy cluster, except for ``fields``."""
    defaults = {
        "now_s": NOW_S,
        "control_plane": HEALTHY,
        "groups": (make_group(),),
        "agents": make_agents(),
        "network": make_network(),
        "nodes": {f"n{i}": NodeFact({"zone": f"z{i % 2}"}, (), f"z{i % 2}") for i in range(4)},
        "topology_conditions": {"netaware-system/nt-default": ()},
    }
    return Facts(**{**defaults, **fields})


def make_control_plane(**fields: Any) -> ControlPlaneStatus:
    return msgspec.structs.replace(HEALTHY, **fields)


def make_unready(program: Program, **fields: Any) -> ControlPlaneStatus:
    """A control plane of which one program is not ready."""
    unready = ProgramPod(program, f"{program}-0", **{"node": "n1", "phase": "Running", **fields})
    return make_control_plane(pods=(*(pod for pod in READY if pod.program != program), unready))


def remove_pods(*programs: Program) -> ControlPlaneStatus:
    return make_control_plane(pods=tuple(pod for pod in READY if pod.program not in programs))


def make_gated_pods(**fields: Any) -> tuple[PodFact, ...]:
    return tuple(make_pod_fact(f"p{i}", gates=(GATE,), **{"created_s": NOW_S - 5000, **fields}) for i in range(11))


def make_stuck_facts(message: str, nodes: Mapping[str, NodeFact] | None = None, **fields: Any) -> Facts:
    pods = (
        make_pod_fact(scheduled=make_unschedulable(message), **fields),
        make_pod_fact("cart-1", workload="cart", gates=(GATE,)),
    )
    return make_facts(pods=pods, **({} if nodes is None else {"nodes": nodes}))


def make_topology_facts(
    type_: str, status: str, reason: str, message: str, *, ago_s: float = 900.0, **fields: Any
) -> Facts:
    """Facts with a condition of the NetworkTopology."""
    failed = msgspec.convert(make_condition(type_, status, reason, message, ago_s=ago_s), Condition)
    return make_facts(topology_conditions={"netaware-system/nt-default": (failed,)}, **fields)
