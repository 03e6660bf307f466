"""Which hosts are written to the statuses of gated pods."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.hosts import Fleet
from controller.cluster.pods import GroupPod, Target
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.deliveries import Deliveries, PodWriter, all_of
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.planner import Plan
from controller.scheduler.state import State
from controller.scheduler.unschedulable import StuckPods
from kubekit.events import EventRecorder


class Writer:
    """Remembers what would be written."""

    def __init__(self) -> None:
        self.statuses: dict[str, str] = {}

    async def patch_status(self, pod: GroupPod, patch: dict[str, Any]) -> None:
        self.statuses[pod.metadata.name] = patch["status"]["nominatedNodeName"]


def pod(name: str, nominated: str = "") -> GroupPod:
    body = {"metadata": {"name": name, "namespace": "web", "uid": name}, "status": {"nominatedNodeName": nominated}}
    return msgspec.convert(body, GroupPod)


@pytest.mark.parametrize(
    ("before", "has_place", "written"),
    [
        ("", True, {"p": "n1"}),
        ("n0", True, {"p": "n1"}),
        ("n1", True, {}),
        # An autoscaler makes no node for a pod that is nominated, and the scheduler keeps room that it will not use.
        ("n0", False, {"p": ""}),
        ("", False, {}),
    ],
)
async def test_a_gated_pod_is_nominated_for_its_place_and_for_nothing_else(
    before: str, has_place: bool, written: dict[str, str]
) -> None:
    config, writer = SchedulerConfig(), Writer()
    deliveries = Deliveries(
        cast("PodWriter", writer),
        State(config, "netaware-system"),
        Fleet(),
        StuckPods(config),
        config=config,
        metrics=GateMetrics(CollectorRegistry()),
        recorder=cast("EventRecorder", None),
        clock=lambda: 0.0,
    )
    plan = Plan(targets={"web/p": Target("z", "r", "n1")}) if has_place else Plan(unplaced=("web/p",))
    assert await deliveries.nominate([pod("p", before)], plan) == bool(written)
    assert writer.statuses == written


async def test_a_delivery_that_failed_keeps_no_other_from_being_made_and_nothing_in_memory() -> None:
    class Large:
        """What a round works with."""

    made = list[int]()

    async def deliver(number: int) -> None:
        if number % 3 == 0:
            raise ValueError(number)
        made.append(number)

    async def round_() -> weakref.ref[Large]:
        large = Large()
        with pytest.raises(ValueError, match="0") as caught:
            await all_of(deliver(number) for number in range(40))
        del caught
        return weakref.ref(large)

    gc.disable()
    try:
        kept = await round_()
        await asyncio.sleep(0)
        assert kept() is None
    finally:
        gc.enable()
    assert made == [number for number in range(40) if number % 3]
