"""Changes of links and of traffic control reach their listeners, also after an overrun of the socket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kernel_events import KernelEvents
from agent.netlink import open_socket
from tests.integration.agent.pods_on_node import run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change devices")


@pytest.fixture
def device() -> Iterator[str]:
    name = f"nae{uuid.uuid4().hex[:8]}"
    run(f"ip link add {name} type veth peer name {name}p")
    yield name
    subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


def test_a_receive_buffer_may_exceed_the_limit_for_unprivileged_sockets() -> None:
    size = 2 * int(Path("/proc/sys/net/core/rmem_max").read_text())
    with open_socket(socket.NETLINK_ROUTE, buffer_bytes=size) as netlink:
        assert netlink.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * size, "the kernel doubles it"


async def test_changes_reach_their_listeners_also_after_an_overrun_of_the_socket(device: str) -> None:
    events, calls = KernelEvents(), {"links": 0, "tc": 0}
    for kind, subscribe in (("links", events.link_listeners.append), ("tc", events.tc_listeners.append)):
        subscribe(lambda kind=kind: calls.update({kind: calls[kind] + 1}))  # type: ignore[misc]
    listening = asyncio.create_task(events.run())
    await asyncio.sleep(0.05)

    async def calls_after(*kinds: str) -> None:
        before = dict(calls)
        await asyncio.sleep(0.3)
        assert all(calls[kind] > before[kind] for kind in kinds), (before, calls)

    run(f"ip link set {device} up")
    await calls_after("links", "tc")
    run(f"tc qdisc add dev {device} root handle 1: tbf rate 1mbit burst 10kb latency 10ms")
    await calls_after("tc")
    # Nothing is read while this blocks the loop, so the socket's buffer overflows.
    batch = "".join(f"link set {device} alias a{number}\n" for number in range(4000))
    subprocess.run(["ip", "-batch", "-"], input=batch.encode(), check=True)
    calls.update(links=0)
    await calls_after("links", "tc")
    assert calls["links"] < 4000, "the kernel dropped some"
    run(f"ip link set {device} down")
    await calls_after("links")
    listening.cancel()
