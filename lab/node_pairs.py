"""Measures round trips between pairs of a lab's nodes, with a server on each destination and a probe from each origin."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

import msgspec

from lab import measure, namespaces
from lab.errors import BootError
from lab.installation import Installation
from lab.programs import build_pythonpath_env, run_command
from netperf.measurement import Measurement

_TIMEOUT_S = 120.0
# A netperf test occupies a core at each end.
_MAX_CONCURRENT = 2


async def measure_node_pairs(
    installation: Installation, pairs: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], float]:
    """Return (origin, destination) -> median round trip, µs. Raises BootError if a probe fails."""
    lab, prober_option = installation.lab, ["--prober", installation.prober]
    env = {**installation.environment, measure.PASSPHRASE_VARIABLE: installation.passphrase, **build_pythonpath_env()}
    origins_by_destination: dict[str, list[str]] = {}
    for origin, destination in sorted(pairs):
        origins_by_destination.setdefault(destination, []).append(origin)
    medians_us: dict[tuple[str, str], float] = {}
    semaphore = asyncio.Semaphore(_MAX_CONCURRENT)

    async def probe(origin: str, destination: str) -> float:
        argv = [*namespaces.build_enter_command(lab.network_of(origin).netns), sys.executable, "-m", "lab.measure"]
        argv += ["probe", lab.network_of(destination).address, *prober_option]
        description = f"measuring {origin} to {destination}"
        output = await run_command(argv, description, _TIMEOUT_S, env=env)
        median = msgspec.json.decode(output, type=Measurement).percentile_us("p50")
        if median is None:
            raise BootError(f"{description}: too few samples")
        return median

    async def probe_all_to(destination: str) -> None:
        """Probe a destination from one origin after the other, because all probes use the same data port."""
        async with semaphore:
            argv = [sys.executable, "-m", "lab.measure", "serve", lab.network_of(destination).address, *prober_option]
            name, netns = f"measure-{destination}", lab.network_of(destination).netns
            server = lab.programs.start(name, argv, netns=netns, env=env)
            try:
                for origin in origins_by_destination[destination]:
                    medians_us[origin, destination] = await probe(origin, destination)
            finally:
                await lab.programs.stop(server)

    async with asyncio.TaskGroup() as group:
        for destination in origins_by_destination:
            group.create_task(probe_all_to(destination))
    return medians_us
