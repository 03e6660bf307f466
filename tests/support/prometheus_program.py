"""Runs Prometheus with back-filled series, or with targets that it scrapes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from controller.prometheus import PrometheusClient
from lab.controlplane import find_free_ports
from lab.polling import poll_until
from lab.programs import answers_ok

HISTORY_S, STEP_S = 3900, 60
PROMTOOL_TIMEOUT_S = 800
"""Tests of all alerts take promtool 20 s of a processor, and much longer on a busy machine."""

Series = tuple[str, Mapping[str, str], float]
"""Metric, labels, and increase per second of a series; a series without increase is always 1."""


def format_exposition(all_series: Iterable[Series], *, duration_s: int = HISTORY_S) -> Iterator[str]:
    """OpenMetrics lines of these series, with a sample each minute for the last ``duration_s`` seconds."""
    now_s = int(time.time())
    for name, family in groupby(sorted(all_series, key=itemgetter(0)), itemgetter(0)):
        yield f"# TYPE {name} unknown\n"
        for _, labels, increase_per_s in family:
            selector = ",".join(f"{label}={json.dumps(text, ensure_ascii=False)}" for label, text in labels.items())
            for age_s in range(duration_s, -1, -STEP_S):
                value = increase_per_s * (duration_s - age_s) if increase_per_s else 1.0
                yield f"{name}{{{selector}}} {value!r} {now_s - age_s}\n"
    yield "# EOF\n"


@asynccontextmanager
async def run_prometheus(
    programs: Mapping[str, Path],
    folder: Path,
    lines: Iterable[str] | None = None,
    *,
    jobs: Sequence[Mapping[str, Any]] = (),
) -> AsyncIterator[PrometheusClient]:
    """Run Prometheus, back-filled with these OpenMetrics lines; ``jobs`` are scrape_configs, scraped every second."""
    if lines is not None:
        history_file = folder / "history.om"
        with history_file.open("w") as file:
            file.writelines(lines)
        arguments = ["tsdb", "create-blocks-from", "openmetrics", "--quiet", str(history_file), str(folder / "tsdb")]
        promtool = await asyncio.create_subprocess_exec(programs["promtool"], *arguments)
        assert await promtool.wait() == 0
    global_config = {"scrape_interval": "1s", "scrape_timeout": "900ms"}
    (folder / "prometheus.yaml").write_text(json.dumps({"global": global_config, "scrape_configs": list(jobs)}))
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


def run_promtool(programs: Mapping[str, Path], *arguments: str | Path, stdin: str = "") -> str:
    """The output of promtool, which must succeed."""
    ended = subprocess.run(
        [programs["promtool"], *arguments],
        check=False,
        capture_output=True,
        text=True,
        input=stdin,
        timeout=PROMTOOL_TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr
