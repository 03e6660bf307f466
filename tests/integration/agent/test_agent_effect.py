"""A limit that packets bypass is reported as exceeded, and a limit that drops all packets as lost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from socket import if_nametoindex

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.rtnl.tcmsg.common import tc_actions

from agent.bandwidth.annotations import Direction
from agent.bandwidth.counters import take_readings
from agent.bandwidth.manager import DEVICE_COUNTERS_INTERVAL_S
from agent.bandwidth.meters import TrafficMeters
from agent.bandwidth.rules import RepairPolicy, plugin_ifb_name
from agent.bandwidth.state import INGRESS_HOOK, PLUGIN_HANDLE, LimitStatus, SetEgressLimit, SetIngressLimit
from tests.integration.agent.bpf_programs import attach_tcx, loaded_program, program_redirecting_to_peer
from tests.integration.agent.limit_measurements import start_traffic
from tests.integration.agent.pods_on_node import NETWORK, PROC, NodePod, execute, node_pod, plan, run
from tests.support.plugin_bucket import compute_plugin_params

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
    pytest.mark.alone,  # traffic is measured
]
RATE_BPS = 5_000_000


def set_limit(pod: NodePod, direction: str) -> None:
    for action in plan(pod.spec(**{direction: str(RATE_BPS)})).actions:
        if action.device_name == pod.host_device:
            execute(action)


def meter_traffic(statuses: Sequence[LimitStatus], readings: int) -> TrafficMeters:
    """Take readings as the agent does, in less time."""
    meters = TrafficMeters()

    async def take() -> None:
        for number in range(readings):
            await take_readings(meters, PROC, statuses, time.monotonic())
            await asyncio.sleep(DEVICE_COUNTERS_INTERVAL_S if number + 1 < readings else 0)

    asyncio.run(take())
    return meters


def delete_ifb_of_plugin(pod: NodePod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete the ifb: the plugin's filter then passes packets, because its action is OK and not STOLEN."""
    name = plugin_ifb_name(NETWORK, pod.container)
    params = compute_plugin_params(RATE_BPS, 100_000)
    execute(SetEgressLimit(if_nametoindex(pod.host_device), pod.host_device, name, 1500, params, "", add_filter=False))
    run(f"tc qdisc add dev {pod.host_device} ingress")
    with monkeypatch.context() as patched, IPRoute() as netlink:
        patched.setitem(tc_actions, "stolen", 0)
        action = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": if_nametoindex(name)}
        netlink.tc(
            *("add-filter", "u32", if_nametoindex(pod.host_device)),
            parent=INGRESS_HOOK,
            protocol=3,
            prio=1,
            target=0x10001,
            keys=["0x0/0x0+0"],
            action=action,
        )
    run(f"ip link del {name}")


def test_a_limit_that_packets_bypass_is_exceeded_within_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        overflowed, peer, stray, deleted, limited_ingress, limited_egress, source = (
            stack.enter_context(node_pod(number)) for number in range(50, 57)
        )
        params = compute_plugin_params(RATE_BPS)
        with IPRoute() as netlink:
            netlink.tc(
                "replace", "tbf", index=if_nametoindex(overflowed.host_device), handle=PLUGIN_HANDLE, params=params
            )
        for pod, direction in ((peer, "ingress"), (limited_ingress, "ingress"), (limited_egress, "egress")):
            set_limit(pod, direction)
        # Around the qdisc: another pod's packets are put straight into this one, as with bpf_redirect_peer in Cilium.
        with loaded_program(program_redirecting_to_peer(if_nametoindex(peer.host_device)), "around") as program:
            attach_tcx(program, if_nametoindex(source.host_device))
        # The source's packets to the host are redirected too, so no ARP reply comes: its neighbour is set by hand.
        run(f"ip -n {source.namespace} neigh replace {source.host_address} lladdr 02:00:00:00:00:01 dev eth0")
        # On the wrong device: the bucket is on the other pod's.
        execute(SetIngressLimit(if_nametoindex(source.host_device), source.host_device, params))
        delete_ifb_of_plugin(deleted, monkeypatch)

        limits = [pod.spec(ingress=str(RATE_BPS)) for pod in (overflowed, peer, stray, limited_ingress)]
        limits += [pod.spec(egress=str(RATE_BPS)) for pod in (deleted, limited_egress)]
        limit_plan = plan(*limits, policy=RepairPolicy())
        verdict_by_pod = {status.pod.name: status.verdict for status in limit_plan.statuses}
        assert verdict_by_pod == {
            overflowed.name: "burst-overflow",
            peer.name: "enforced",
            stray.name: "missing",
            deleted.name: "filter-missing",
            limited_ingress.name: "enforced",
            limited_egress.name: "enforced",
        }
        seconds = 4 * DEVICE_COUNTERS_INTERVAL_S
        floods: list[tuple[NodePod, Direction]] = [(pod, "ingress") for pod in (overflowed, stray, limited_ingress)]
        floods += [(pod, "egress") for pod in (source, deleted, limited_egress)]
        for pod, direction in floods:
            flood = stack.enter_context(start_traffic(pod, direction, "flood", seconds))
            stack.callback(flood.kill)
        meters = meter_traffic(limit_plan.statuses, 3)
        excess_by_pod = {status.pod.name: meters.excess_by_key.get(status.key, "") for status in limit_plan.statuses}
        pods_without_excess = {name for name, excess in excess_by_pod.items() if not excess}
        assert pods_without_excess == {limited_ingress.name, limited_egress.name}, excess_by_pod


def test_a_deleted_ifb_behind_our_filter_drops_all_packets_and_is_reported() -> None:
    with node_pod(57) as pod:
        set_limit(pod, "egress")
        run(f"ip link del {plugin_ifb_name(NETWORK, pod.container)}")
        (status,) = plan(pod.spec(egress=str(RATE_BPS)), policy=RepairPolicy()).statuses
        assert (status.verdict, "is lost" in status.detail) == ("filter-missing", True)
