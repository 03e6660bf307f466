"""What some of the simulated agents show Prometheus: the agent's own families of probes, over what they are said to have read.

One server for all of them: ``/metrics?node=NAME``. A real Prometheus scrapes it as it scrapes agents, each target by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from agent.probing.metrics import ProbeMetrics
from agent.probing.rounds import Outcome
from controller.prometheus import PrometheusClient
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
    """What Prometheus says of it: targets that answered, samples a second, its series, and the slowest tenth of scrapes.

    Raises:
        PrometheusError: it gave no answer, or refused a question.
    """
    queries = {
        "targets": f'count(up{{job="{JOB}"}})',
        "up": f'sum(up{{job="{JOB}"}})',
        "samples_per_s": f'sum(scrape_samples_scraped{{job="{JOB}"}}) / {SCRAPE_EVERY_S}',
        "series": f'count({{job="{JOB}"}})',
        "scrape_p90_s": f'quantile(0.9, scrape_duration_seconds{{job="{JOB}"}})',
    }
    async with PrometheusClient(url, timeout_s=_TIMEOUT_S) as prometheus:
        answers = await asyncio.gather(*map(prometheus.query, queries.values()))
    return {name: round(found[0].value, 4) if found else 0.0 for name, found in zip(queries, answers, strict=True)}
