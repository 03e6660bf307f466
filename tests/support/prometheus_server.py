"""A real Prometheus beside a lab: scrapes its programs every second and runs rules; for tests, pictures, and a look around."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from kubekit.waiting import poll_until
from lab.cluster import Lab
from lab.controlplane import LOOPBACK, free_ports
from lab.errors import BootError
from lab.paths import write_whole
from lab.programs import is_ready

READY_TIMEOUT_S = 30.0
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
        program: the binary, see `tests.support.tools.builds`.
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

    def check() -> None:
        if running.failed:
            raise BootError(f"Prometheus ended; {running.told}")

    what, ready = lambda: f"Prometheus to be ready; {running.told}", partial(is_ready, f"{url}/-/ready")
    await poll_until(ready, what, READY_TIMEOUT_S, meanwhile=check, error=BootError)
    lab.served["prometheus"] = url
    return url


def set_targets(lab: Lab, job: str, addresses: Sequence[str]) -> None:
    """Say what a job scrapes, at any time, as a service discovery would; nothing where pods are gone."""
    write_whole(_targets(lab, job), json.dumps([{"targets": list(addresses)}]).encode())


def _targets(lab: Lab, job: str) -> Path:
    return lab.place.state_dir / "prometheus" / "targets" / f"{job}.json"
