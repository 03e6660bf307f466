"""Serves the extender over HTTP on a small cluster, and asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.extender.handler import Extender
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.state import State
from kubekit.http import Server
from tests.unit.controller.scheduler_objects import make_group_state, make_node, make_topology

ALL_NODES = ["n1", "n2", "n3", "n4"]


def make_example_state(config: SchedulerConfig) -> State:
    """Four nodes in two zones with cost 20 between them; P1 depends on P2 (at most 10), which runs on n1."""
    nodes = [make_node(f"n{i}", "r", f"z{(i + 1) // 2}", cpu=str(i), memory="1Gi") for i in range(1, 5)]
    costs = make_topology({("z1", "z2"): 20, ("z2", "z1"): 20})
    return make_group_state(nodes, costs, {"P1": {"P2": 10}, "P2": {}}, [("P2", "n1")], config)


def make_pod_body(scheduler: str = "network-aware-scheduler", **metadata: Any) -> dict[str, Any]:
    """A pod of P1, as kube-scheduler sends it."""
    labels = {APPGROUP_LABEL: "a1", WORKLOAD_LABEL: "P1"}
    metadata = {"name": "p1", "namespace": "default", "uid": "u1", "labels": labels, **metadata}
    return {"metadata": metadata, "spec": {"schedulerName": scheduler, "containers": [{"name": "c"}]}}


def make_planned_pod_body(node: str, zone: str, **fields: Any) -> dict[str, Any]:
    """A pod of P1 with a target."""
    target = msgspec.json.encode({"zone": zone, "region": "r", "node": node}).decode()
    return {**make_pod_body(annotations={"netaware.io/target": target}), **fields}


class ExtenderService:
    """A running extender."""

    def __init__(self, session: aiohttp.ClientSession, url: str, state: State, registry: CollectorRegistry) -> None:
        self.session, self.url, self.state, self.registry = session, url, state, registry
        self.unready_reason = ""

    async def post(self, verb: str, body: Any) -> tuple[int, Any]:
        """Status and answer."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.session.post(f"{self.url}/{verb}", data=data) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def ask(self, verb: str, pod: dict[str, Any], nodes: list[str] | None = ALL_NODES) -> Any:
        """The answer about these nodes."""
        status, answer = await self.post(verb, {"pod": pod, "nodes": None, "nodenames": nodes})
        assert status == 200, answer
        return answer

    async def list_passed(self, pod: dict[str, Any], nodes: list[str] | None = ALL_NODES) -> list[str]:
        """The nodes that filter passes."""
        passed: list[str] = (await self.ask("filter", pod, nodes))["nodenames"]
        return passed

    async def read_scores(self, pod: dict[str, Any], nodes: list[str] | None = ALL_NODES) -> dict[str, int]:
        return {entry["host"]: entry["score"] for entry in await self.ask("prioritize", pod, nodes)}


@asynccontextmanager
async def serve_extender(
    config: SchedulerConfig | None = None, state: State | None = None
) -> AsyncIterator[ExtenderService]:
    config = config or SchedulerConfig()
    registry = CollectorRegistry()
    server = Server("127.0.0.1:0", registry=registry)
    state = state or make_example_state(config)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session:
        service = ExtenderService(session, "", state, registry)
        Extender(state, config, ExtenderMetrics(registry), lambda: service.unready_reason).add_routes(server.app)
        async with server.running() as address:
            service.url = f"http://{address}"
            yield service
