"""Polls until a condition is true."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from kubekit.errors import KubekitError


class WaitTimeoutError(KubekitError):
    """A condition was not true in time; the message has its description and the timeout."""


async def poll_until(
    check: Callable[[], Any],
    description: str | Callable[[], str] = "a condition",
    timeout_s: float = 150.0,
    *,
    every_s: float = 0.02,
    on_retry: Callable[[], object] = lambda: None,
    error: type[KubekitError] = WaitTimeoutError,
) -> Any:
    """Call ``check`` until its result is true, and return the result.

    Args:
        check: called at once, then after each interval; may be asynchronous.
        description: completes the message "timed out after 5 s waiting for"; or a function that returns it on timeout.
        timeout_s: seconds after which ``check`` is called for the last time; the default is long enough for a busy machine.
        every_s: seconds between two calls of ``check``.
        on_retry: called after each result that is not true. Exceptions of ``on_retry`` and ``check`` propagate.
        error: type of the error for a timeout.

    Raises:
        WaitTimeoutError: or ``error``: no result was true in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        result = check()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        on_retry()
        if time.monotonic() > deadline_s:
            text = description if isinstance(description, str) else description()
            raise error(f"timed out after {timeout_s:g} s waiting for {text}")
        await asyncio.sleep(every_s)
