"""Writes of one reconciliation: a failure stops no other write."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from controller.scheduler.gating.pod_updater import gather_in_batches


async def test_a_failed_write_stops_no_other_and_keeps_nothing_in_memory() -> None:
    class Large:
        """What a round works with."""

    made = list[int]()

    async def deliver(number: int) -> None:
        if number % 3 == 0:
            raise ValueError(number)
        made.append(number)

    async def round_() -> weakref.ref[Large]:
        large = Large()
        with pytest.raises(ValueError, match="0") as caught:
            await gather_in_batches(deliver(number) for number in range(40))
        del caught
        return weakref.ref(large)

    gc.disable()
    try:
        kept = await round_()
        await asyncio.sleep(0)
        assert kept() is None
    finally:
        gc.enable()
    assert made == [number for number in range(40) if number % 3]
