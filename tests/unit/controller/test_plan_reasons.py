"""The reasons of unplaced pods."""

from __future__ import annotations

import msgspec
import pytest

from controller.cluster.crds import WORKLOAD_LABEL
from kubekit.wire import Condition
from tests.unit.controller.groups import (
    make_chain,
    make_lone_workload,
    make_waiting_pod,
    make_zone_node,
    plan_case,
)


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
    plan = plan_case(make_lone_workload(2), [make_zone_node("a", "z0", cpu)], pods=pods)
    assert plan.unplaced[-1] == "default/w0-1"
    assert plan.unplaced_reasons["default/w0-1"] == f"0/1 nodes are available: 1 {reason}"


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
    node = make_zone_node("a1", "z0", taints=[{"key": taint, "effect": "PreferNoSchedule"}])
    status = msgspec.structs.replace(node.status, conditions=[Condition(type="Ready", status=ready)])
    pod = make_waiting_pod("w0-0", "w0", tolerations=[{"operator": "Exists"}])
    plan = plan_case(make_chain((1,)), [msgspec.structs.replace(node, status=status)], pods=[pod])
    assert plan.unplaced_reasons == {"default/w0-0": f"0/1 nodes are available: 1 {reason}"}
