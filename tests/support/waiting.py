"""Waits for conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def wait_until(check: Callable[[], object]) -> None:
    """Wait until ``check`` returns true; raises TimeoutError after a minute."""
    async with asyncio.timeout(60.0):
        while not check():
            await asyncio.sleep(0.005)
