"""Runs coroutines beside a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from kubekit.runtime import supervise


@asynccontextmanager
async def running_tasks(*coroutines: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run coroutines during the block, then cancel them and wait for their end."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def supervised_tasks(tasks: dict[str, Awaitable[None]]) -> AsyncIterator[None]:
    """Run endless tasks in the background; if one fails, all end, and the error is raised when the block ends."""
    task = asyncio.create_task(supervise(tasks))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure
