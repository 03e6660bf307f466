"""Waiting for stores of a resource."""

from __future__ import annotations

import asyncio
from typing import Any

from kubekit.reflector import Reflector


async def wait_synced(*reflectors: Reflector[Any], timeout_s: float) -> None:
    """Wait until all have listed once; raises TimeoutError unless all do in time."""
    async with asyncio.timeout(timeout_s):
        for reflector in reflectors:
            await reflector.synced.wait()
