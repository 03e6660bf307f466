"""Runs a command of the controller as a program beside a control plane."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from lab.controlplane import ControlPlane, find_free_ports
from lab.credentials import credentials_dir
from lab.polling import poll_until
from lab.programs import Program, answers_ok


@asynccontextmanager
async def controller_program(plane: ControlPlane, verb: str, *flags: str) -> AsyncIterator[tuple[Program, str]]:
    """Run ``python -m controller <verb>`` until it is ready; yields its process and URL."""
    port = find_free_ports(1)[0]
    argv = [sys.executable, "-m", "controller", verb, f"--credentials={credentials_dir(plane.kubeconfig)}", *flags]
    started = plane.programs.start(f"{verb}-{uuid.uuid4().hex[:6]}", [*argv, f"--listen=127.0.0.1:{port}"])
    url = f"http://127.0.0.1:{port}"
    try:
        await poll_until(partial(answers_ok, f"{url}/readyz"), f"{verb} to be ready", 150, every_s=0.1)
        yield started, url
    finally:
        await plane.programs.stop(started)
