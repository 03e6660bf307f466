"""netperf measures against netserver on the loopback, and netserver accepts only agents."""

from __future__ import annotations

import asyncio
import socket
import sys
import textwrap
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import psutil
import pytest

from lab.netperf_install import Netperf
from lab.polling import poll_until
from netperf.measurement import PERCENTILES, Test
from netperf.plans import ProbeSettings
from netperf.probers.failure import ProbeFailedError
from netperf.probers.netperf import NetperfProber
from netperf.probers.netserver import REQUEST_BYTES, Netserver
from netperf.probers.passphrase import EPOCH_S
from tests.integration.netperf.peers import ADDRESS, PASSPHRASE, RELAY_ADDRESS, free_port, running_server
from tests.support.tasks import running_tasks

ROOT = Path(__file__).parents[3]


@pytest.fixture
def probe_settings() -> ProbeSettings:
    """Free ports, and the shortest duration that netperf supports."""
    return ProbeSettings(duration_s=1.0, control_port=free_port(), data_port=free_port(), datagram_port=free_port())


@pytest.fixture
def prober(netperf_programs: Netperf) -> NetperfProber:
    return NetperfProber(str(netperf_programs.netperf), PASSPHRASE)


@pytest.fixture
def netserver(netperf_programs: Netperf, probe_settings: ProbeSettings) -> Netserver:
    return Netserver(str(netperf_programs.netserver), ADDRESS, probe_settings.control_port, PASSPHRASE)


def list_netservers(ancestor_pid: int | None = None) -> list[psutil.Process]:
    """The netservers that a process, by default this one, started."""
    return [p for p in psutil.Process(ancestor_pid).children(recursive=True) if p.cmdline()[:1] == ["netserver"]]


async def probe_outcome(prober: NetperfProber, probe_settings: ProbeSettings) -> str:
    """``ok``, or the reason of the failure."""
    try:
        await prober.probe(ADDRESS, probe_settings)
    except ProbeFailedError as error:
        return error.reason
    return "ok"


@pytest.mark.parametrize("test", ["TCP_RR", "UDP_RR"])
async def test_a_successful_run_has_every_figure(
    prober: NetperfProber, netserver: Netserver, probe_settings: ProbeSettings, test: Test
) -> None:
    async with running_server(netserver):
        measurement = await prober.probe(ADDRESS, msgspec.structs.replace(probe_settings, test=test))
    percentiles = [measurement.percentile_us(p) or 0.0 for p in PERCENTILES]
    assert 0 < percentiles[0] <= percentiles[1] <= percentiles[2]
    assert (measurement.transactions or 0) >= 10
    assert (measurement.duration_s or 0) >= 0.5
    assert None not in (measurement.run_queue_us, measurement.loss_ratio)


async def test_missing_netperf_is_named_in_the_failure(probe_settings: ProbeSettings) -> None:
    assert await probe_outcome(NetperfProber("/nonexistent/netperf", PASSPHRASE), probe_settings) == "no-netperf"


async def test_netserver_listens_on_its_own_address_only(netserver: Netserver, probe_settings: ProbeSettings) -> None:
    async with running_server(netserver):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(RELAY_ADDRESS, probe_settings.control_port)


async def test_seven_hundred_silent_connections_start_no_process_and_do_not_block_an_agent(
    prober: NetperfProber,
    netserver: Netserver,
    probe_settings: ProbeSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("netperf.probers.netserver.REQUEST_TIMEOUT_S", 600.0)
    async with running_server(netserver), AsyncExitStack() as stack:
        other_peer = await asyncio.open_connection(ADDRESS, probe_settings.control_port, local_addr=(RELAY_ADDRESS, 0))
        stack.callback(other_peer[1].close)
        for number in range(700):
            _, writer = await asyncio.open_connection(ADDRESS, probe_settings.control_port)
            stack.callback(writer.close)
            if number % 2:
                writer.write(bytes(REQUEST_BYTES))  # a request without a valid passphrase
        assert list_netservers() == []
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other_peer[0].read(1), 0.5)  # its connection stays open
        assert await probe_outcome(prober, probe_settings) == "ok"
    rejections = [getattr(record, "fields", {}) for record in caplog.records if "passphrase" in record.message]
    assert [fields.get("peer") for fields in rejections] == [ADDRESS], "each host once"


