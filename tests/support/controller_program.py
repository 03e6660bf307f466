"""Runs commands of the controller as programs beside a control plane."""

from __future__ import annotations

import base64
import datetime
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from controller.webhook.certificate import issue_certificate
from lab.controlplane import ControlPlane, find_free_ports
from lab.credentials import credentials_dir
from lab.polling import poll_until
from lab.programs import Program, Programs, answers_ok


@asynccontextmanager
async def run_controller(plane: ControlPlane, verb: str, *flags: str) -> AsyncIterator[tuple[Program, str]]:
    """Run ``python -m controller <verb>`` until it is ready; yields its process and URL."""
    (port,) = find_free_ports(1)
    argv = [sys.executable, "-m", "controller", verb, f"--credentials={credentials_dir(plane.kubeconfig)}", *flags]
    program = plane.programs.start(f"{verb}-{uuid.uuid4().hex[:6]}", [*argv, f"--listen=127.0.0.1:{port}"])
    url = f"http://127.0.0.1:{port}"
    try:
        await poll_until(partial(answers_ok, f"{url}/readyz"), f"{verb} to be ready", 150, every_s=0.1)
        yield program, url
    finally:
        await plane.programs.stop(program)


def generate_webhook_manifests() -> list[dict[str, Any]]:
    """The Secret and the webhook configuration that ``controller webhook-certificate`` prints."""
    command = [sys.executable, "-m", "controller", "webhook-certificate"]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return list(yaml.safe_load_all(result.stdout))


def start_webhook(programs: Programs, folder: Path) -> tuple[Program, dict[str, Any]]:
    """Start the webhook; returns the program and a webhook configuration for an API server on this machine.

    The API server calls it by URL, because there is no Service. The certificate in the Secret is for a Service; another is issued.
    """
    _, configuration = generate_webhook_manifests()
    (port,) = find_free_ports(1)
    certificate, key = issue_certificate("localhost", days=2, now=datetime.datetime.now(datetime.UTC))
    (folder / "tls.crt").write_bytes(certificate)
    (folder / "tls.key").write_bytes(key)
    bundle = base64.b64encode(certificate).decode()
    for hook in configuration["webhooks"]:
        hook["clientConfig"] = {"url": f"https://localhost:{port}/gate", "caBundle": bundle}
        # After a timeout a pod is created without a gate; a busy machine needs a longer timeout.
        hook["timeoutSeconds"] = 30
    argv = [sys.executable, "-m", "controller", "webhook", f"--certificate-dir={folder}", f"--listen=127.0.0.1:{port}"]
    return programs.start("webhook", argv), configuration
