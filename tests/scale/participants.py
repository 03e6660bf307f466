"""What takes part in a run beside those who measure it: kubelets, agents, viewers, life. What of it fails takes figures along."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from lab.progress import Say


class Participants:
    """Runs them until the stack is closed.

    Attributes:
        failures: of which, and why, oldest first; empty while all do what they should.
    """

    def __init__(self, stack: AsyncExitStack, say: Say) -> None:
        self.failures: list[str] = []
        self._stack, self._say = stack, say

    def start(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Run something of that name; a failure of it is told at once and kept."""
        task = asyncio.create_task(work, name=what)
        task.add_done_callback(self._note)

        async def end() -> None:
            task.remove_done_callback(self._note)  # What being taken away breaks is nothing that failed.
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(end)

    def _note(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        self.failures.append(f"{task.get_name()}: {'; '.join(_reasons(error))}")
        self._say(f"failed: {self.failures[-1]}")


def _reasons(error: BaseException) -> list[str]:
    """Of a group of errors each."""
    if isinstance(error, BaseExceptionGroup):
        return [reason for one in error.exceptions for reason in _reasons(one)]
    return [f"{type(error).__name__}: {error}"]
