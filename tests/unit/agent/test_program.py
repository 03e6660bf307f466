"""The agent as one program: its watches, and the clean-up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.bandwidth import manager as bandwidth_manager
from agent.config import AgentConfig, BandwidthMode, TrafficMode
from agent.netlink import KernelError
from agent.program import clean_up, run_agent
from kubekit.errors import UnreachableError
from kubekit.wire import Resource
from lab.polling import poll_until
from tests.support.tasks import running_tasks
from tests.unit.kubekit.simulated_api import SimulatedApi

ALL_PODS = Resource("", "v1", "pods", "Pod", is_namespaced=False)
"""Pods of all namespaces; the agent watches those of its node."""


@pytest.mark.parametrize(
    ("bandwidth", "traffic", "watches"),
    [("observe", "off", 1), ("off", "conntrack", 1), ("observe", "conntrack", 1), ("off", "off", 0)],
)
async def test_the_nodes_pods_are_watched_once_by_all_parts_together(
    tmp_path: Path, bandwidth: BandwidthMode, traffic: TrafficMode, watches: int
) -> None:
    api = SimulatedApi(ALL_PODS)
    async with api.running() as cluster:
        (tmp_path / "server").write_text(cluster.server)
        config = AgentConfig(
            node_name="n1",
            credentials=str(tmp_path),
            listen="127.0.0.1:0",
            is_probing=False,
            bandwidth=bandwidth,
            traffic=traffic,
            proc=tmp_path,  # without processes, so that nothing of this machine is read
        )
        async with running_tasks(run_agent(config)) as (agent,):
            await poll_until(
                lambda: api.watch_count >= watches and api.count_requests("/api/v1/nodes"), "the watches", 10.0
            )
            await asyncio.sleep(0.3)  # so that another would have come by now
            assert not agent.done()
            assert api.watch_count == watches


@pytest.mark.parametrize("does_kernel_refuse", [False, True])
async def test_cleanup_removes_limits_without_an_api_server_and_reports_each_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, does_kernel_refuse: bool
) -> None:
    async def remove_limits(*_: object) -> int:
        if does_kernel_refuse:
            raise KernelError("cannot read traffic control: no response in time")
        return 2

    monkeypatch.setattr(bandwidth_manager, "remove_limits", remove_limits)
    (tmp_path / "server").write_text("http://127.0.0.1:1")
    config = AgentConfig(node_name="n1", credentials=str(tmp_path), bandwidth="enforce")
    with caplog.at_level("INFO"), pytest.raises(ExceptionGroup) as raised:
        await clean_up(config, stay=False)
    types = [type(error) for error in raised.value.exceptions]
    assert types == ([KernelError] if does_kernel_refuse else []) + [UnreachableError]
    assert ("limits removed" in caplog.text) is not does_kernel_refuse
