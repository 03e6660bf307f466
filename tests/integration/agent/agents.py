"""Runs agents as programs, and creates the pods that they limit."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from kubekit.client import Client
from kubekit.wire import PODS, Pod

ROOT = Path(__file__).parents[3]
AGENT = (sys.executable, "-m", "agent")


@dataclass
class Agent:
    """A running agent; its metrics and health checks are served at ``url``."""

    process: asyncio.subprocess.Process
    url: str
    _log_path: Path

    @property
    def log(self) -> str:
        """The text of its log so far."""
        return self._log_path.read_text()

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of a path; status 0 while it does not listen."""
        try:
            async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
                return response.status, await response.text()
        except aiohttp.ClientError:
            return 0, ""

    async def is_ok(self, path: str) -> bool:
        return (await self.get(path))[0] == 200

    async def read_metrics(self, name: str) -> dict[str, float]:
        """Values of series whose names begin with ``name``."""
        _, exposition = await self.get("/metrics")
        lines = [line.rsplit(" ", 1) for line in exposition.splitlines() if line.startswith(name)]
        return {series: float(value) for series, value in lines}

    async def stop(self) -> int:
        """Send SIGTERM; return the exit code, or raise TimeoutError after 30 s."""
        self.process.terminate()
        async with asyncio.timeout(30):
            return await self.process.wait()


@asynccontextmanager
async def running_agent(
    tmp_path: Path, port: int, *flags: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> AsyncIterator[Agent]:
    """Run an agent that listens on this port of the loopback; it is killed at the end of the block."""
    log_path = tmp_path / f"agent-{port}.log"
    with log_path.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *prefix,
            *AGENT,
            "run",
            f"--listen=127.0.0.1:{port}",
            *flags,
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={**os.environ, **(env or {})},
        )
    agent = Agent(process, f"http://127.0.0.1:{port}", log_path)
    try:
        yield agent
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def call_agent(*arguments: str) -> tuple[int, str, str]:
    """Run a command of the agent; returns its exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *AGENT, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        stdout, stderr = await process.communicate()
    return process.returncode or 0, stdout.decode(), stderr.decode()


async def create_pod(
    client: Client, namespace: str, name: str, node: str, annotations: Mapping[str, str], *, bandwidth: str = ""
) -> Pod:
    """Create a pod that is bound to a node; ``bandwidth`` is its request."""
    amount = {"network.aware.com/bandwidth": bandwidth} if bandwidth else {}
    container = {"name": "c", "image": "x", "resources": {"limits": amount, "requests": amount}}
    spec = {"nodeName": node, "automountServiceAccountToken": False, "containers": [container]}
    metadata = {"name": name, "annotations": dict(annotations)}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return await client.create(PODS, body, Pod, namespace=namespace)


async def report_pod_address(client: Client, pod: Pod, address: str) -> None:
    """Report a pod as running with this address, as its kubelet would."""
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    await client.patch(PODS, pod.metadata.name, status, Pod, namespace=pod.metadata.namespace, subresource="status")
