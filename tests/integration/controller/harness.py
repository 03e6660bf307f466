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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from kubekit.client import MERGE_PATCH, STRATEGIC_PATCH, Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, NODES, ConfigMap, Node, Object
from lab.controlplane import find_free_ports
from lab.credentials import credentials_dir
from netperf.contract import PLAN_SELECTOR
from netperf.latencies import ZonePair
from netperf.measurement import Measurement
from netperf.plans import ZonePlan, decode_plan
from netperf.refusals import PlanRefusedError
from netperf.results import encode_samples
from tests.support.samples import make_sample

ROOT = Path(__file__).parents[3]
FAST_PROBING = {"intervalS": 1, "slotS": 0.2, "durationS": 0.1}
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

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process by a signal; returns its exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(number)
        code = await asyncio.to_thread(self._process.wait, 20)
        self._process = None
        assert code != -signal.SIGSEGV, f"{self.name} crashed: {self.log.read_text()[-2000:]}"
        return code

    async def metrics(self) -> dict[str, float]:
        """Values of samples by ``name{labels}``; empty if the manager does not respond."""
        try:
            text = await asyncio.to_thread(_fetch, f"http://{self.listen}/metrics")
        except OSError:
            return {}
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    async def leads(self) -> bool:
        return (await self.metrics()).get("netaware_leader") == 1.0


StartReplica = Callable[..., Replica]


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=2) as answer:
        return str(answer.read().decode())


async def announce_agent(client: Client, node: str) -> None:
    """Announce an agent on a node, and make the node ready."""
    address = str(ipaddress.IPv4Address(0x0A000000 | zlib.crc32(node.encode()) & 0xFFFFFF))
    note = json.dumps({"address": address, "port": 12865, "version": "0", "prober": "netperf"})
    body = {"metadata": {"annotations": {"netaware.io/agent": note}}}
    await client.patch(NODES, node, body, Node, patch_type=MERGE_PATCH)
    condition = {"type": "Ready", "status": "True", "reason": "Test", "message": "set by a test"}
    addresses = [{"type": "InternalIP", "address": address}]
    status = {"status": {"conditions": [condition], "addresses": addresses}}
    await client.patch(NODES, node, status, Node, patch_type=STRATEGIC_PATCH, subresource="status")


async def read_plans(client: Client, namespace: str) -> list[ZonePlan]:
    """The probe plans that can be decoded."""
    plans = []
    for plan_object in await client.list(CONFIGMAPS, ConfigMap, namespace=namespace, label_selector=PLAN_SELECTOR):
        with contextlib.suppress(PlanRefusedError):
            plans.append(decode_plan(plan_object.data).plan)
    return plans


class SimulatedAgents:
    """Writes samples of all planned probes, with configured latencies."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self.latency_ms: dict[ZonePair, float] = {}
        self.sequence = 0

    def set_latency(self, a: str, b: str, latency_ms: float) -> None:
        self.latency_ms[a, b] = self.latency_ms[b, a] = latency_ms

    async def measure(self) -> int:
        """Write samples of one round; returns their number."""
        self.sequence += 1
        count = 0
        for plan in await read_plans(self._client, self._namespace):
            samples = []
            for probe in plan.probes:
                us = self.latency_ms.get((probe.origin.zone, probe.destination.zone), 10.0) * 1000
                measurement = Measurement(
                    prober="netperf", test="TCP_RR", p50_us=us * 0.9, p90_us=us, p99_us=us * 1.1, transactions=500
                )
                samples.append(make_sample(probe, measurement, self.sequence, time.time()))
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
