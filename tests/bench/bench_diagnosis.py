"""Findings as events of 10,000 nodes and 30,000 pods of 300 AppGroups, of which 3,000 find no node and 3,000 carry a wrong label.

It is done in a thread beside the leader's event loop. Both figures are processor time, so that a busy machine does not count.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from controller.cluster.pods import GroupPod
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.diagnosis.events import MAX_AT_ONCE, ReportedFindings, events_of
from controller.diagnosis.snapshot import ClusterSnapshot, ControlPlaneStatus
from kubekit.runtime import settle_memory
from kubekit.wire import Node, format_time
from netperf.contract import ZONE_LABEL
from tests.bench.bench_planning import Watch

Figure = dict[str, Any]
NODES, PODS, GROUPS, ZONES, WORKLOADS, REPEATS = 10_000, 30_000, 300, 40, 10, 3
NOW_S = 1_800_000_000.0
SAID = f"0/{NODES} nodes are available: 9000 Insufficient cpu, 1000 node(s) were unschedulable."


def measure() -> dict[str, Figure]:
    """All figures."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, Figure]:
    snapshot, memory = _snapshot(), ReportedFindings()
    settle_memory()
    watch, spent_s, told = Watch(), [], 0
    watching = asyncio.create_task(watch.run())

    def look() -> int:
        began = time.thread_time()
        news = events_of(snapshot, memory)
        spent_s.append(time.thread_time() - began)
        return len(news)

    for _ in range(REPEATS):
        told += await asyncio.to_thread(look)
    watching.cancel()
    best_s, stall_ms = min(spent_s), watch.longest_s * 1000
    return {
        "diagnosis_look": _figure(best_s, "s", 1.0, f"{told} events of {REPEATS} looks"),
        "diagnosis_stall": _figure(stall_ms, "ms", 50.0, "of the leader's loop"),
        "diagnosis_told": _figure(told, "events", (REPEATS - 1) * MAX_AT_ONCE, "20 a look, from the second on"),
    }


def _figure(value: float, unit: str, budget: float, reference: str) -> Figure:
    return {
        "value": round(value, 2),
        "unit": unit,
        "budget": f"<= {budget:g}",
        "ok": value <= budget,
        "reference": reference,
    }


def _snapshot() -> ClusterSnapshot:
    nodes = [{"metadata": {"name": f"n{i}", "labels": {ZONE_LABEL: f"z{i % ZONES}"}}} for i in range(NODES)]
    return ClusterSnapshot(
        now_s=NOW_S,
        nodes=tuple(msgspec.convert(node, Node) for node in nodes),
        groups=tuple(_group(i) for i in range(GROUPS)),
        pods=tuple(_pod(i) for i in range(PODS)),
        control_plane=ControlPlaneStatus(lease_known=False, topologies_known=False),
    )


def _group(number: int) -> AppGroup:
    items = [{"workload": {"kind": "Deployment", "name": f"w{i}", "selector": f"w{i}"}} for i in range(WORKLOADS)]
    meta = {"name": "shop", "namespace": f"ns{number}"}
    return msgspec.convert({"metadata": meta, "spec": {"numMembers": 100, "workloads": items}}, AppGroup)


def _pod(number: int) -> GroupPod:
    stuck, wrong = number % 10 == 0, number % 10 == 1
    workload = f"w{number // GROUPS % WORKLOADS}"
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SAID}
    body = {
        "metadata": {
            "name": f"p{number}",
            "namespace": f"ns{number % GROUPS}",
            "creationTimestamp": format_time(NOW_S - 1000),
            "labels": {APPGROUP_LABEL: "shop", WORKLOAD_LABEL: "wrong" if wrong else workload},
        },
        "spec": {"nodeName": "" if stuck else f"n{number % NODES}", "schedulerName": "network-aware-scheduler"},
        "status": {"phase": "Pending", "conditions": [unscheduled]} if stuck else {"phase": "Running"},
    }
    return msgspec.convert(body, GroupPod)
