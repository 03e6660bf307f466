"""The leader creates missing objects of a new installation, and keeps existing ones."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from controller.bootstrap import Bootstrap, BootstrapConfig
from controller.cluster.crds import NETWORK_TOPOLOGIES, NetworkTopology
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.reflector import Reflector
from kubekit.wire import SECRETS
from lab.polling import poll_until
from tests.support.tasks import running_tasks
from tests.unit.kubekit.simulated_api import SimulatedApi

MANY_CHECKS_S = 0.1


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.bootstrap.CHECK_INTERVAL_S", MANY_CHECKS_S / 10)


@pytest.mark.parametrize("configmap_name", ["theirs", ["a list", "of a later version"]])
async def test_a_topology_is_created_if_there_is_no_other_not_even_one_that_cannot_be_decoded(
    caplog: pytest.LogCaptureFixture, configmap_name: Any
) -> None:
    api = SimulatedApi(NETWORK_TOPOLOGIES)
    api.put("theirs", spec={"configmapName": configmap_name})
    async with api.running() as server, Client(server) as client:
        topologies = Reflector(client, NETWORK_TOPOLOGIES, NetworkTopology, namespace="ns")
        bootstrap = Bootstrap(client, topologies, BootstrapConfig(network_topology="ours"), namespace="ns")
        async with running_tasks(topologies.run(), bootstrap.run()):
            await poll_until(topologies.synced.is_set)
            await asyncio.sleep(MANY_CHECKS_S)
            assert list(api.objects) == ["theirs"]
            for deleted, statuses in (("theirs", [403, 403, 422]), ("ours", [422, 422])):
                caplog.clear()
                api.fail_writes = list(statuses)
                api.delete(deleted)
                await poll_until(lambda: not api.fail_writes and list(api.objects) == ["ours"])
                failures = [record for record in caplog.records if record.levelname == "WARNING"]
                assert len(failures) == len(set(statuses)), "a lasting failure is logged once"
    assert api.objects["ours"]["spec"] == {"configmapName": "netperf-metrics"}


@pytest.mark.parametrize(("is_configured", "create_count"), [(True, 1), (False, 0)])
async def test_an_existing_secret_is_kept_and_none_is_created_without_the_setting(
    *, is_configured: bool, create_count: int
) -> None:
    client = Mock(spec=["create"], create=AsyncMock(side_effect=ApiError(409, "AlreadyExists", "exists")))
    topologies = Reflector(client, NETWORK_TOPOLOGIES, NetworkTopology)
    bootstrap = Bootstrap(client, topologies, BootstrapConfig(probe_secret=is_configured), namespace="ns")
    async with running_tasks(bootstrap.run()):
        await asyncio.sleep(MANY_CHECKS_S)
    assert [call.args[0] for call in client.create.await_args_list] == [SECRETS] * create_count
