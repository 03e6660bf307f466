"""In the lab, with everything real but the network's distance: what is broken is named first, and nothing is once it is repaired.

Situations that objects alone make are in tests/unit/controller/situations.py; these need programs and paths.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controller.cli.looking import read_facts_of
from controller.cli.session import Session
from controller.diagnosis.findings import Finding
from controller.diagnosis.rules import diagnose
from kubekit.client import Client
from lab.cluster import Lab
from lab.demo import COMPONENTS
from lab.faults import Faults
from lab.installation import install
from lab.programs import agent_program
from lab.topology import load
from netperf.contract import HOME_NAMESPACE

# Three slots in a round of six seconds, so that a dead path is known within half a minute.
PROBING = {"intervalS": 6, "slotS": 2, "durationS": 0.8}
CUT = ("z1", "z3")
DEADLINE_S = 120.0

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(840)]


@asynccontextmanager
async def a_lab() -> AsyncIterator[tuple[Lab, Client]]:
    """Four zones of two nodes with our programs, tended as `python -m lab up` does."""
    with tempfile.TemporaryDirectory() as folder:
        async with Lab.start(load("four-zones"), name="e2e-faults", components=COMPONENTS, folder=Path(folder)) as lab:
            await install(lab, controller_config={"topology": {"probing": PROBING}})
            lab.publish()
            tending = asyncio.ensure_future(lab.tend())
            try:
                async with Client(lab.client_config) as client:
                    yield lab, client
            finally:
                tending.cancel()
                await asyncio.gather(tending, return_exceptions=True)


async def findings(client: Client) -> tuple[Finding, ...]:
    """What `kubectl netaware diagnose` finds, by the command's own way of looking."""
    facts = await read_facts_of(Session(client, None, None, HOME_NAMESPACE))
    return diagnose(facts)


async def until(client: Client, check: Callable[[tuple[Finding, ...]], bool], deadline_s: float = DEADLINE_S) -> None:
    found: tuple[Finding, ...] = ()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline_s):
            while not check(found := await findings(client)):
                await asyncio.sleep(0.5)
            return
    pytest.fail(f"still, after {deadline_s:.0f} s: {[(f.code, f.summary, f.cause) for f in found]}")


def first(code: str, *names: str) -> Callable[[tuple[Finding, ...]], bool]:
    return lambda found: bool(found) and found[0].code == code and set(names) <= set(found[0].affects)


def is_repaired(found: tuple[Finding, ...], *others: str) -> bool:
    """Nothing is found. On a busy machine a node may truly read more than its zone's others."""
    return {f.code for f in found} <= {"topology-NodesContradicted", *others}


@pytest.mark.usefixtures("privileges")
async def test_what_is_broken_is_named_first_and_nothing_is_once_it_is_repaired() -> None:
    async with a_lab() as (lab, client):
        faults = Faults(lab.place)
        await until(client, is_repaired)

        faults.strike(["controller"], freeze=True)
        await until(client, first("no-leader"))
        await asyncio.to_thread(faults.repair)
        await until(client, is_repaired)

        faults.cut(*CUT)
        await until(client, first("zones-unreachable", *CUT))
        await asyncio.to_thread(faults.repair)
        await until(client, is_repaired)

        faults.strike(["controller"], freeze=False)
        await until(client, first("no-leader"))
        await asyncio.to_thread(faults.repair)
        await until(client, is_repaired)

        zone = next(node for node in lab.nodes if node.node.zone == "z2").node.zone
        nodes = [network.node.name for network in lab.nodes if network.node.zone == zone]
        faults.strike(map(agent_program, nodes), freeze=False)
        await until(client, lambda found: bool(found) and _blames(found[0], zone, nodes), 240)
        await asyncio.to_thread(faults.repair)
        # A node that nobody could measure stays left out for a quarter of an hour.
        await until(client, lambda found: is_repaired(found, "topology-NodesUnmeasurable"), 240)


def _blames(finding: Finding, zone: str, nodes: list[str]) -> bool:
    """The zone or its nodes, however far the controller is in leaving them out."""
    text = " ".join((finding.summary, *finding.cause, *finding.affects))
    return zone in finding.affects or any(node in text for node in nodes)
