"""What the CNI bandwidth plugin sets up, as far as tests need it."""

from __future__ import annotations

import asyncio

from agent.bandwidth.kernel import set_token_bucket
from agent.bandwidth.state import PLUGIN_HANDLE
from agent.bandwidth.tbf import PLUGIN_LATENCY_S, WORD, TbfParams, plugin_buffers
from agent.rtnetlink import rtnetlink


def plugin_shape(rate_bps: int, burst_bytes: int) -> TbfParams:
    """Its token bucket on amd64 for a rate in bits per second and a burst in bytes."""
    rate = rate_bps // 8
    limit = (int(rate * PLUGIN_LATENCY_S) + burst_bytes) % WORD
    return TbfParams(rate_bytes_per_s=rate, buffer_ticks=plugin_buffers(rate, burst_bytes)[0], limit_bytes=limit)


def set_bucket_of_plugin(device: int, shape: TbfParams) -> None:
    """Put a token bucket at a device's root, as the plugin does."""

    async def work() -> None:
        async with rtnetlink("the plugin") as netlink:
            await set_token_bucket(netlink, device, shape, PLUGIN_HANDLE)

    asyncio.run(work())
