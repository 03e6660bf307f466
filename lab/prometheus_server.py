"""A real Prometheus beside a lab: scrapes its programs every second and runs rules; for tests, pictures, and a look around."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import yaml

from lab.cluster import Lab
from lab.controlplane import LOOPBACK, free_ports
from lab.errors import BootError
from lab.programs import run_to_end

READY_TIMEOUT_S = 30.0
HISTORY_TIMEOUT_S = 60.0
SCRAPE_S = 1.0


async def start_prometheus(
    lab: Lab, program: Path, targets: Mapping[str, Sequence[str]], rules: Sequence[Path] = ()
) -> str:
    """Start it as one of the lab's programs and wait until it is ready; returns its URL.

    Args:
        lab: ends it when the lab ends.
        program: the binary, see `lab.prometheus_build`.
        targets: job name -> ``HOST:PORT`` of what to scrape.
        rules: rule files.

    Raises:
        BootError: it does not become ready; the text holds the end of its log.
    """
    home = lab.place.state_dir / "prometheus"
    home.mkdir(parents=True, exist_ok=True)
    jobs = [{"job_name": job, "static_configs": [{"targets": list(addresses)}]} for job, addresses in targets.items()]
    every = f"{SCRAPE_S:g}s"
    config = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": jobs,
    }
    (home / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    argv: list[str | Path] = [
        program,
        f"--config.file={home / 'prometheus.yaml'}",
        f"--storage.tsdb.path={home / 'tsdb'}",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--log.level=warn",
    ]
    running = lab.spawn(None, argv, "prometheus", essential=False)
    url = f"http://{LOOPBACK}:{port}"
    deadline = time.monotonic() + READY_TIMEOUT_S
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        while not await _ready(session, url):
            if running.failed or time.monotonic() > deadline:
                msg = f"Prometheus did not become ready; its log ends:\n{running.log_tail()}"
                raise BootError(msg)
            await asyncio.sleep(0.1)
    lab.served["prometheus"] = url
    return url


async def write_history(lab: Lab, promtool: Path, exposition: str) -> None:
    """Give a Prometheus that is not yet started a past.

    Args:
        lab: whose Prometheus it will be.
        promtool: the binary, see `lab.prometheus_build`.
        exposition: series with times in unix seconds, in the OpenMetrics text format.

    Raises:
        BootError: promtool refuses the text; says why.
    """
    home = lab.place.state_dir / "prometheus"
    home.mkdir(parents=True, exist_ok=True)
    past = home / "past.om"
    past.write_text(exposition)
    words: list[str | Path] = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--quiet", past, home / "tsdb"]
    await run_to_end(words, "promtool tsdb create-blocks-from", HISTORY_TIMEOUT_S)


async def _ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/-/ready") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
