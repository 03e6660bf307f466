"""Waiting until something holds, and not for ever: asked again and again, where nobody tells when it comes to hold."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

from kubekit.errors import KubekitError


class WaitedInVainError(KubekitError):
    """Something did not come to hold in time; the text says what, and how long it was waited for."""


async def comes(event: asyncio.Event, within_s: float) -> bool:
    """Wait for an event, but no longer than that; whether it came."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def until(
    check: Callable[[], object],
    what: str | Callable[[], str],
    deadline_s: float,
    *,
    every_s: float = 0.1,
    meanwhile: Callable[[], object] = lambda: None,
    error: type[KubekitError] = WaitedInVainError,
) -> None:
    """Ask until the answer is true.

    Args:
        check: asked at once, then after each pause; may be awaitable.
        what: is waited for, after "waited 5 s in vain for"; called, where only the end shows what is missing.
        deadline_s: for how long, seconds.
        every_s: the pause, seconds.
        meanwhile: called after each answer that is not true; what it or ``check`` raises ends the wait.
        error: raised when it was in vain.

    Raises:
        WaitedInVainError: or ``error``.
    """
    ends = time.monotonic() + deadline_s
    while not (await found if inspect.isawaitable(found := check()) else found):
        meanwhile()
        if time.monotonic() > ends:
            raise error(f"waited {deadline_s:g} s in vain for {what if isinstance(what, str) else what()}")
        await asyncio.sleep(every_s)
