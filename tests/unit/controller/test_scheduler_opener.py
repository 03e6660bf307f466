"""The gate opener opens overdue gates, and backs off after failed patches."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from controller.cluster.pods import GATE, Pod
from controller.scheduler.gating.opener import CHECK_INTERVAL_S, GateOpener
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.wire import format_time

NOW, WAIT_S = 1_700_000_000.0, 150.0


def opener(*pods: Pod, max_wait_s: float | None = WAIT_S) -> GateOpener:
    client = Client(ClusterConfig(server="http://127.0.0.1:1"))
    gate_opener = GateOpener(client, max_wait_s=max_wait_s, clock=lambda: NOW)
    gate_opener.pods._items.update({pod.metadata.key: pod for pod in pods})
    return gate_opener


def pod(name: str, age_s: float, *gates: str, **metadata: Any) -> Pod:
    meta = {"name": name, "namespace": "d", "creationTimestamp": format_time(NOW - age_s), **metadata}
    return msgspec.convert({"metadata": meta, "spec": {"schedulingGates": [{"name": g} for g in gates]}}, Pod)


def names(pods: list[Pod]) -> list[str]:
    return [pod.metadata.name for pod in pods]


TERMINATING = pod("terminating", 9999, GATE, deletionTimestamp=format_time(NOW))
HELD = pod("held", 9999, GATE, "example.com/other")


@pytest.mark.parametrize(
    ("max_wait_s", "overdue"), [(WAIT_S, ["later", "late"]), (None, ["held", "later", "late", "young"])]
)
def test_overdue_gates_are_opened_and_before_an_uninstallation_all_gates(
    max_wait_s: float | None, overdue: list[str]
) -> None:
    """Other gates, and pods that terminate, are left alone."""
    pods = (pod("young", WAIT_S - 1, GATE), pod("late", WAIT_S, GATE), pod("later", 2 * WAIT_S, GATE))
    others = (pod("other", 9999, "example.com/other"), pod("free", 9999), TERMINATING, HELD)
    assert names(opener(*pods, *others, max_wait_s=max_wait_s).find_overdue()) == overdue


def test_a_pod_with_another_gate_waits_from_the_opening_of_that_gate() -> None:
    gate_opener = opener(HELD)
    gate_opener.pods._set("d/held", pod("held", 9999, GATE, resourceVersion="2"))
    assert gate_opener.find_overdue() == []


async def test_a_refused_patch_backs_off() -> None:
    now = [NOW]
    async with Client(ClusterConfig(server="http://127.0.0.1:1")) as client:
        gate_opener = GateOpener(client, max_wait_s=None, clock=lambda: now[0])
        gate_opener.pods._items["d/a"] = pod("a", 0, GATE)
        gate_opener.pods.synced.set()
        for wait_s in (CHECK_INTERVAL_S, 2 * CHECK_INTERVAL_S):
            running = asyncio.create_task(gate_opener.run())
            async with asyncio.timeout(30):
                while gate_opener.find_overdue():
                    await asyncio.sleep(0.01)
            running.cancel()
            now[0] += wait_s - 1
            assert gate_opener.find_overdue() == []
            now[0] += 1
            assert names(gate_opener.find_overdue()) == ["a"]
