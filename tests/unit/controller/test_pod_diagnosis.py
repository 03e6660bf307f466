"""The diagnosis of one pod: why it is placed or pending, until when, and its placement mode."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.pods import PLACEMENT_LABEL, PlacementMode, Pod, PodSpec
from controller.diagnosis.control_plane import LeaseStatus
from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.facts import build_facts
from controller.diagnosis.findings import has_leader
from controller.diagnosis.pod_diagnosis import diagnose_pod
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.scheduler.config import SchedulerConfig
from kubekit.wire import Object, ObjectMeta
from tests.unit.controller.cluster_facts import (
    GATE,
    GATED,
    NOW_S,
    OTHER_GATE,
    TAINTED,
    TOLERANT,
    make_control_plane,
    make_facts,
    make_pod_fact,
    make_unschedulable,
)

UNSCHEDULABLE = make_unschedulable("0/4 nodes are available: 4 Insufficient cpu.")
REFUSED = make_unschedulable(
    "0/1 nodes are available: 1 Node n0 does not meet several network requirements from Workload dependencies: "
    "Satisfied: 0 Violated: 1."
)
ONLY_Z1 = PodSpec(node_selector={"zone": "z1"})


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"gates": (GATE,), "nodes": TAINTED}, "gated", "tolerates the taints of none of 4 nodes"),
        ({"gates": (GATE,), "nodes": TAINTED, "spec": TOLERANT}, "gated", "waits for the plan of AppGroup shop"),
        ({"scheduler": "default-scheduler", "scheduler_names": ()}, "waiting", "has not tried to place it yet"),
        ({"node": "n1"}, "placed", "it is on n1"),
        ({"node": "n1", "workload": "wrong"}, "placed", "no AppGroup: AppGroup shop has no workload"),
        ({"phase": "Failed"}, "finished", "Failed"),
        ({"is_terminating": True, "gates": (GATE,)}, "terminating", "being deleted"),
        ({"gates": (GATE,), "target": "n1"}, "planned", "planned onto n1"),
        ({"gates": (GATE,), "workload": "wrong"}, "gated", "no workload with selector wrong; it has cart, front"),
        ({"gates": (GATE,), "group": ""}, "gated", "no AppGroup label"),
        ({"gates": (GATE,), "group": "nope"}, "gated", "there is no AppGroup nope"),
        ({"gates": (OTHER_GATE,)}, "foreign-gate", f"{OTHER_GATE}, which another controller opens"),
        ({"gates": (GATE,), "target": "n0", "spec": ONLY_Z1}, "planned", "nodeSelector zone=z1 allows 2 nodes of z1"),
        ({"scheduled": UNSCHEDULABLE}, "unschedulable", "the nodes are full (0/4 nodes are available"),
        ({"scheduled": REFUSED}, "refused", "dependencies would be violated"),
        ({"scheduler": "default-scheduler"}, "other-scheduler", "does not call netaware's extender"),
        ({"scheduler": "default-scheduler", "needs_no_extender": True}, "waiting", "has not tried to place it yet"),
        ({}, "waiting", "has not tried to place it yet"),
        ({"scheduled": GATED}, "waiting", "has not tried to place it yet"),
    ],
)
def test_the_diagnosis_of_a_pod_says_why_it_is_placed_or_waits(fields: dict[str, Any], kind: str, words: str) -> None:
    cluster_fields = {name: fields[name] for name in ("nodes", "scheduler_names") if name in fields}
    pod_fields = {name: fields[name] for name in fields.keys() - cluster_fields}
    diagnosis = diagnose_pod(make_pod_fact(**pod_fields), make_facts(**cluster_fields))
    assert diagnosis.kind == kind
    assert words in diagnosis.summary


def test_a_gated_pod_waits_until_the_configured_time_if_there_is_a_leader() -> None:
    diagnosis = diagnose_pod(make_pod_fact(gates=(GATE,)), make_facts(max_gate_wait_s=300.0))
    assert diagnosis.since == NOW_S - 60
    assert diagnosis.until == NOW_S - 60 + 300
    facts = make_facts(control_plane=make_control_plane(lease=LeaseStatus("a", NOW_S - 60)))
    assert diagnose_pod(make_pod_fact(gates=(GATE,)), facts, has_leader=has_leader(diagnose(facts))).until is None


def test_a_pod_whose_gate_opened_with_a_target_needs_no_extender() -> None:
    snapshot = ClusterSnapshot(now_s=NOW_S, pods=(make_pod_fact(scheduler="default-scheduler", target="n1"),))
    (released_pod,) = build_facts(snapshot).pods
    assert released_pod.needs_no_extender


@pytest.mark.parametrize(
    ("labels", "namespace_labels", "placement", "needs_no_extender"),
    [
        ({}, {}, "extender", False),
        ({}, {}, "affinity", True),
        ({}, {PLACEMENT_LABEL: "affinity"}, "extender", True),
        ({PLACEMENT_LABEL: "affinity"}, {}, "extender", True),
        ({PLACEMENT_LABEL: "extender"}, {PLACEMENT_LABEL: "affinity"}, "affinity", False),
    ],
)
def test_the_placement_mode_comes_from_pod_namespace_or_configuration(
    labels: dict[str, str], namespace_labels: dict[str, str], placement: PlacementMode, *, needs_no_extender: bool
) -> None:
    body = {"metadata": {"name": "p", "namespace": "web", "labels": {APPGROUP_LABEL: "shop", **labels}}}
    namespace = Object(metadata=ObjectMeta(name="web", labels=namespace_labels))
    snapshot = ClusterSnapshot(
        now_s=NOW_S,
        pods=(msgspec.convert(body, Pod),),
        namespaces=(namespace,),
        scheduler=SchedulerConfig(placement=placement),
    )
    (fact,) = build_facts(snapshot).pods
    assert fact.needs_no_extender is needs_no_extender
