"""Changes of the kernel reach the agent's parts, also when there were too many for the socket."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from agent.kernel_events import KernelEvents
from tests.integration.agent.pods_on_node import run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change devices")


@pytest.fixture
def device() -> Iterator[str]:
    name = f"nae{uuid.uuid4().hex[:8]}"
    run(f"ip link add {name} type veth peer name {name}p")
    yield name
    subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


class Heard:
    """Counts what listeners were told."""

    def __init__(self) -> None:
        self.events = KernelEvents()
        self.links = self.shaping = 0
        self.events.on_links(self._link)
        self.events.on_tc_change(self._tbf_params)

    def _link(self) -> None:
        self.links += 1

    def _tbf_params(self) -> None:
        self.shaping += 1


@asynccontextmanager
async def listening() -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(heard.events.run())
    await asyncio.sleep(0.05)
    try:
        yield heard
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_change_of_a_link_and_of_a_limit_is_heard(device: str) -> None:
    async with listening() as heard:
        run(f"ip link set {device} up")
        await asyncio.sleep(0.2)
        assert heard.links > 0
        before = heard.shaping
        run(f"tc qdisc add dev {device} root handle 1: tbf rate 1mbit burst 10kb latency 10ms")
        await asyncio.sleep(0.2)
        assert heard.shaping > before


async def test_an_overrun_of_the_socket_counts_as_a_change_of_everything(device: str) -> None:
    async with listening() as heard:
        # Nothing is read while this blocks the loop, so the socket's buffer overflows.
        run(f"ip link set {device} up")
        batch = "".join(f"link set {device} alias a{number}\n" for number in range(4000))
        subprocess.run(["ip", "-batch", "-"], input=batch.encode(), check=True)
        links, shaping = heard.links, heard.shaping
        await asyncio.sleep(0.5)
        assert heard.events.overruns >= 1
        assert heard.links > links
        assert heard.shaping > shaping
        # And it goes on hearing.
        links = heard.links
        run(f"ip link set {device} down")
        await asyncio.sleep(0.2)
        assert heard.links > links
