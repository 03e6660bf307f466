"""Which parts of the leader write by its permission."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from controller.config import ControllerConfiguration
from controller.manager import Manager
from kubekit.client import Client
from kubekit.config import ClusterConfig


async def test_events_and_costs_ask_for_permission() -> None:
    manager = Manager(
        Client(ClusterConfig(server="http://127.0.0.1:1")), ControllerConfiguration(), CollectorRegistry()
    )
    leadership = manager.elector.leadership
    assert manager._recorder._client._guard is manager._topology._client._guard is leadership
