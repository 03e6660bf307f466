"""Starts managers, stops them after the test, and prints their logs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from lab.controlplane import ControlPlane
from tests.integration.controller.harness import Replica, StartReplica


@pytest_asyncio.fixture
async def start(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[StartReplica]:
    """Function that starts a manager; keywords are sections of its configuration."""
    started: list[Replica] = []

    def run(kubeconfig: Path = control_plane.kubeconfig, **config: object) -> Replica:
        replica = Replica(tmp_path, kubeconfig, namespace, config)
        replica.start()
        started.append(replica)
        return replica

    yield run
    for replica in started:
        await replica.stop()
    for replica in started:
        print(replica.log.read_text()[-4000:])
        assert "Traceback" not in replica.log.read_text()
