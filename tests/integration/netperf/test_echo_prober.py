"""The built-in echo over real sockets: what it reads, and a name for each way to fail."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from netperf.plans import ProbeSettings
from netperf.probers.echo import EchoProber
from netperf.probers.echo_server import MOST_CONNECTIONS, EchoServer
from netperf.probers.echo_wire import DATAGRAM_BYTES, GREETING_BYTES, HELLO_BYTES, MAGIC
from netperf.probers.prober import ProbeFailedError
from netperf.sample import Test, judge
from tests.integration.netperf.peers import (
    ADDRESS,
    RELAY_ADDRESS,
    SECRET,
    lossy_relay,
    misbehaving,
    running,
    tcp_relay,
)


def server_for(settings: ProbeSettings, address: str = ADDRESS) -> EchoServer:
    return EchoServer(address, settings.echo_port, SECRET)


def udp(settings: ProbeSettings) -> ProbeSettings:
    return msgspec.structs.replace(settings, test="UDP_RR")


async def failure(settings: ProbeSettings, address: str = ADDRESS, secret: bytes = SECRET) -> str:
    with pytest.raises(ProbeFailedError) as caught:
        await EchoProber(secret).probe(address, settings)
    return caught.value.name


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("test", ["TCP_RR", "UDP_RR"])
async def test_a_healthy_run_names_itself_and_gives_percentiles(
    settings: ProbeSettings, test: Test, address: str
) -> None:
    async with running(server_for(settings, address)):
        measurement = await EchoProber(SECRET).probe(address, msgspec.structs.replace(settings, test=test))
    assert (measurement.prober, measurement.test) == ("echo", test)
    assert measurement.p50_us is not None
    assert measurement.p90_us is not None
    assert measurement.p99_us is not None
    assert 0 < measurement.p50_us <= measurement.p90_us <= measurement.p99_us
    assert measurement.jitter_us is not None
    assert measurement.loss_ratio == (0.0 if test == "UDP_RR" else None)


async def test_a_slow_path_shows_in_the_latency(settings: ProbeSettings) -> None:
    async with running(server_for(settings)), tcp_relay(settings.echo_port, delay_s=0.02):
        measurement = await EchoProber(SECRET).probe(RELAY_ADDRESS, settings)
    assert measurement.min_us is not None
    assert measurement.min_us >= 40_000


async def test_five_percent_loss_is_measured_and_doubted(settings: ProbeSettings) -> None:
    async with running(server_for(settings)), lossy_relay(settings.echo_port, drops=lambda n: n % 20 == 0):
        measurement = await EchoProber(SECRET).probe(RELAY_ADDRESS, udp(settings))
    assert measurement.loss_ratio == pytest.approx(0.05, abs=0.005)
    assert "loss" in judge(measurement)


async def test_a_path_that_loses_every_datagram_is_a_timeout(settings: ProbeSettings) -> None:
    async with running(server_for(settings)), lossy_relay(settings.echo_port, drops=lambda _: True):
        assert await failure(udp(settings), RELAY_ADDRESS) == "timeout"


async def test_nobody_listening_is_refused(settings: ProbeSettings) -> None:
    assert await failure(settings) == "refused"


@pytest.mark.parametrize("test", ["TCP_RR", "UDP_RR"])
async def test_another_secret_is_unauthenticated(settings: ProbeSettings, test: Test) -> None:
    server = server_for(settings)
    async with running(server):
        wrong = msgspec.structs.replace(settings, test=test)
        assert await failure(wrong, secret=b"some other secret") == "unauthenticated"
    assert server.rejected == 1


async def test_a_peer_that_hangs_is_a_timeout(settings: ProbeSettings) -> None:
    async with misbehaving(settings.echo_port, "hangs"):
        assert await failure(settings) == "timeout"


async def test_a_server_that_goes_away_during_the_run_is_a_reset(settings: ProbeSettings) -> None:
    async with running(server_for(settings)):
        run = asyncio.create_task(failure(msgspec.structs.replace(settings, duration_s=5.0)))
        await asyncio.sleep(0.5)
    assert await run == "reset"


async def test_something_else_on_the_port_is_a_failure_and_no_number(settings: ProbeSettings) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com ESMTP ready, how are you today?\r\n")

    server = await asyncio.start_server(serve, ADDRESS, settings.echo_port)
    async with server:
        assert await failure(settings) == "failed"


async def test_a_stream_is_netperfs_business(settings: ProbeSettings) -> None:
    assert await failure(msgspec.structs.replace(settings, test="TCP_STREAM")) == "failed"


async def test_the_server_echoes_nothing_to_strangers_and_survives_noise(settings: ProbeSettings) -> None:
    server = server_for(settings)
    async with running(server):
        reader, writer = await asyncio.open_connection(ADDRESS, settings.echo_port)
        assert (await reader.readexactly(GREETING_BYTES)).startswith(MAGIC)
        writer.write(b"\0" * (HELLO_BYTES + 160))
        assert await reader.read() == b""
        writer.close()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(ADDRESS, settings.echo_port)
        )
        for size in (1, DATAGRAM_BYTES, 1400):
            transport.sendto(b"\1" * size)
        while server.rejected < 4:
            await asyncio.sleep(0.01)
        transport.close()
        assert (await EchoProber(SECRET).probe(ADDRESS, settings)).p50_us is not None


async def test_more_connections_than_allowed_are_turned_away(settings: ProbeSettings) -> None:
    async with running(server_for(settings)):
        opened = [await asyncio.open_connection(ADDRESS, settings.echo_port) for _ in range(MOST_CONNECTIONS)]
        for reader, _ in opened:
            await reader.readexactly(GREETING_BYTES)
        assert await failure(settings) == "reset"
        for _, writer in opened:
            writer.close()
            await writer.wait_closed()
        assert (await EchoProber(SECRET).probe(ADDRESS, settings)).p50_us is not None
