"""The nodes that the extender keeps when kube-scheduler wants to preempt pods."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.scheduler.config import SchedulerConfig
from controller.scheduler.extender.handler import Extender
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.state import State
from tests.unit.controller.extender_service import make_example_state, make_planned_pod_body, make_pod_body
from tests.unit.controller.scheduler_objects import GROUP, WORKLOAD, make_pod


def make_victims(**uids_by_node: list[str]) -> dict[str, Any]:
    """Nodes with the UIDs of their victims, as kube-scheduler writes them."""
    return {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 1} for node, uids in uids_by_node.items()
    }


def preempt(candidates: dict[str, Any], pod: dict[str, Any], state: State | None = None) -> dict[str, Any]:
    """The candidates that remain, with their victims."""
    config = SchedulerConfig()
    extender = Extender(state or make_example_state(config), config, ExtenderMetrics(CollectorRegistry()), lambda: "")
    body = msgspec.json.encode({"Pod": pod, "NodeNameToMetaVictims": candidates})
    return dict(msgspec.json.decode(extender.answer_preempt(body))["NodeNameToMetaVictims"])


def test_preempt_keeps_the_nodes_that_filter_passes_without_the_victims() -> None:
    """The cost from z2 to P2 in z1 is above the limit, so filter would refuse nodes of z2 after the evictions."""
    candidates = make_victims(n1=[], n2=["other"], n3=["other"], n4=[])
    assert preempt(candidates, make_pod_body()) == {name: candidates[name] for name in ("n1", "n2")}


@pytest.mark.parametrize(
    ("target", "violations", "nodes"), [("n2", 0, {"n2"}), ("n2", 1, {"n1", "n2"}), ("n3", 0, {"n1", "n2"})]
)
def test_preempt_keeps_only_the_planned_node_unless_another_violates_fewer_budgets(
    target: str, violations: int, nodes: set[str]
) -> None:
    candidates = make_victims(n1=["x"], n2=["y"], n3=["z"])
    candidates["n2"]["NumPDBViolations"] += violations
    assert set(preempt(candidates, make_planned_pod_body(target, ""))) == nodes


def test_victims_that_the_pod_depends_on_do_not_count() -> None:
    """Two pods of P2 in z2 and one in z1: P1 may run in z2, unless they would be evicted for it.

    Each has replaced a pod of the same name and node while the watch was interrupted, as a StatefulSet's pods do.
    """
    state = make_example_state(SchedulerConfig())
    for uid in ("a", "b"):
        old, new = (make_pod("P2", "n3", name=uid, metadata={"uid": value}) for value in (f"old-{uid}", uid))
        state.on_pod_change(f"default/{uid}", None, old)
        state.on_pod_change(f"default/{uid}", old, new)
    assert set(preempt(make_victims(n1=[], n3=[], n4=[]), make_pod_body(), state)) == {"n3", "n4"}
    assert set(preempt(make_victims(n3=["a"], n4=["a", "b"]), make_pod_body(), state)) == {"n3"}


@pytest.mark.parametrize(
    "pod",
    [
        make_pod_body("default-scheduler"),
        make_pod_body(labels={}),
        make_pod_body(labels={GROUP: "none", WORKLOAD: "P1"}),
    ],
)
def test_preempt_keeps_all_nodes_of_foreign_pods(pod: dict[str, Any]) -> None:
    candidates = make_victims(n3=["x"])
    remaining = preempt({**candidates, "n4": None}, pod)
    assert remaining.keys() == {"n3", "n4"}
    assert remaining["n3"] == candidates["n3"]
