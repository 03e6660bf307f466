"""A real Prometheus beside a lab: scrapes its programs every second and runs rules; for tests, pictures, and a look around."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    lab: Lab,
    program: Path,
    targets: Mapping[str, Sequence[str]],
    rules: Sequence[Path] = (),
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    port: int = 0,
) -> str:
    """Start it as one of the lab's programs and wait until it is ready; returns its URL.

    Args:
        lab: ends it when the lab ends.
        program: the binary, see `lab.prometheus_build`.
        targets: job name -> ``HOST:PORT`` of what to scrape.
        rules: rule files.
        settings: further fields of a job's scrape_config, by job name, such as how to log in.
        port: on the loopback address, for whoever must name it before; 0 for a free one.

    Raises:
        BootError: it does not become ready; the text holds the end of its log.
    """
    home = lab.place.state_dir / "prometheus"
    home.mkdir(parents=True, exist_ok=True)
    for job, addresses in targets.items():
        set_targets(lab, job, addresses)
    jobs = [
        {
            "job_name": job,
            "file_sd_configs": [{"files": [str(_targets(lab, job))], "refresh_interval": "1s"}],
            **(settings or {}).get(job, {}),
        }
        for job in targets
    ]
    every = f"{SCRAPE_S:g}s"
    config = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": jobs,
    }
    (home / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = port or free_ports(1)[0]
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


def set_targets(lab: Lab, job: str, addresses: Sequence[str]) -> None:
    """Say what a job scrapes, at any time, as a service discovery would; nothing where pods are gone."""
    path = _targets(lab, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps([{"targets": list(addresses)}]))
    fresh.rename(path)


def _targets(lab: Lab, job: str) -> Path:
    return lab.place.state_dir / "prometheus" / "targets" / f"{job}.json"


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
