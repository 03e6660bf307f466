"""Both probers between two namespaces joined by the lab's emulated wide-area network: delay, loss, and a path too slow.

Delay and loss are emulated by the lab; packets, TCP stacks and netperf are real.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from lab import namespaces
from lab.errors import UnsupportedError
from lab.netperf_install import Netperf
from lab.network import WAN_DEVICE, NodeNetwork, create_network, remove_network
from lab.topology import LabNode, Link
from lab.wan.control import WanControl
from lab.wan.plan import WanNode, WanPlan, link_of
from netperf.plans import ProbeSettings
from netperf.probers.echo import EchoProber
from netperf.probers.echo_server import EchoServer
from netperf.probers.netperf import NetperfProber
from netperf.probers.netserver import Netserver
from netperf.probers.prober import ProbeFailedError, Prober
from netperf.sample import Measurement, Test, TrustLimits, judge
from tests.integration.netperf.peers import SECRET, running

ROOT = Path(__file__).parents[3]
RTT_US = 5000.0
pytestmark = pytest.mark.alone


class Wan(NamedTuple):
    """Two nodes, and the control of the link between them."""

    control: WanControl
    origin: NodeNetwork
    destination: NodeNetwork

    def set(self, rtt_us: float = RTT_US, loss: float = 0.0) -> None:
        self.control.set_link("east", "west", Link(rtt_us, loss=loss))


@pytest.fixture
def wan(tmp_path: Path) -> Iterator[Wan]:
    nodes = [LabNode(f"node-{s}", "r", s, s, "1", "1Gi", "10", 10**9) for s in ("east", "west")]
    try:
        network = create_network(nodes, tmp_path)
    except UnsupportedError as error:
        pytest.skip(str(error))
    members = [WanNode(n.node.name, n.node.site, n.netns, n.address, n.node.nic_bps) for n in network.nodes]
    links = [link_of(a, b, Link(RTT_US)) for a, b in (("east", "west"), ("east", "east"), ("west", "west"))]
    (tmp_path / "wan.json").write_bytes(msgspec.json.encode(WanPlan(WAN_DEVICE, 7, members, links)))
    socket_path = tmp_path / "wan.sock"
    forwarder = subprocess.Popen([sys.executable, "-m", "lab.wan", tmp_path / "wan.json", socket_path], cwd=ROOT)
    try:
        deadline = time.monotonic() + 20
        while not socket_path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        yield Wan(WanControl(socket_path), *network.nodes)
    finally:
        forwarder.terminate()
        forwarder.wait(10)
        remove_network(tmp_path)


async def measure(wan: Wan, programs: Netperf | None, test: Test = "TCP_RR", duration_s: float = 1.0) -> Measurement:
    """One probe from origin to destination, by netperf if given, else by the echo."""
    settings = ProbeSettings(test=test, duration_s=duration_s)
    server: Netserver | EchoServer
    prober: Prober
    if programs is not None:
        server = Netserver(str(programs.netserver), wan.destination.address, settings.port, SECRET)
        prober = NetperfProber(str(programs.netperf), SECRET)
    else:
        server = EchoServer(wan.destination.address, settings.echo_port, SECRET)
        prober = EchoProber(SECRET)
    # Children and sockets belong to the namespace in which they are made, and live on in it.
    with namespaces.entered(wan.destination.netns):
        serving = running(server)
        await serving.__aenter__()
    try:
        with namespaces.entered(wan.origin.netns):
            return await prober.probe(wan.destination.address, settings)
    finally:
        await serving.__aexit__(None, None, None)


async def test_netperf_reads_the_delay_that_was_set(wan: Wan, netperf_programs: Netperf) -> None:
    measurement = await measure(wan, netperf_programs)
    assert measurement.p50_us is not None
    assert RTT_US <= measurement.p50_us <= 1.5 * RTT_US + 1000
    assert measurement.transactions is not None
    assert measurement.transactions >= 100


@pytest.mark.parametrize("test", ["TCP_RR", "UDP_RR"])
async def test_the_echo_reads_the_delay_that_was_set(wan: Wan, test: Test) -> None:
    measurement = await measure(wan, None, test)
    assert measurement.p50_us is not None
    assert 0.99 * RTT_US <= measurement.p50_us <= 1.5 * RTT_US + 1000


async def test_loss_under_netperf_is_doubted(wan: Wan, netperf_programs: Netperf) -> None:
    wan.set(loss=0.05)
    measurement = await measure(wan, netperf_programs, duration_s=4.0)
    assert measurement.retransmits
    assert "loss" in judge(measurement, [], TrustLimits())


async def test_loss_under_the_echo_is_measured_and_doubted(wan: Wan) -> None:
    wan.set(loss=0.05)
    measurement = await measure(wan, None, "UDP_RR", duration_s=2.0)
    assert measurement.loss_ratio is not None
    assert 0.03 <= measurement.loss_ratio <= 0.2  # 5 % in each direction make 9.75 %
    assert "loss" in judge(measurement, [], TrustLimits())


async def test_a_path_too_slow_for_a_percentile_gives_too_few_samples(wan: Wan, netperf_programs: Netperf) -> None:
    wan.set(rtt_us=700_000)
    with pytest.raises(ProbeFailedError) as caught:
        await measure(wan, netperf_programs)
    assert caught.value.name == "too-few-samples"


async def test_a_path_that_swallows_everything_is_a_timeout(wan: Wan, netperf_programs: Netperf) -> None:
    wan.set(loss=1.0)
    for programs in (netperf_programs, None):
        with pytest.raises(ProbeFailedError) as caught:
            await measure(wan, programs)
        assert caught.value.name == "timeout"
