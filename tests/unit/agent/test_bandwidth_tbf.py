"""A burst of the CNI plugin that overflows is recognized, and our token buckets limit from the first second."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.bandwidth.tbf import (
    ETHERNET_BYTES,
    GSO_BYTES,
    MIN_QUEUE_FRAMES,
    QUEUE_S,
    TICKS_PER_US,
    UINT32_RANGE,
    blocks_everything,
    choose_params,
    compute_plugin_buffer_ticks,
    find_overflowed_burst_bytes,
    has_excessive_burst_or_queue,
)
from tests.support.plugin_bucket import CONTAINERD_BURST_BYTES, CRIO_BURST_BYTES, compute_plugin_params

MTU = 1500


@pytest.mark.parametrize(
    ("rate_bps", "burst_bytes", "buffer_ticks"),
    [
        (5_000_000, CONTAINERD_BURST_BYTES, 536_870_877),
        (10_000_000, CONTAINERD_BURST_BYTES, 2_415_919_079),
        (16_000_000, CONTAINERD_BURST_BYTES, 4_194_303_984),
        (50_000_000, CRIO_BURST_BYTES, 2_147_483_642),
        (900_000, CONTAINERD_BURST_BYTES, 3_161_573_000),
    ],
)
def test_the_plugins_burst_overflows_to_the_ticks_seen_in_the_kernel(
    rate_bps: int, burst_bytes: int, buffer_ticks: int
) -> None:
    assert compute_plugin_params(rate_bps, burst_bytes).buffer_ticks == buffer_ticks


def test_a_saturated_buffer_is_recognized_as_an_overflow() -> None:
    overflowed = compute_plugin_params(10_000_000)
    _, saturated_ticks = compute_plugin_buffer_ticks(overflowed.rate_bytes_per_s, CONTAINERD_BURST_BYTES)
    assert saturated_ticks == UINT32_RANGE - 1
    params = msgspec.structs.replace(overflowed, buffer_ticks=saturated_ticks)
    assert find_overflowed_burst_bytes(params) == CONTAINERD_BURST_BYTES


@given(st.integers(10**6, 10**11), st.integers(1600, 2**32 - 1))
def test_every_overflowed_burst_is_found_and_no_other(rate_bps: int, burst_bytes: int) -> None:
    params = compute_plugin_params(rate_bps, burst_bytes)
    overflows = burst_bytes / params.rate_bytes_per_s * 1e6 * TICKS_PER_US >= UINT32_RANGE
    assert (find_overflowed_burst_bytes(params) is not None) == overflows


@given(st.integers(10**3, 10**12), st.sampled_from([576, 1450, 1500, 8950, 65535]))
def test_our_parameters_limit_from_the_first_second_and_bound_the_queue(rate_bps: int, mtu: int) -> None:
    params = choose_params(rate_bps, mtu)
    assert params.rate_bytes_per_s == rate_bps // 8
    assert not blocks_everything(params, mtu)
    assert not has_excessive_burst_or_queue(params, mtu)
    min_queue_s = MIN_QUEUE_FRAMES * (mtu + ETHERNET_BYTES) / params.rate_bytes_per_s
    assert params.queue_s <= max(QUEUE_S, min_queue_s) * 1.001 + 1 / params.rate_bytes_per_s


@pytest.mark.parametrize(
    ("rate_bps", "burst_bytes", "is_excessive"),
    [
        (100_000_000, 3_000_000, False),  # it lasts less than a quarter of a second
        (100_000_000, 3_300_000, True),
        (64_000, GSO_BYTES - 1, False),  # a single segment
    ],
)
def test_a_burst_is_too_large_from_a_quarter_of_a_second(rate_bps: int, burst_bytes: int, is_excessive: bool) -> None:
    params = compute_plugin_params(rate_bps, burst_bytes)
    assert has_excessive_burst_or_queue(params, MTU) is is_excessive
    assert not blocks_everything(params, MTU)
