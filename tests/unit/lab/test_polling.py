"""Polling ends when the condition is true, after the timeout, or by an exception."""

from __future__ import annotations

import pytest

from kubekit.errors import KubekitError
from lab.polling import WaitTimeoutError, poll_until


class CallerError(KubekitError):
    """An error type of the caller."""


async def never() -> bool:
    return False


def fail() -> None:
    raise CallerError("the program ended")


async def test_a_timeout_error_has_the_description_and_the_callers_type() -> None:
    with pytest.raises(WaitTimeoutError, match=r"^timed out after 0\.01 s waiting for a pod$"):
        await poll_until(never, "a pod", 0.01, every_s=0.001)
    with pytest.raises(CallerError, match=r"^timed out after 0\.01 s waiting for a, b$"):
        await poll_until(never, lambda: "a, b", 0.01, every_s=0.001, error=CallerError)


async def test_errors_of_on_retry_propagate() -> None:
    with pytest.raises(CallerError, match="the program ended"):
        await poll_until(never, "anything", 60, on_retry=fail)
