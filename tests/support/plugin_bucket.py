"""Token buckets as the CNI bandwidth plugin sets them up."""

from __future__ import annotations

from agent.bandwidth.tbf import PLUGIN_LATENCY_S, UINT32_RANGE, compute_plugin_buffer_ticks
from agent.rtnetlink import TbfParams

CONTAINERD_BURST_BYTES, CRIO_BURST_BYTES = 536_870_911, 4_294_967_294
"""The bursts that container runtimes request by default."""


def compute_plugin_params(rate_bps: int, burst_bytes: int = CONTAINERD_BURST_BYTES) -> TbfParams:
    """The parameters that the plugin sets on amd64 for a rate in bits per second and a burst in bytes."""
    rate_bytes_per_s = rate_bps // 8
    buffer_ticks, _ = compute_plugin_buffer_ticks(rate_bytes_per_s, burst_bytes)
    limit_bytes = (int(rate_bytes_per_s * PLUGIN_LATENCY_S) + burst_bytes) % UINT32_RANGE
    return TbfParams(rate_bytes_per_s=rate_bytes_per_s, buffer_ticks=buffer_ticks, limit_bytes=limit_bytes)
