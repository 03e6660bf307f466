"""A harness for each test, with its own nodes, and its usage in a real Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest_asyncio

from kubekit.client import Client
from lab.controlplane import ControlPlane
from lab.programs import Program
from tests.integration.conftest import CreateNode
from tests.integration.descheduler.harness import DeschedulerHarness, serve_usage
from tests.support.prometheus_program import run_prometheus


@pytest_asyncio.fixture
async def harness(
    client: Client,
    namespace: str,
    netaware_namespace: str,
    control_plane: ControlPlane,
    kwok: Program,
    prometheus_programs: Mapping[str, Path],
    create_node: CreateNode,
    tmp_path: Path,
) -> AsyncIterator[DeschedulerHarness]:
    """Replicas that a test leaves running are stopped at its end."""
    async with serve_usage(client, namespace) as usage:
        job = {"job_name": "usage", "static_configs": [{"targets": [f"127.0.0.1:{usage.port}"]}]}
        async with run_prometheus(prometheus_programs, tmp_path, jobs=[job]) as prometheus:
            harness = DeschedulerHarness(
                client, namespace, netaware_namespace, control_plane, tmp_path, usage, prometheus.address, create_node
            )
            yield harness
            for replica in harness.replicas:
                await replica.stop()
