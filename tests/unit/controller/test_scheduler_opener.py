"""The gate opener: which gates it opens, and its back-off."""

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
    made = GateOpener(client, max_wait_s=max_wait_s, clock=lambda: NOW)
    made.pods._items.update({pod.metadata.key: pod for pod in pods})
    return made


def pod(name: str, age_s: float, *gates: str, **metadata: Any) -> Pod:
    meta = {"name": name, "namespace": "d", "creationTimestamp": format_time(NOW - age_s), **metadata}
    return msgspec.convert({"metadata": meta, "spec": {"schedulingGates": [{"name": g} for g in gates]}}, Pod)


def names(found: list[Pod]) -> list[str]:
    return [one.metadata.name for one in found]


LEAVING = pod("leaving", 9999, GATE, deletionTimestamp=format_time(NOW))
HELD = pod("held", 9999, GATE, "somebodys/else")


@pytest.mark.parametrize(
    ("max_wait_s", "overdue"), [(WAIT_S, ["later", "late"]), (None, ["held", "later", "late", "young"])]
)
def test_overdue_gates_are_opened_or_all_before_an_uninstall(max_wait_s: float | None, overdue: list[str]) -> None:
    """Gates of others, and pods that terminate, are left alone."""
    pods = (pod("young", WAIT_S - 1, GATE), pod("late", WAIT_S, GATE), pod("later", 2 * WAIT_S, GATE))
    others = (pod("other", 9999, "somebodys/else"), pod("free", 9999), LEAVING, HELD)
    assert names(opener(*pods, *others, max_wait_s=max_wait_s).find_overdue()) == overdue


def test_a_pod_with_another_gate_waits_from_the_opening_of_that_gate() -> None:
    made = opener(HELD)
    made.pods._set("d/held", pod("held", 9999, GATE, resourceVersion="2"))
    assert made.find_overdue() == []


async def test_a_refused_patch_backs_off() -> None:
    now = [NOW]
    async with Client(ClusterConfig(server="http://127.0.0.1:1")) as client:
        made = GateOpener(client, max_wait_s=None, clock=lambda: now[0])
        made.pods._items["d/a"] = pod("a", 0, GATE)
        made.pods.synced.set()
        for wait_s in (CHECK_INTERVAL_S, 2 * CHECK_INTERVAL_S):
            running = asyncio.create_task(made.run())
            async with asyncio.timeout(30):
                while made.find_overdue():
                    await asyncio.sleep(0.01)
            running.cancel()
            now[0] += wait_s - 1
            assert made.find_overdue() == []
            now[0] += 1
            assert names(made.find_overdue()) == ["a"]