async def test_a_netserver_has_resource_limits_and_no_capabilities(
    prober: NetperfProber, netserver: Netserver, probe_settings: ProbeSettings
) -> None:
    async with running_server(netserver):
        run = asyncio.create_task(prober.probe(ADDRESS, probe_settings))
        (process,) = await poll_until(list_netservers)
        await poll_until(lambda: "-N" in process.cmdline())
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "CapEff:\t0000000000000000\n" in status
        assert "Uid:\t0\t" not in status
        assert f"Max address space         {128 << 20}" in Path(f"/proc/{process.pid}/limits").read_text()
        assert "-Z" not in process.cmdline()
        await run
    assert list_netservers() == []


async def test_a_used_port_is_reported_and_retried(netserver: Netserver, probe_settings: ProbeSettings) -> None:
    other_program = socket.create_server((ADDRESS, probe_settings.control_port))
    async with running_tasks(netserver.run()), asyncio.timeout(60):
        await poll_until(lambda: "cannot serve" in netserver.failure)
        assert not netserver.listening.is_set()
        other_program.close()
        await netserver.listening.wait()


@pytest.mark.parametrize(("script", "failure"), [(None, "No such file"), ("exit 127", "ended with code 127")])
async def test_a_netserver_that_cannot_start_has_a_failure(
    probe_settings: ProbeSettings, tmp_path: Path, script: str | None, failure: str
) -> None:
    binary = tmp_path / "netserver"
    if script is not None:
        binary.write_text(f"#!/bin/sh\n{script}\n")
        binary.chmod(0o755)
    server = Netserver(str(binary), ADDRESS, probe_settings.control_port, PASSPHRASE)
    async with running_tasks(server.run()):
        await poll_until(lambda: failure in server.failure)
        assert not server.listening.is_set()


@pytest.mark.parametrize("start_delay_s", [0, 2], ids=["at-once", "on-a-busy-machine"])
async def test_a_passphrase_is_refused_after_its_hour(
    netperf_programs: Netperf, probe_settings: ProbeSettings, tmp_path: Path, start_delay_s: int
) -> None:
    stolen_at_s = 99 * EPOCH_S + 1  # so early that the thief also tries the epoch before, and never the next one
    now_s = stolen_at_s
    netserver = Netserver(
        str(netperf_programs.netserver), ADDRESS, probe_settings.control_port, PASSPHRASE, wall_clock=lambda: now_s
    )
    delayed_netperf = tmp_path / "netperf"
    delayed_netperf.write_text(f'#!/bin/sh\nsleep {start_delay_s}\nexec {netperf_programs.netperf} "$@"\n')
    delayed_netperf.chmod(0o755)
    thief = NetperfProber(str(delayed_netperf), PASSPHRASE, wall_clock=lambda: stolen_at_s)
    honest_prober = NetperfProber(str(netperf_programs.netperf), PASSPHRASE, wall_clock=lambda: now_s)
    async with running_server(netserver):
        assert await probe_outcome(thief, probe_settings) == "ok"
        now_s += EPOCH_S
        assert await probe_outcome(thief, probe_settings) == "unauthenticated"
        assert await probe_outcome(honest_prober, probe_settings) == "ok"


async def test_a_run_whose_netserver_ends_is_reset_though_the_passphrase_was_accepted(
    prober: NetperfProber, netserver: Netserver, probe_settings: ProbeSettings
) -> None:
    async with running_server(netserver):
        probing = asyncio.create_task(probe_outcome(prober, probe_settings))
        (process,) = await poll_until(list_netservers)
        process.kill()
        assert await probing == "reset"


async def test_netserver_ends_with_a_killed_agent(netperf_programs: Netperf) -> None:
    port = free_port()
    script = textwrap.dedent(f"""
        import asyncio
        from netperf.plans import ProbeSettings
        from netperf.probers.netperf import NetperfProber
        from netperf.probers.netserver import Netserver
        async def main():
            server = Netserver({str(netperf_programs.netserver)!r}, {ADDRESS!r}, {port}, {PASSPHRASE!r})
            task = asyncio.create_task(server.run())
            await server.listening.wait()
            print("ready", flush=True)
            settings = ProbeSettings(duration_s=60, control_port={port}, data_port={free_port()})
            await NetperfProber({str(netperf_programs.netperf)!r}, {PASSPHRASE!r}).probe({ADDRESS!r}, settings)
        asyncio.run(main())
    """)
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert agent.stdout is not None
    assert await agent.stdout.readline() == b"ready\n"
    netservers = await poll_until(lambda: list_netservers(agent.pid))
    agent.kill()
    await agent.wait()
    await poll_until(lambda: all(not p.is_running() or p.status() == psutil.STATUS_ZOMBIE for p in netservers))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(ADDRESS, port)
