"""A limit that packets bypass is reported as exceeded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from socket import if_nametoindex

import pytest
from pyroute2.netlink.rtnl.tcmsg.common import tc_actions

from agent.bandwidth.annotations import Direction
from agent.bandwidth.counters import take_readings
from agent.bandwidth.manager import DEVICE_COUNTERS_INTERVAL_S
from agent.bandwidth.meters import TrafficMeters
from agent.bandwidth.rules import RepairPolicy
from agent.bandwidth.state import LimitStatus
from tests.integration.agent.bpf_programs import attach_tcx, loaded_program, make_program_redirecting_to_peer
from tests.integration.agent.limit_measurements import start_traffic
from tests.integration.agent.pods_on_node import (
    PROC,
    NodePod,
    execute,
    needs_root,
    node_pod,
    plan_on_machine,
    run_command,
    set_limits_as_plugin,
)
from tests.support.plugin_bucket import CONTAINERD_BURST_BYTES

pytestmark = [
    needs_root,
    pytest.mark.alone,  # traffic is measured
]
RATE_BPS = 5_000_000
TC_ACT_OK = 0


def set_limit(pod: NodePod, direction: Direction) -> None:
    """Set the pod's limit, and nothing on devices of other pods."""
    for action in plan_on_machine(pod.make_spec(**{direction: str(RATE_BPS)})).actions:
        if action.device_name == pod.host_device:
            execute(action)


def meter_traffic(statuses: Sequence[LimitStatus], reading_count: int) -> TrafficMeters:
    """Take readings as the agent does."""
    meters = TrafficMeters()
    for number in range(reading_count):
        time.sleep(DEVICE_COUNTERS_INTERVAL_S if number > 0 else 0)
        asyncio.run(take_readings(meters, PROC, statuses, time.monotonic()))
    return meters


def redirect_packets_to_peer(source: NodePod, target: NodePod) -> None:
    """Put all packets of one pod straight into another one, around its qdisc, as Cilium does with bpf_redirect_peer."""
    with loaded_program(make_program_redirecting_to_peer(if_nametoindex(target.host_device)), "around") as program:
        attach_tcx(program, if_nametoindex(source.host_device))
    # Packets to the host are redirected too, so no ARP reply comes: the neighbour is set by hand.
    run_command(f"ip -n {source.namespace} neigh replace {source.host_address} lladdr 02:00:00:00:00:01 dev eth0")


def set_limit_and_delete_ifb(pod: NodePod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set limits as the plugin does and delete the ifb: its filter then passes packets, for its action is OK, not STOLEN."""
    with monkeypatch.context() as patched:
        patched.setitem(tc_actions, "stolen", TC_ACT_OK)
        set_limits_as_plugin(pod, RATE_BPS, 100_000)
    run_command(f"ip link del {pod.ifb_name}")


def test_a_limit_that_packets_bypass_is_exceeded_within_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        overflowed, peer, deleted, limited_ingress, limited_egress, source = (
            stack.enter_context(node_pod(number)) for number in range(50, 56)
        )
        set_limits_as_plugin(overflowed, RATE_BPS, CONTAINERD_BURST_BYTES)
        set_limit(peer, "ingress")
        redirect_packets_to_peer(source, peer)
        set_limit_and_delete_ifb(deleted, monkeypatch)
        set_limit(limited_ingress, "ingress")
        set_limit(limited_egress, "egress")

        limits = [pod.make_spec(ingress=str(RATE_BPS)) for pod in (overflowed, peer, limited_ingress)]
        limits += [pod.make_spec(egress=str(RATE_BPS)) for pod in (deleted, limited_egress)]
        statuses = plan_on_machine(*limits, policy=RepairPolicy()).statuses
        assert {status.pod.name: status.verdict for status in statuses} == {
            overflowed.name: "burst-overflow",
            peer.name: "enforced",
            deleted.name: "filter-missing",
            limited_ingress.name: "enforced",
            limited_egress.name: "enforced",
        }

        floods: list[tuple[NodePod, Direction]] = [(pod, "ingress") for pod in (overflowed, limited_ingress)]
        floods += [(pod, "egress") for pod in (source, deleted, limited_egress)]
        for pod, direction in floods:
            flood = stack.enter_context(start_traffic(pod, direction, "flood", 4 * DEVICE_COUNTERS_INTERVAL_S))
            stack.callback(flood.kill)
        excess_by_key = meter_traffic(statuses, reading_count=3).excess_by_key
        pods_without_excess = {status.pod.name for status in statuses if status.key not in excess_by_key}
        assert pods_without_excess == {limited_ingress.name, limited_egress.name}, excess_by_key
