"""Changes of links and of traffic control reach their listeners, also after an overrun of the socket."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from agent.kernel_events import KernelEvents
from agent.netlink import open_socket
from lab.polling import poll_until
from tests.integration.agent.pods_on_node import needs_root, run_command
from tests.support.tasks import running_tasks

pytestmark = needs_root


@pytest.fixture
def device() -> Iterator[str]:
    """A veth device that is down."""
    name = f"nae{uuid.uuid4().hex[:8]}"
    run_command(f"ip link add {name} type veth peer name {name}p")
    yield name
    subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


async def wait_for_calls(*listeners: Mock) -> None:
    """Wait until each of these listeners is called, and then for the end of the burst."""
    for listener in listeners:
        listener.reset_mock()
    await poll_until(lambda: all(listener.called for listener in listeners))
    await asyncio.sleep(0.3)


def test_a_receive_buffer_may_exceed_the_limit_for_unprivileged_sockets() -> None:
    buffer_bytes = 2 * int(Path("/proc/sys/net/core/rmem_max").read_text())
    with open_socket(socket.NETLINK_ROUTE, buffer_bytes=buffer_bytes) as netlink:
        assert netlink.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * buffer_bytes, "the kernel doubles it"


async def test_changes_reach_their_listeners_also_after_an_overrun_of_the_socket(device: str) -> None:
    events, on_link_change, on_tc_change = KernelEvents(), Mock(), Mock()
    events.link_listeners.append(on_link_change)
    events.tc_listeners.append(on_tc_change)
    async with running_tasks(events.run()):
        await asyncio.sleep(0.05)
        run_command(f"ip link set {device} up")
        await wait_for_calls(on_link_change, on_tc_change)
        run_command(f"tc qdisc add dev {device} root handle 1: tbf rate 1mbit burst 10kb latency 10ms")
        await wait_for_calls(on_tc_change)

        # Nothing is read while this blocks the loop, so the socket's buffer overflows.
        batch = "".join(f"link set {device} alias a{number}\n" for number in range(4000))
        subprocess.run(["ip", "-batch", "-"], input=batch.encode(), check=True)
        await wait_for_calls(on_link_change, on_tc_change)
        assert on_link_change.call_count < 4000, "the kernel dropped some"
        run_command(f"ip link set {device} down")
        await wait_for_calls(on_link_change)
