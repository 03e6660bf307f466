"""Waiting for stores and other conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kubekit.reflector import Reflector


async def wait_synced(*reflectors: Reflector[Any], timeout_s: float) -> None:
    """Wait until all have listed once; raises TimeoutError unless all do in time."""
    async with asyncio.timeout(timeout_s):
        for reflector in reflectors:
            await reflector.synced.wait()


async def until(check: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until ``check`` returns true; raises TimeoutError unless it does in time."""
    async with asyncio.timeout(timeout_s):
        while not check():
            await asyncio.sleep(0.005)
