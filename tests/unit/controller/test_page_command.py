"""`kubectl netaware page`: what it reads of kubectl, and a kubectl that goes or says no."""

from __future__ import annotations

import asyncio
import sys

import pytest

from controller.cli import kubectl
from controller.cli.kubectl import KubectlError, PageToken, port_forward


async def test_what_kubectl_says_last_is_the_reason() -> None:
    script = "import sys; print('warning: old'); print('error: pods \"c\" is forbidden', file=sys.stderr); sys.exit(1)"
    with pytest.raises(KubectlError, match='error: pods "c" is forbidden'):
        async with port_forward([sys.executable, "-u", "-c", script], "home", "deployment/c", "metrics"):
            pytest.fail("nothing was forwarded")


async def test_the_end_of_kubectl_is_seen() -> None:
    script = "print('Forwarding from 127.0.0.1:43121 -> 9851')"
    async with port_forward([sys.executable, "-u", "-c", script], "home", "deployment/c", "metrics") as forward:
        assert forward.url == "http://127.0.0.1:43121"
        async with asyncio.timeout(30):
            await forward.ended


async def test_a_token_is_used_until_it_is_due_and_a_refusal_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys, time; assert sys.argv[4:6] == ['token', 'netaware-page']; print(time.time_ns())"
    token = PageToken([sys.executable, "-c", script], "home")
    first = await token.get()
    assert first.isdecimal()
    assert await token.get() == first
    monkeypatch.setattr(kubectl, "RENEW_AFTER_S", 0.0)
    token = PageToken([sys.executable, "-c", script], "home")
    assert await token.get() < await token.get()
    refused = PageToken([sys.executable, "-c", "import sys; sys.exit('error: forbidden')"], "home")
    assert (await refused.get(), refused.refused) == ("", "error: forbidden")
