"""Pods are scheduled if the extender ends or freezes."""

from __future__ import annotations

import os
import signal

import pytest

from lab.controlplane import ControlPlane
from lab.scheduler_config import build_scheduler_config
from tests.integration.scheduler.harness import SchedulerHarness
from tests.support.bodies import make_symmetric_costs
from tests.support.controller_program import run_controller

pytestmark = pytest.mark.timeout(600)

POD_COUNT = 16
BOUND_BEFORE_SIGNAL = 4
"""Pods that are surely bound when the extender gets the signal, after half of all are created."""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_pods_are_scheduled_after_the_extender_ends_or_freezes(
    harness: SchedulerHarness, control_plane: ControlPlane, signal_number: signal.Signals
) -> None:
    for i in range(1, 9):
        await harness.create_ready_node(f"n{i}", zone=f"z{(i + 1) // 2}", region="r")
    await harness.set_costs(make_symmetric_costs({("z1", "z2"): 5}))
    await harness.create_group({"P1": {"P2": 15}, "P2": {}}, members=POD_COUNT)
    async with run_controller(control_plane, "extender") as (program, url):
        # A short timeout, because the test only shows that kube-scheduler continues after it.
        await harness.start_scheduler(build_scheduler_config(extender_url=url, extender_timeout_s=0.5))
        names = [f"pod-{i}" for i in range(POD_COUNT)]
        for i, name in enumerate(names):
            await harness.create_pod(name, group="a1", workload="P1" if i % 2 else "P2")
            if i == POD_COUNT // 2:
                await harness.wait_until_bound(*names[:BOUND_BEFORE_SIGNAL])
                os.kill(program.pid, signal_number)
        assert len(await harness.wait_until_bound(*names)) == POD_COUNT
