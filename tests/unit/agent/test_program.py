"""The agent's packages together: what one program asks the API server for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from agent.config import AgentConfig, BandwidthMode, TrafficMode
from agent.program import run_agent
from kubekit.wire import Resource
from lab.polling import poll_until
from tests.unit.kubekit.simulated_api import SimulatedApi

ALL_PODS = Resource("", "v1", "pods", "Pod", is_namespaced=False)
"""Pods of every namespace, as the agent asks for those of its node."""


@pytest.mark.parametrize(
    ("bandwidth", "traffic", "watches"),
    [("observe", "off", 1), ("off", "conntrack", 1), ("observe", "conntrack", 1), ("off", "off", 0)],
)
async def test_a_nodes_pods_are_watched_once_whoever_reads_them(
    tmp_path: Path, bandwidth: BandwidthMode, traffic: TrafficMode, watches: int
) -> None:
    api = SimulatedApi(ALL_PODS)
    async with api.running() as cluster:
        (tmp_path / "server").write_text(cluster.server)
        config = AgentConfig(
            node="n1",
            credentials=str(tmp_path),
            listen="127.0.0.1:0",
            probing=False,
            bandwidth=bandwidth,
            traffic=traffic,
            proc=tmp_path,  # without processes, so that nothing of this machine is looked at
        )
        agent = asyncio.create_task(run_agent(config))
        try:
            await poll_until(lambda: api.watching >= watches and api.count("/api/v1/nodes"), "the watches", 10.0)
            await asyncio.sleep(0.3)  # so that another would have come by now
            assert not agent.done()
            assert api.watching == watches
        finally:
            agent.cancel()
            with suppress(asyncio.CancelledError):
                await agent
