"""A real Prometheus that knows the past of some series, back-filled with promtool, or scrapes targets."""

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
Made = tuple[str, Labels, float]
"""A series: metric, labels, and by how much it grows a second; one that does not grow is always 1."""


def exposition(made: Iterable[Made], *, since_s: int = PAST_S) -> Iterator[str]:
    """OpenMetrics of the time until now; a family's lines must be together."""
    now = int(time.time())
    by_name: dict[str, list[tuple[Labels, float]]] = {}
    for name, labels, growth in made:
        by_name.setdefault(name, []).append((labels, growth))
    for name, series in by_name.items():
        yield f"# TYPE {name} unknown\n"
        for labels, growth in series:
            text = ",".join(f"{label}={json.dumps(value, ensure_ascii=False)}" for label, value in labels.items())
            for back in range(since_s // STEP_S, -1, -1):
                at_s = now - back * STEP_S
                value = growth * (since_s - back * STEP_S) if growth else 1.0
                yield f"{name}{{{text}}} {value!r} {at_s}\n"
    yield "# EOF\n"


@asynccontextmanager
async def prometheus(
    programs: Mapping[str, Path], folder: Path, made: Iterable[Made], *, since_s: int = PAST_S
) -> AsyncIterator[PrometheusClient]:
    """A Prometheus with these series' past, and nothing to scrape."""
    async with prometheus_of(programs, folder, exposition(made, since_s=since_s)) as client:
        yield client


@asynccontextmanager
async def prometheus_of(
    programs: Mapping[str, Path],
    folder: Path,
    lines: Iterable[str] = (),
    *,
    jobs: Sequence[Mapping[str, Any]] = (),
) -> AsyncIterator[PrometheusClient]:
    """A Prometheus that scrapes every second.

    Args:
        programs: paths of ``prometheus`` and ``promtool``.
        folder: for its files.
        lines: its past, in the OpenMetrics text format.
        jobs: its scrape_configs.
    """
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
        async with PrometheusClient(url, timeout_s=60) as client:
            yield client
    finally:
        program.terminate()
        await program.wait()
