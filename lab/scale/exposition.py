"""What some of the simulated agents show Prometheus: the agent's own families of probes, over what they are said to have read.

One server for all of them: ``/metrics?node=NAME``. A real Prometheus scrapes it as it scrapes agents, each target by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from agent.probing.metrics import ProbeMetrics
from agent.probing.rounds import Outcome
from kubekit.wire import Wire
from lab.cluster import Lab
from lab.controlplane import LOOPBACK, free_ports
from lab.prometheus_server import start_prometheus
from netperf.contract import AGENT
from netperf.plans import ZonePlan

SHARE = 0.1
"""Of the agents, so many are scraped."""
SCRAPE_EVERY_S = 30
JOB = AGENT
_TIMEOUT_S = 30.0


class _Value(Wire, frozen=True):
    value: tuple[float, str] = (0.0, "0")


class _Data(Wire, frozen=True):
    result: list[_Value] = []


class _Answer(Wire, frozen=True):
    data: _Data = _Data()


class Exposition:
    """Metrics of some agents.

    Args:
        nodes: whose agents they are, by zone.
    """

    def __init__(self, nodes: Mapping[str, Iterable[str]]) -> None:
        self._by_zone: dict[str, dict[str, ProbeMetrics]] = {}
        self._registries: dict[str, CollectorRegistry] = {}
        for zone, names in nodes.items():
            self._registries |= {name: CollectorRegistry() for name in names}
            self._by_zone[zone] = {name: ProbeMetrics(self._registries[name]) for name in names}

    @property
    def nodes(self) -> list[str]:
        """Those that can be scraped."""
        return list(self._registries)

    def follow(self, zone: str, plan: ZonePlan | None) -> None:
        """The zone's plan has changed."""
        for node, metrics in self._by_zone.get(zone, {}).items():
            metrics.follow(plan, node)

    def take(self, outcome: Outcome) -> None:
        """A turn of a probe has ended."""
        metrics = self._by_zone.get(outcome.origin.zone, {}).get(outcome.origin.node)
        if metrics is not None:
            metrics.take(outcome)

    def text(self, node: str) -> bytes | None:
        """What that node's agent answers Prometheus; None for a node that is not one of these."""
        registry = self._registries.get(node)
        return None if registry is None else generate_latest(registry)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """``HOST:PORT`` where they are served."""
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            (port,) = free_ports(1)
            await web.TCPSite(runner, LOOPBACK, port).start()
            yield f"{LOOPBACK}:{port}"
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        text = self.text(request.query.get("node", ""))
        if text is None:
            raise web.HTTPNotFound
        return web.Response(body=text, content_type="text/plain", charset="utf-8")


async def start_scraping(lab: Lab, program: Path, address: str, nodes: list[str]) -> str:
    """Start Prometheus on these agents; its URL."""
    settings: dict[str, Any] = {
        "scrape_interval": f"{SCRAPE_EVERY_S}s",
        "scrape_timeout": "10s",
        "relabel_configs": [
            {"source_labels": ["__address__"], "target_label": "__param_node"},
            {"source_labels": ["__address__"], "target_label": "instance"},
            {"target_label": "__address__", "replacement": address},
        ],
    }
    return await start_prometheus(lab, program, {JOB: nodes}, settings={JOB: settings})


async def scraped(url: str) -> dict[str, float]:
    """What Prometheus says of it: targets that answered, samples a second, its series, and the slowest tenth of scrapes."""
    queries = {
        "targets": f'count(up{{job="{JOB}"}})',
        "up": f'sum(up{{job="{JOB}"}})',
        "samples_per_s": f'sum(scrape_samples_scraped{{job="{JOB}"}}) / {SCRAPE_EVERY_S}',
        "series": f'count({{job="{JOB}"}})',
        "scrape_p90_s": f'quantile(0.9, scrape_duration_seconds{{job="{JOB}"}})',
    }
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def ask(query: str) -> float:
            async with session.get(f"{url}/api/v1/query", params={"query": query}) as answer:
                found = msgspec.json.decode(await answer.read(), type=_Answer).data.result
                return round(float(found[0].value[1]), 4) if found else 0.0

        return dict(zip(queries, await asyncio.gather(*map(ask, queries.values())), strict=True))
