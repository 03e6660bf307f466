"""`kubectl netaware page`: what it reads of kubectl, and a kubectl that goes or says no."""

from __future__ import annotations

import asyncio
import sys

import pytest

from controller.cli.port_forward import PortForwardError, port_forward


async def test_what_kubectl_says_last_is_the_reason() -> None:
    script = "import sys; print('warning: old'); print('error: pods \"c\" is forbidden', file=sys.stderr); sys.exit(1)"
    with pytest.raises(PortForwardError, match='error: pods "c" is forbidden'):
        async with port_forward([sys.executable, "-u", "-c", script], "home", "deployment/c", "metrics"):
            pytest.fail("nothing was forwarded")


async def test_the_end_of_kubectl_is_seen() -> None:
    script = "print('Forwarding from 127.0.0.1:43121 -> 9851')"
    async with port_forward([sys.executable, "-u", "-c", script], "home", "deployment/c", "metrics") as forward:
        assert forward.url == "http://127.0.0.1:43121"
        async with asyncio.timeout(30):
            await forward.ended
