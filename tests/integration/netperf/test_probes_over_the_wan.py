"""Both probers measure delay and loss of the lab's emulated WAN between two namespaces."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from lab import namespaces
from lab.netperf_install import Netperf
from lab.network import NodeNetwork
from lab.topology import Link
from lab.wan.control import WanControl
from netperf.histogram import Histogram
from netperf.measurement import Measurement
from netperf.plans import ProbeSettings
from netperf.probers.datagrams import DatagramStream, DatagramTarget, DatagramWindow
from netperf.probers.failure import ProbeFailedError
from netperf.probers.netperf import NetperfProber
from netperf.probers.netserver import Netserver
from netperf.probers.responder import DatagramResponder
from netperf.probers.tcp_ping import tcp_ping
from netperf.quality import choose_cost_source, find_quality_flags
from netperf.sample import NodeLocation, Sample
from tests.integration.netperf.peers import PASSPHRASE, running_server
from tests.support import pings
from tests.support.emulated_wan import emulated_wan

ROOT = Path(__file__).parents[3]
RTT_US = 5000.0
WINDOW_S = 12.0
MAX_WINDOWS = 12
pytestmark = [pytest.mark.wan, pytest.mark.alone]


class Wan(NamedTuple):
    """Two nodes, and the control of the link between them."""

    control: WanControl
    origin: NodeNetwork
    destination: NodeNetwork

    def set(self, rtt_us: float = RTT_US, loss: float = 0.0) -> None:
        self.control.set_link("east", "west", Link(rtt_us, loss=loss))


@pytest.fixture
def wan(tmp_path: Path) -> Iterator[Wan]:
    links = [(a, b, RTT_US) for a, b in (("east", "west"), ("east", "east"), ("west", "west"))]
    with emulated_wan(tmp_path, {"node-east": "east", "node-west": "west"}, links) as (network, control):
        yield Wan(control, *network.node_networks)


async def measure(wan: Wan, programs: Netperf, duration_s: float = 1.0) -> Measurement:
    """Run netperf from origin to destination."""
    settings = ProbeSettings(duration_s=duration_s)
    server = Netserver(str(programs.netserver), wan.destination.address, settings.control_port, PASSPHRASE)
    prober = NetperfProber(str(programs.netperf), PASSPHRASE)
    listening, is_finished = threading.Event(), threading.Event()

    async def serve() -> None:
        async with running_server(server):
            listening.set()
            while not is_finished.is_set():
                await asyncio.sleep(0.02)

    def enter_and_serve() -> None:
        # In a thread of its own: processes are started when connections come, in the namespace of their thread.
        with namespaces.enter(wan.destination.netns):
            asyncio.run(serve())

    serving = asyncio.create_task(asyncio.to_thread(enter_and_serve))
    try:
        await asyncio.to_thread(listening.wait, 10)
        with namespaces.enter(wan.origin.netns):
            return await prober.probe(wan.destination.address, settings)
    finally:
        is_finished.set()
        await serving


async def measure_close_to_delay(wan: Wan, programs: Netperf) -> Measurement:
    """The first run whose median is close to the delay; no run is below the delay, because other work only lengthens it."""
    while True:
        measurement = await measure(wan, programs)
        assert measurement.p50_us is not None
        assert measurement.p50_us >= 0.99 * RTT_US
        if measurement.p50_us <= 1.5 * RTT_US + 1000:
            return measurement


async def test_netperf_measures_the_configured_delay(wan: Wan, netperf_programs: Netperf) -> None:
    measurement = await measure_close_to_delay(wan, netperf_programs)
    assert measurement.transactions is not None
    assert measurement.transactions >= 12  # a connection that took long makes netperf count


async def test_loss_under_netperf_is_flagged(wan: Wan, netperf_programs: Netperf) -> None:
    wan.set(loss=0.05)
    measurement = await measure(wan, netperf_programs, duration_s=4.0)
    assert measurement.retransmits
    assert "loss" in find_quality_flags(measurement)


@asynccontextmanager
async def sending_datagrams(wan: Wan, seconds: float) -> AsyncIterator[Callable[[], DatagramWindow]]:
    """Send ten datagrams per second; yields a function that returns their window."""
    target = DatagramTarget(wan.destination.address, ProbeSettings().datagram_port)
    stream = DatagramStream(wan.origin.address, PASSPHRASE)
    stream.set_targets([target], interval_s=seconds)
    async with AsyncExitStack() as stack:
        with namespaces.enter(wan.destination.netns):
            await stack.enter_async_context(running_server(DatagramResponder(target.address, target.port, PASSPHRASE)))
        with namespaces.enter(wan.origin.netns):
            task = asyncio.create_task(stream.run())
            await asyncio.sleep(0)  # its socket is opened in this namespace
        try:
            yield lambda: stream.current_window(target) or DatagramWindow(0.0)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.02, 0.05, 0.1, 0.3])
async def test_netperf_and_datagrams_measure_the_effect_of_loss_on_a_call(
    wan: Wan, netperf_programs: Netperf, loss: float
) -> None:
    """With 5 % loss in each direction, a tenth of the calls wait, so the p90 is at the edge."""
    wan.set(loss=loss)
    async with sending_datagrams(wan, 2 * WINDOW_S) as window:
        await asyncio.sleep(2 * WINDOW_S)
        datagrams = window().to_measurement(time.monotonic())
    assert datagrams is not None
    datagrams_us = datagrams.percentile_us("p90")
    assert datagrams_us is not None
    try:
        run: Measurement | None = await measure(wan, netperf_programs, duration_s=10.0)
    except ProbeFailedError as error:
        print(error)
        run = None
    cost_us = Sample(
        origin=NodeLocation("e", "east"),
        destination=NodeLocation("w", "west"),
        measurement=run or datagrams,
        datagrams=datagrams,
        cost_source=choose_cost_source(run, datagrams, find_quality_flags(run, datagrams)) if run else "measurement",
    ).percentile_us("p90")
    assert cost_us is not None
    netperf_us = run.percentile_us("p90") if run else None
    print(
        f"loss {loss:.0%}: netperf {netperf_us}, datagrams {datagrams_us:.0f} ({datagrams.loss_ratio:.1%}), used {cost_us:.0f} us"
    )
    if loss >= 0.1:
        assert min(datagrams_us, cost_us) > 150_000
        # With 30 % a run of ten seconds has a dozen transactions, if any: too few to compare the two.
        assert loss > 0.1 or netperf_us is None or netperf_us / 2 < datagrams_us < 2 * netperf_us
    elif loss <= 0.02:
        assert datagrams_us < 100_000


async def test_netperf_measures_a_path_of_400_ms(wan: Wan, netperf_programs: Netperf) -> None:
    wan.set(rtt_us=400_000)
    measurement = await measure(wan, netperf_programs)
    assert measurement.percentile_us("p90") is not None
    assert measurement.p50_us is not None
    assert measurement.min_us is not None
    assert measurement.max_us is not None
    assert 400_000 <= measurement.min_us <= measurement.p50_us <= measurement.max_us


async def test_a_lost_answer_to_the_handshake_does_not_make_a_path_slow(wan: Wan) -> None:
    wan.set(rtt_us=300_000)
    with namespaces.enter(wan.destination.netns):
        listener = socket.create_server((wan.destination.address, ProbeSettings().control_port))
    with listener, namespaces.enter(wan.origin.netns):
        ping = asyncio.create_task(tcp_ping(wan.destination.address, ProbeSettings().control_port))
        await asyncio.sleep(0.05)
        wan.set(rtt_us=300_000, loss=1.0)  # the SYN is under way
        await asyncio.sleep(0.4)
        assert not ping.done(), "the answer is lost"
        wan.set(rtt_us=300_000)
        assert 0.3 <= await ping < 0.5


@pytest.mark.parametrize("rtt_us", [130.0, 2160.0, 85_000.0, 329_000.0])
async def test_datagrams_measure_the_same_as_the_kernels_ping_at_the_same_time(wan: Wan, rtt_us: float) -> None:
    wan.control.set_link("east", "west", Link(rtt_us, jitter_us=0.02 * rtt_us))
    differences: list[str] = []
    for _ in range(MAX_WINDOWS):
        difference = await compare_with_echo(wan)
        if not difference:
            return
        differences.append(difference)
    pytest.fail(f"in none of {MAX_WINDOWS} windows the two agreed: {differences}")


async def compare_with_echo(wan: Wan) -> str:
    """Differences between datagrams and the kernel's echo beyond the bounds over one window; empty if there is none."""
    async with sending_datagrams(wan, WINDOW_S) as window:
        with namespaces.enter(wan.origin.netns):
            argv = [sys.executable, pings.__file__, "0.1", wan.destination.address]
            pinging = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        try:
            await asyncio.sleep(WINDOW_S)
        finally:
            pinging.kill()
            answers, _ = pinging.communicate()
        rtts = window().rtt_histogram
    echoes = Histogram()
    for line in answers.splitlines():
        echoes.record(json.loads(line)[2])
    assert rtts.count >= 20
    for percent, ratio, floor_us in ((50, 0.03, 80.0), (90, 0.05, 150.0)):
        datagrams_us, echo_us = rtts.percentile_us(percent), echoes.percentile_us(percent)
        assert datagrams_us is not None
        assert echo_us is not None
        if abs(datagrams_us - echo_us) > max(ratio * echo_us, floor_us):
            return f"p{percent} {datagrams_us:.0f} us, by the kernel {echo_us:.0f} us"
    return ""


async def test_a_path_that_drops_everything_is_a_timeout(wan: Wan, netperf_programs: Netperf) -> None:
    wan.set(loss=1.0)
    with pytest.raises(ProbeFailedError) as caught:
        await measure(wan, netperf_programs)
    assert caught.value.reason == "timeout"
