"""Datagrams of an agent over the loopback show whether a peer still answers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest

from agent.probing.background import BackgroundProber, WindowResult
from agent.probing.plan_source import PlanSource
from lab.polling import poll_until
from netperf.plans import Peer
from netperf.probers.failure import ProbeFailedError
from netperf.probers.responder import DatagramResponder
from tests.integration.netperf.peers import ADDRESS, PASSPHRASE, free_port, running_server
from tests.support.tasks import running_tasks
from tests.unit.agent.probing import ORIGIN, make_plan

ROUND_S = 2.0


async def test_answers_of_earlier_rounds_do_not_hide_a_failure() -> None:
    responder, plans = DatagramResponder(ADDRESS, 0, PASSPHRASE), PlanSource(ORIGIN.node)
    prober = BackgroundProber(plans)
    async with AsyncExitStack() as stack:
        async with running_server(responder):
            settings = {"datagram_port": responder.port, "control_port": free_port()}
            plans.set_plan(make_plan(Peer("n2", ADDRESS, "z2"), settings=settings, interval_s=ROUND_S))
            (probe,) = plans.own_probes
            await stack.enter_async_context(running_tasks(prober.run(ADDRESS, PASSPHRASE)))
            await poll_until(partial(prober.have_datagrams_returned, probe), every_s=0.05)
        assert prober.close_window(probe).answer_count

        await asyncio.sleep(1.1 * ROUND_S)
        with pytest.raises(ProbeFailedError):
            await prober.have_datagrams_returned(probe)
        assert prober.close_window(probe) == WindowResult(None, 0)

        await asyncio.sleep(2 * ROUND_S)
        assert prober.close_window(probe) == WindowResult(None, 0), "the window ends after three rounds"
