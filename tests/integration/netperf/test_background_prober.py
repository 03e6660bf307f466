"""Datagrams of an agent over the loopback show whether a peer still answers."""

from __future__ import annotations

import asyncio

import pytest

from agent.probing.background import BackgroundProber, WindowResult
from agent.probing.plan_source import PlanSource
from netperf.plans import Peer
from netperf.probers.failure import ProbeFailedError
from netperf.probers.responder import DatagramResponder
from tests.integration.netperf.peers import ADDRESS, PASSPHRASE, free_port, running_server
from tests.unit.agent.probing import ORIGIN, make_plan


async def test_answers_of_earlier_rounds_do_not_hide_a_failure() -> None:
    responder, plans = DatagramResponder(ADDRESS, 0, PASSPHRASE), PlanSource(ORIGIN.node)
    prober = BackgroundProber(plans)
    async with running_server(responder):
        settings = {"datagram_port": responder.port, "control_port": free_port()}
        plans.set_plan(make_plan(Peer("n2", ADDRESS, "z2"), settings=settings, interval_s=2.0))
        (probe,) = plans.own_probes
        sending = asyncio.create_task(prober.run(ADDRESS, PASSPHRASE))
        async with asyncio.timeout(30):
            while not await prober.have_datagrams_returned(probe):
                await asyncio.sleep(0.05)
    try:
        assert prober.close_window(probe).answer_count
        await asyncio.sleep(2.2)
        with pytest.raises(ProbeFailedError):
            await prober.have_datagrams_returned(probe)
        assert prober.close_window(probe) == WindowResult(None, 0)
        await asyncio.sleep(4.0)
        assert prober.close_window(probe) == WindowResult(None, 0), "the window ends after three rounds"
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
