"""Runs Prometheus with back-filled series, or with targets that it scrapes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from controller.prometheus import PrometheusClient
from lab.controlplane import find_free_ports
from lab.polling import poll_until
from lab.programs import answers_ok

PAST_S, STEP_S = 3900, 60

Labels = Mapping[str, str]
Series = tuple[str, Labels, float]
"""Metric, labels, and increase per second of a series; a series without increase is always 1."""


def format_exposition(samples: Iterable[Series], *, duration_s: int = PAST_S) -> Iterator[str]:
    """Lines of the OpenMetrics format for the series of the last seconds."""
    now = int(time.time())
    by_name: dict[str, list[tuple[Labels, float]]] = {}
    for name, labels, growth in samples:
        by_name.setdefault(name, []).append((labels, growth))
    for name, series in by_name.items():
        yield f"# TYPE {name} unknown\n"
        for labels, growth in series:
            text = ",".join(f"{label}={json.dumps(value, ensure_ascii=False)}" for label, value in labels.items())
            for age_s in range(duration_s, -1, -STEP_S):
                value = growth * (duration_s - age_s) if growth else 1.0
                yield f"{name}{{{text}}} {value!r} {now - age_s}\n"
    yield "# EOF\n"


@asynccontextmanager
async def run_prometheus(
    programs: Mapping[str, Path],
    folder: Path,
    lines: Iterable[str] = (),
    *,
    jobs: Sequence[Mapping[str, Any]] = (),
) -> AsyncIterator[PrometheusClient]:
    """Run Prometheus with these OpenMetrics lines as its past; ``jobs`` are scrape_configs with an interval of a second."""
    if lines:
        past = folder / "past.om"
        with past.open("w") as file:
            file.writelines(lines)
        words = ["tsdb", "create-blocks-from", "openmetrics", "--quiet", str(past), str(folder / "tsdb")]
        filling = await asyncio.create_subprocess_exec(programs["promtool"], *words)
        assert await filling.wait() == 0
    every = {"scrape_interval": "1s", "scrape_timeout": "900ms"}
    (folder / "prometheus.yaml").write_text(json.dumps({"global": every, "scrape_configs": list(jobs)}))
    (port,) = find_free_ports(1)
    url = f"http://127.0.0.1:{port}"
    argv = [f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    argv += ["--log.level=error", f"--web.listen-address=127.0.0.1:{port}"]
    program = await asyncio.create_subprocess_exec(programs["prometheus"], *argv)
    try:
        await poll_until(partial(answers_ok, f"{url}/-/ready"), "Prometheus to be ready", 60)
        yield PrometheusClient(url, timeout_s=60)
    finally:
        program.terminate()
        await program.wait()
