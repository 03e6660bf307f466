"""A failed write of a reconciliation stops no other write, and its error keeps no object of the reconciliation in memory."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from controller.scheduler.gating.pod_updater import gather_in_batches


async def test_a_failed_write_stops_no_other_write_and_keeps_no_object_in_memory() -> None:
    class Large:
        """Stands for the objects that a reconciliation holds in local variables."""

    written = list[int]()

    async def write(number: int) -> None:
        if number % 3 == 0:
            raise ValueError(number)
        written.append(number)

    async def reconcile() -> weakref.ref[Large]:
        large = Large()  # Lives until this frame is freed.
        with pytest.raises(ValueError, match="0") as caught:
            await gather_in_batches(write(number) for number in range(40))
        del caught
        return weakref.ref(large)

    # The collector would hide a leak: it frees the frame from a cycle of error and traceback.
    gc.disable()
    try:
        reference = await reconcile()
        await asyncio.sleep(0)  # Callbacks of the ended tasks drop their references.
        assert reference() is None
    finally:
        gc.enable()
    assert written == [number for number in range(40) if number % 3]
