"""Whoever waits goes on when it holds, or gets an error that says what was waited for."""

from __future__ import annotations

import pytest

from kubekit.errors import KubekitError
from kubekit.waiting import WaitTimeoutError, poll_until


class OwnError(KubekitError):
    """Somebody's own."""


async def never() -> bool:
    return False


async def test_it_is_asked_until_it_holds_and_once_at_least() -> None:
    answers = iter([0, 0, 7, 8])
    await poll_until(lambda: next(answers), "seven", 60, every_s=0.001)
    await poll_until(lambda: next(answers), "eight", 0)
    assert list(answers) == []


async def test_what_was_waited_for_and_how_long_is_reported() -> None:
    with pytest.raises(WaitTimeoutError, match=r"^timed out after 0\.01 s waiting for a pod$"):
        await poll_until(never, "a pod", 0.01, every_s=0.001)
    with pytest.raises(OwnError, match=r"^timed out after 0\.01 s waiting for a, b$"):
        await poll_until(never, lambda: "a, b", 0.01, every_s=0.001, error=OwnError)


async def test_what_ends_meanwhile_ends_the_wait() -> None:
    def ended() -> None:
        raise OwnError("it ended")

    with pytest.raises(OwnError, match="it ended"):
        await poll_until(never, "anything", 60, on_retry=ended)
