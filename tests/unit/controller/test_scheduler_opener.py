"""The gate opener opens overdue gates, and backs off after failed patches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from controller.cluster.pods import GATE, Pod
from controller.scheduler.gating.opener import CHECK_INTERVAL_S, GateOpener
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.wire import format_time
from lab.polling import poll_until
from tests.unit.controller.components import fill_store

NOW_S, MAX_WAIT_S, LONG_S = 1_700_000_000.0, 150.0, 9999.0
OTHER_GATE = "example.com/other"
UNREACHABLE = ClusterConfig(server="http://127.0.0.1:1")


def make_opener(
    *pods: Pod,
    max_wait_s: float | None = MAX_WAIT_S,
    client: Client | None = None,
    clock: Callable[[], float] = lambda: NOW_S,
) -> GateOpener:
    """An opener that has listed these pods."""
    opener = GateOpener(client or Client(UNREACHABLE), max_wait_s=max_wait_s, clock=clock)
    fill_store(opener.pods, pods)
    opener.pods.synced.set()
    return opener


def make_pod(name: str, age_s: float, *gates: str, **metadata: Any) -> Pod:
    metadata = {"name": name, "namespace": "d", "creationTimestamp": format_time(NOW_S - age_s), **metadata}
    spec = {"schedulingGates": [{"name": gate} for gate in gates]}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


def list_overdue_names(opener: GateOpener) -> list[str]:
    return [pod.metadata.name for pod in opener.find_overdue()]


@pytest.mark.parametrize(
    ("max_wait_s", "overdue"), [(MAX_WAIT_S, ["later", "late"]), (None, ["held", "later", "late", "young"])]
)
def test_overdue_gates_are_opened_and_before_an_uninstallation_all_gates(
    max_wait_s: float | None, overdue: list[str]
) -> None:
    """Other gates, and pods that terminate, are left alone."""
    pods = (
        make_pod("young", MAX_WAIT_S - 1, GATE),
        make_pod("late", MAX_WAIT_S, GATE),
        make_pod("later", 2 * MAX_WAIT_S, GATE),
        make_pod("other", LONG_S, OTHER_GATE),
        make_pod("free", LONG_S),
        make_pod("terminating", LONG_S, GATE, deletionTimestamp=format_time(NOW_S)),
        make_pod("held", LONG_S, GATE, OTHER_GATE),
    )
    assert list_overdue_names(make_opener(*pods, max_wait_s=max_wait_s)) == overdue


def test_a_pod_with_another_gate_waits_from_the_opening_of_that_gate() -> None:
    opener = make_opener(make_pod("held", LONG_S, GATE, OTHER_GATE))
    fill_store(opener.pods, [make_pod("held", LONG_S, GATE, resourceVersion="2")])
    assert opener.find_overdue() == []


async def test_a_refused_patch_backs_off() -> None:
    now_s = NOW_S
    async with Client(UNREACHABLE) as client:
        opener = make_opener(make_pod("a", 0, GATE), max_wait_s=None, client=client, clock=lambda: now_s)
        for wait_s in (CHECK_INTERVAL_S, 2 * CHECK_INTERVAL_S):
            running = asyncio.create_task(opener.run())
            await poll_until(lambda: not opener.find_overdue(), every_s=0.01)
            running.cancel()
            now_s += wait_s - 1
            assert opener.find_overdue() == []
            now_s += 1
            assert list_overdue_names(opener) == ["a"]
