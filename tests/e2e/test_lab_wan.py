"""The emulated network as real netperf sees it: configured delays, live changes, rates and loss."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from lab.cluster import Lab
from lab.errors import WanError
from lab.netperf_install import Netperf
from lab.topology import load

PORT = "12865"
LATENCY = "P50_LATENCY,P90_LATENCY"
pytestmark = [pytest.mark.wan, pytest.mark.alone]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(netperf_programs: Netperf) -> AsyncIterator[Lab]:
    """Four zones; a netserver on every node's address."""
    with tempfile.TemporaryDirectory() as folder:
        async with Lab.start(load("four-zones"), name="e2e-wan", folder=Path(folder)) as running:
            for node in running.nodes:
                argv: list[str | Path] = [netperf_programs.netserver, "-D", "-L", node.address, "-p", PORT]
                running.spawn(node.node.name, argv, f"netserver-{node.node.name}", env=netperf_programs.env)
            await asyncio.sleep(0.5)
            running.programs.check()
            yield running


@pytest.fixture(autouse=True)
def needs_privileges(privileges: None) -> None:
    """Asked for before the lab is."""


async def netperf(
    lab: Lab, programs: Netperf, origin: str, destination: str, test: str = "TCP_RR", keys: str = LATENCY
) -> dict[str, float]:
    argv = ["nsenter", f"--net=/run/netns/{lab.node(origin).netns}", str(programs.netperf), "-P", "0", "-l", "1"]
    argv += ["-H", lab.node(destination).address, "-p", PORT, "-t", test, "--", "-k", keys]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    lines = (line.partition("=") for line in done.stdout.split() if "=" in line)
    return {key: float(value) for key, _, value in lines}


async def reads(lab: Lab, programs: Netperf, origin: str, destination: str, set_us: float) -> None:
    """Wait for a run whose median is close to the delay that is set; none is below it.

    Other work on the machine lengthens a run and never shortens it.
    """
    while True:
        median_us = (await netperf(lab, programs, origin, destination))["P50_LATENCY"]
        assert median_us >= set_us
        if median_us <= 1.5 * set_us + 1000:
            return


@pytest.mark.parametrize(
    ("origin", "destination"), [("n1", "n2"), ("n1", "n3"), ("n5", "n7"), ("n2", "n6"), ("n8", "n4")]
)
async def test_netperf_reads_the_configured_delay(
    lab: Lab, netperf_programs: Netperf, origin: str, destination: str
) -> None:
    assert lab.topology is not None
    set_us = lab.topology.link(lab.node(origin).node.zone, lab.node(destination).node.zone).rtt_us
    await reads(lab, netperf_programs, origin, destination, set_us)


async def test_a_delay_changed_live_is_read_at_once_and_back_again(lab: Lab, netperf_programs: Netperf) -> None:
    before = lab.wan.links()["z1", "z2"]
    changed = lab.wan.change_link("z2", "z1", rtt_us=30_000.0)
    assert changed.jitter_us == before.jitter_us
    await reads(lab, netperf_programs, "n1", "n3", 30_000)
    await reads(lab, netperf_programs, "n3", "n1", 30_000)
    lab.wan.set_link("z1", "z2", before)
    await reads(lab, netperf_programs, "n1", "n3", before.rtt_us)


async def test_a_rate_limits_a_stream(lab: Lab, netperf_programs: Netperf) -> None:
    before = lab.wan.links()["z3", "z4"]
    lab.wan.change_link("z3", "z4", rate_bps=20_000_000)
    read = await netperf(lab, netperf_programs, "n5", "n7", "TCP_MAERTS", "THROUGHPUT")
    lab.wan.set_link("z3", "z4", before)
    assert 5 <= read["THROUGHPUT"] <= 21


async def test_loss_shows_as_packets_lost_on_purpose(lab: Lab, netperf_programs: Netperf) -> None:
    before = lab.wan.links()["z1", "z2"]
    lost = lab.wan.counters().lost
    lab.wan.change_link("z1", "z2", loss=0.05)
    await netperf(lab, netperf_programs, "n1", "n3")
    lab.wan.set_link("z1", "z2", before)
    assert lab.wan.counters().lost > lost


async def test_a_link_that_is_not_there_is_refused_with_the_sites_that_are(lab: Lab) -> None:
    with pytest.raises(WanError, match="no link between z1 and z9; the sites are z1, z2, z3, z4"):
        lab.wan.change_link("z1", "z9", rtt_us=1.0)


async def test_a_program_on_a_node_sees_that_nodes_devices_and_speed(lab: Lab) -> None:
    code = "import os; print(sorted(os.listdir('/sys/class/net')), open('/sys/class/net/wan0/speed').read())"
    program = lab.spawn("n4", [sys.executable, "-c", code], "looks-around", essential=False)
    assert await program.wait(10) == 0
    assert program.log_tail() == "['lo', 'mgmt0', 'wan0'] 1000"
