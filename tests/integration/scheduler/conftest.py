"""Fixtures of scheduler tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kubekit.client import Client
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from lab.programs import Program
from tests.integration.conftest import CreateNode, StartScheduler
from tests.integration.scheduler.harness import SchedulerHarness

GATE_POLICY = Path(__file__).parents[3] / "manifests" / "policies" / "appgroup-gate.yaml"


@pytest.fixture
def harness(
    client: Client,
    namespace: str,
    crds: list[str],
    kwok: Program,
    create_node: CreateNode,
    start_scheduler: StartScheduler,
) -> SchedulerHarness:
    return SchedulerHarness(client, namespace, create_node, start_scheduler)


@pytest_asyncio.fixture
async def gate_policy(harness: SchedulerHarness, control_plane: ControlPlane) -> AsyncIterator[None]:
    """The shipped admission policy, in force during the test."""
    await control_plane.run_kubectl("apply", "--server-side", "-f", GATE_POLICY)

    async def is_in_force() -> bool:
        pod = await harness.create_pod("policy-probe", group="none", workload="none")
        await harness.delete_pod(pod.metadata.name)
        return pod.is_gated

    await poll_until(is_in_force)
    yield
    await control_plane.run_kubectl("delete", "-f", GATE_POLICY)
