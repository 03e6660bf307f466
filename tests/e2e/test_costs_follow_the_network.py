"""In the lab, with real agents and probes: a latency that changes moves its own cost and no other, and silence shows.

The wide-area network is emulated; everything else is real. Percentile and hysteresis are chosen for machines that do other work
at the same time; the change is far larger than what they hide.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from controller.cluster.resources import NETPERF_COSTS, NETWORK_TOPOLOGIES, NetworkTopology
from controller.topology.weights import written_costs
from kubekit.client import Client
from kubekit.conditions import find
from lab.cluster import Lab
from lab.demo import COMPONENTS
from lab.installation import install
from lab.topology import load
from netperf.contract import HOME_NAMESPACE
from netperf.latencies import ZonePair
from tests.integration.controller.harness import plans

POLICY = {"percentile": "p50", "hysteresis": 0.4, "staleAfterS": 2, "expireAfterS": 30}
# Three slots in a round of six seconds: costs go stale after three rounds without a run, before they expire.
PROBING = {"intervalS": 6, "slotS": 2, "durationS": 0.8}
CHANGED = ("z1", "z3")

pytestmark = [pytest.mark.wan, pytest.mark.timeout(240), pytest.mark.alone]


async def topology(client: Client) -> NetworkTopology:
    return await client.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=HOME_NAMESPACE)


async def costs(client: Client) -> dict[ZonePair, int]:
    return written_costs((await topology(client)).weight(NETPERF_COSTS))


async def is_stale(client: Client) -> bool:
    found = find((await topology(client)).status.conditions, "Stale")
    return found is not None and found.status == "True"


async def until(check: Callable[[], Awaitable[bool]], deadline_s: float) -> float:
    """Wait until ``check`` holds; how long it took."""
    started = time.monotonic()
    async with asyncio.timeout(deadline_s):
        while not await check():
            await asyncio.sleep(0.2)
    return time.monotonic() - started


@pytest.mark.usefixtures("privileges")
async def test_a_latency_that_changes_moves_its_own_cost_and_agents_that_stop_leave_stale_costs_that_expire(
    record_property: Callable[[str, object], None],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Lab.start(load("four-zones"), name="e2e-costs", components=COMPONENTS, folder=Path(folder)) as lab:
            await install(lab, controller_config={"topology": {"costPolicy": POLICY, "probing": PROBING}})
            async with Client(lab.client_config) as client:

                async def complete() -> bool:
                    return len(await costs(client)) == 12

                await until(complete, 60)
                (interval_s,) = {plan.interval_s for plan in await plans(client, HOME_NAMESPACE)}
                await asyncio.sleep(2 * interval_s)
                before = await costs(client)
                lab.wan.change_link(*CHANGED, rtt_us=90_000.0)

                async def moved() -> bool:
                    return (await costs(client))[CHANGED] >= 85

                took_s = await until(moved, 60)
                record_property("rounds_until_the_cost_moved", round(took_s / interval_s, 2))
                after = await costs(client)
                assert {pair for pair in after if after[pair] != before[pair]} == {CHANGED, CHANGED[::-1]}

                for program in [p for p in lab.programs if p.name.startswith("agent-")]:
                    await lab.programs.stop(program)
                await until(lambda: is_stale(client), 60)
                assert await costs(client) == after, "the last good values stay"

                async def gone() -> bool:
                    return not await costs(client)

                await until(gone, 60)
