"""Runs managers as processes, announces agents, and writes samples as agents would."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
import zlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from kubekit.client import MERGE_PATCH, STRATEGIC_PATCH, Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, NODES, ConfigMap, Node, Object
from lab.controlplane import find_free_ports
from lab.credentials import credentials_dir
from lab.polling import poll_until
from netperf.contract import PLAN_SELECTOR
from netperf.latencies import ZonePair
from netperf.plans import ZonePlan, decode_plan
from netperf.refusals import PlanRefusedError
from netperf.results import encode_samples
from tests.support.samples import make_measurement, make_sample

ROOT = Path(__file__).parents[3]
FAST_PROBING = {"intervalS": 1, "slotS": 0.2, "durationS": 0.1}
DEFAULT_LATENCY_MS = 10.0
FAST_ELECTION = {"leaseDurationS": 4}


class Replica:
    """One ``python -m controller manager``, in a process of its own."""

    def __init__(
        self,
        folder: Path,
        kubeconfig: Path,
        namespace: str,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._environment = {**os.environ, **(environment or {})}
        self.name = f"manager-{uuid.uuid4().hex[:6]}"
        self.listen = f"127.0.0.1:{find_free_ports(1)[0]}"
        self.log = folder / f"{self.name}.log"
        self._config = folder / f"{self.name}.yaml"
        body: dict[str, Any] = {
            "apiVersion": "netaware.io/v1alpha1",
            "kind": "ControllerConfiguration",
            "namespace": namespace,
            # A single replica must not lose its Lease on a busy machine.
            "leaderElection": {"leaseDurationS": 60},
            "topology": {"namespaces": [namespace], "probing": FAST_PROBING},
            "appGroup": {"namespaces": [namespace]},
        }
        for section, values in (config or {}).items():
            body[section] = {**body.get(section, {}), **values} if isinstance(values, Mapping) else values
        self._config.write_text(yaml.safe_dump(body))
        self._command = [
            sys.executable, "-m", "controller", "manager", "--config", str(self._config),
            "--credentials", str(credentials_dir(kubeconfig)), "--listen", self.listen,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self._command],
                cwd=ROOT,
                env=self._environment,
                stdout=output,
                stderr=output,
            )

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process by a signal; returns its exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = await asyncio.to_thread(self._process.wait, 20)
        self._process = None
        assert code != -signal.SIGSEGV, f"{self.name} crashed: {self.log.read_text()[-2000:]}"
        return code

    async def read_metrics(self) -> dict[str, float]:
        """Values of samples by ``name{labels}``; empty if the manager does not respond."""
        try:
            text = await asyncio.to_thread(_fetch, f"http://{self.listen}/metrics")
        except OSError:
            return {}
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    async def is_leader(self) -> bool:
        return (await self.read_metrics()).get("netaware_leader") == 1.0


StartManager = Callable[..., Replica]


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=2) as answer:
        return str(answer.read().decode())


async def announce_agent(client: Client, node_name: str) -> None:
    """Announce an agent on a node, and make the node ready; its address in 10.0.0.0/8 is a hash of its name."""
    address = str(ipaddress.IPv4Address("10.0.0.0") + (zlib.crc32(node_name.encode()) & 0xFFFFFF))
    announcement = json.dumps({"address": address, "port": 12865, "version": "0", "prober": "netperf"})
    body = {"metadata": {"annotations": {"netaware.io/agent": announcement}}}
    await client.patch(NODES, node_name, body, Node, patch_type=MERGE_PATCH)
    condition = {"type": "Ready", "status": "True", "reason": "Test", "message": "set by a test"}
    addresses = [{"type": "InternalIP", "address": address}]
    status = {"status": {"conditions": [condition], "addresses": addresses}}
    await client.patch(NODES, node_name, status, Node, patch_type=STRATEGIC_PATCH, subresource="status")


async def read_plans(client: Client, namespace: str) -> list[ZonePlan]:
    """The probe plans that can be decoded."""
    plans = []
    for plan_object in await client.list(CONFIGMAPS, ConfigMap, namespace=namespace, label_selector=PLAN_SELECTOR):
        with contextlib.suppress(PlanRefusedError):
            plans.append(decode_plan(plan_object.data).plan)
    return plans


class SimulatedAgents:
    """Writes samples of all planned probes, whose p90 are the set latencies."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._latency_ms_by_pair: dict[ZonePair, float] = {}
        self._sequence = 0

    def set_latency(self, zone: str, other_zone: str, latency_ms: float) -> None:
        """Set the latency between two zones, in both directions."""
        self._latency_ms_by_pair[zone, other_zone] = self._latency_ms_by_pair[other_zone, zone] = latency_ms

    async def measure(self) -> int:
        """Write samples of one round; returns their number."""
        self._sequence += 1
        count = 0
        for plan in await read_plans(self._client, self._namespace):
            samples = []
            for probe in plan.probes:
                pair = probe.origin.zone, probe.destination.zone
                measurement = make_measurement(1000 * self._latency_ms_by_pair.get(pair, DEFAULT_LATENCY_MS))
                samples.append(make_sample(probe, measurement, self._sequence, time.time()))
            count += len(samples)
            await self._publish(plan.results_name, {"data": encode_samples(samples)})
        return count

    async def _publish(self, name: str, patch: dict[str, Any]) -> None:
        try:
            await self._client.patch(CONFIGMAPS, name, patch, Object, namespace=self._namespace)
        except ApiError as error:
            if not error.is_not_found:
                raise
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **patch}
            await self._client.create(CONFIGMAPS, body, Object, namespace=self._namespace)


async def wait_until_equal(read: Callable[[], Awaitable[object]], expected: object) -> None:
    """Wait until ``read`` returns the expected value."""

    async def is_equal() -> bool:
        return await read() == expected

    await poll_until(is_equal, f"{expected}")
