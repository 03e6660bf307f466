"""Who of the leader's parts writes by its permission, and for whose writes a Lease waits."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from controller.config import ControllerConfiguration
from controller.manager import Manager
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.errors import NotLeaderError


async def test_events_ask_for_permission_and_no_lease_waits_for_them() -> None:
    manager = Manager(
        Client(ClusterConfig(server="http://127.0.0.1:1")), ControllerConfiguration(), CollectorRegistry()
    )
    leadership = manager.elector.leadership
    events, costs = manager._recorder._client._guard, manager._topology._client._guard
    assert events is not None
    assert costs is leadership
    with pytest.raises(NotLeaderError):
        events.check()
    leadership.extend(float("inf"))
    assert events.check() == float("inf")
    with events.writing():
        assert await leadership.wait_for_writes(0.0, 10.0)
    with costs.writing():
        assert not await leadership.wait_for_writes(0.0, 10.0)
