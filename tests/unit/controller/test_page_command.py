"""`kubectl netaware page`: whom it asks, what it reads of kubectl, and a kubectl that goes or says no."""

from __future__ import annotations

import asyncio
import sys

import msgspec
import pytest

from controller.cli.controller_pods import ControllerPod
from controller.cli.page import in_order_of_trust
from controller.cli.port_forward import PortForwardError, port_forward


def pod(name: str, *, ready: bool = True, going: bool = False) -> ControllerPod:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    meta = {"name": name, "deletionTimestamp": "2026-01-01T00:00:00Z" if going else None}
    return msgspec.convert({"metadata": meta, "status": {"conditions": [condition]}}, ControllerPod)


def test_the_leader_is_asked_first_and_then_who_is_ready() -> None:
    pods = [pod("c-1", ready=False), pod("c-2", going=True), pod("c-3"), pod("c-4")]

    def names(pods: list[ControllerPod], holder: str) -> list[str]:
        return [found.metadata.name for found in in_order_of_trust(pods, holder)]

    assert names(pods, "c-4-0a1b2c3d") == ["c-4", "c-3", "c-1", "c-2"]
    assert names(pods, "") == ["c-3", "c-4", "c-1", "c-2"]
    assert names([pod("c-10"), pod("c-1")], "c-1-0a1b2c3d") == ["c-1", "c-10"]


async def test_what_kubectl_says_last_is_the_reason() -> None:
    script = "import sys; print('warning: old'); print('error: pods \"c\" is forbidden', file=sys.stderr); sys.exit(1)"
    with pytest.raises(PortForwardError, match='error: pods "c" is forbidden'):
        async with port_forward([sys.executable, "-u", "-c", script], "home", "controller-a", 9851):
            pytest.fail("nothing was forwarded")


async def test_the_end_of_kubectl_is_seen() -> None:
    script = "print('Forwarding from 127.0.0.1:43121 -> 9851')"
    async with port_forward([sys.executable, "-u", "-c", script], "home", "controller-a", 9851) as forward:
        assert forward.url == "http://127.0.0.1:43121"
        async with asyncio.timeout(30):
            await forward.ended
