"""The agent's limits hold on real devices, and the default burst of the CNI plugin is reported as too large."""

from __future__ import annotations

import json
import os
import re
import socket

import pytest
from pyroute2 import IPRoute

from agent.bandwidth import tbf
from agent.bandwidth.annotations import Direction
from agent.bandwidth.rules import RepairPolicy, plugin_ifb_name
from agent.bandwidth.state import LAST_PRIORITY, PLUGIN_HANDLE, BandwidthPlan, SetEgressLimit
from tests.integration.agent.limit_measurements import measure_delay_s, measure_shares, running_generators
from tests.integration.agent.pods_on_node import (
    NETWORK,
    NodePod,
    enforce,
    execute,
    node_pod,
    plan,
    run,
    statuses_of_pod,
    take_snapshot,
)
from tests.support.plugin_bucket import CONTAINERD_BURST_BYTES, CRIO_BURST_BYTES, compute_plugin_params

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
    # Rates are measured; and an enforcing agent of another test would take limits of pods it does not know for leftovers.
    pytest.mark.alone,
]


def actions_on(limit_plan: BandwidthPlan, pod: NodePod) -> list[str]:
    """Types of the planned actions on the devices of a pod."""
    return [type(action).__name__ for action in limit_plan.actions if action.device_name == pod.host_device]


def device_of(pod: NodePod, direction: Direction) -> str:
    """The device that has the limit's bucket."""
    return pod.host_device if direction == "ingress" else plugin_ifb_name(NETWORK, pod.container)


@pytest.mark.parametrize("direction", ["ingress", "egress"])
@pytest.mark.parametrize(
    "rate", [pytest.param(5, marks=pytest.mark.measure), 50, pytest.param(500, marks=pytest.mark.measure)]
)
def test_enforced_limits_hold_from_the_first_second_and_keep_the_queue_short(rate: int, direction: Direction) -> None:
    with node_pod(rate % 251) as pod, running_generators(pod):
        spec = pod.spec(ingress=f"{rate}M", egress=f"{rate}M")
        statuses = statuses_of_pod(enforce(spec), pod)
        assert {d: s.verdict for d, s in statuses.items()} == {"ingress": "enforced", "egress": "enforced"}
        # The limit holds in every run. Other work slows streams and round trips, so one run must use it up with a short queue.
        mean = 0.0
        while mean < 0.90:
            first_second, mean = measure_shares(pod, direction, device_of(pod, direction), rate * 1e6)
            assert max(first_second, mean) <= 1.05
        queue_s = tbf.choose_params(rate * 10**6, 1500).queue_s
        assert statuses[direction].queue_s == pytest.approx(queue_s, rel=1e-3)
        while measure_delay_s(pod, direction) > queue_s:
            pass


def set_limits_as_plugin(pod: NodePod, rate_bps: int, burst: int) -> None:
    """Set limits with this burst in both directions, as the CNI bandwidth plugin does."""
    snapshot = take_snapshot(pod.spec())
    device = next(d for d in snapshot.tc_state.devices if d.name == pod.host_device)
    params = compute_plugin_params(rate_bps, burst)
    name = plugin_ifb_name(NETWORK, pod.container)
    execute(SetEgressLimit(device.index, device.name, name, 1500, params, alias="", add_ingress_qdisc=True))
    with IPRoute() as netlink:  # with our exact parameters, see `agent.bandwidth.tc_writer`
        for index in (device.index, socket.if_nametoindex(name)):
            netlink.tc("replace", "tbf", index=index, handle=PLUGIN_HANDLE, params=params)


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_the_default_burst_of_a_runtime_exceeds_the_limit_and_is_reported(direction: Direction) -> None:
    with node_pod(9) as pod, running_generators(pod):
        set_limits_as_plugin(pod, 50_000_000, CONTAINERD_BURST_BYTES)
        spec = pod.spec(ingress="50M", egress="50M")
        limit_plan = plan(spec)
        status = statuses_of_pod(limit_plan, pod)[direction]
        assert status.verdict == "burst-too-large"
        assert actions_on(limit_plan, pod) == []
        assert measure_shares(pod, direction, device_of(pod, direction), 50e6)[0] > 3
        # Repaired on request, the same traffic is limited.
        enforce(spec, policy=RepairPolicy(enforce=True, repair_burst=True))
        assert statuses_of_pod(plan(spec), pod)[direction].verdict == "enforced"
        assert max(measure_shares(pod, direction, device_of(pod, direction), 50e6)) <= 1.05


def test_an_overflowed_burst_is_reported_with_the_numbers_of_tc() -> None:
    for rate_bps, burst, verdict in (
        (900_000, CONTAINERD_BURST_BYTES, "burst-overflow"),
        (15_000_000, CONTAINERD_BURST_BYTES, "burst-overflow"),
        (124_000_000, CRIO_BURST_BYTES, "burst-overflow"),
        (16_000_000, CONTAINERD_BURST_BYTES, "burst-too-large"),
        (126_000_000, CRIO_BURST_BYTES, "burst-too-large"),
    ):
        with node_pod(10) as pod:
            set_limits_as_plugin(pod, rate_bps, burst)
            statuses = statuses_of_pod(plan(pod.spec(ingress=str(rate_bps), egress=str(rate_bps))), pod)
            for direction in ("ingress", "egress"):
                device = device_of(pod, direction)
                shown = json.loads(run(f"tc -j qdisc show dev {device} root"))[0]["options"]
                status = statuses[direction]
                assert (status.verdict, status.device_name) == (verdict, device)
                effective_burst = re.findall(r"(?:burst|one) of (\d+)", status.detail)[-1]
                assert int(effective_burst) == pytest.approx(shown["burst"], rel=1e-3)
                assert status.rate_bytes_per_s == shown["rate"]
                assert verdict != "burst-overflow" or str(burst) in status.detail


def test_enforcing_again_changes_nothing_and_qdiscs_are_like_those_of_the_plugin() -> None:
    with node_pod(12) as pod:
        spec = pod.spec(ingress="100G", egress="20M")  # more than 32 bits of bytes per second
        assert actions_on(plan(spec), pod) == ["SetIngressLimit", "SetEgressLimit"]
        assert actions_on(enforce(spec), pod) == []
        index = socket.if_nametoindex(pod.host_device)
        params = [q.params for q in take_snapshot(spec).tc_state.qdiscs if q.device_index == index and q.kind == "tbf"]
        assert params == [tbf.choose_params(100 * 10**9, 1500)], "exact, with 64 bits"
        name = plugin_ifb_name(NETWORK, pod.container)
        root = json.loads(run(f"tc -j qdisc show dev {pod.host_device} root"))[0]
        assert (root["kind"], root["handle"], root["options"]["rate"]) == ("tbf", "6e61:", 12_500_000_000)
        assert json.loads(run(f"tc -j qdisc show dev {name} root"))[0]["options"]["rate"] == 20_000_000 // 8
        filters = run(f"tc filter show dev {pod.host_device} ingress")
        assert f"protocol all pref {LAST_PRIORITY} u32" in filters
        assert "match 00000000/00000000 at 0" in filters
        assert f"mirred (Egress Redirect to device {name})" in filters
        link = json.loads(run(f"ip -j -d link show {name}"))[0]
        assert (link["mtu"], link.get("txqlen", 0), link["ifalias"]) == (1500, 0, f"netaware:{pod.uid}/ingress")


def test_a_changed_annotation_changes_the_limit_and_a_removed_one_removes_it() -> None:
    with node_pod(13) as pod:
        enforce(pod.spec(ingress="10M", egress="10M"))
        changed = pod.spec(ingress="80M", egress="40M")
        assert {status.verdict for status in statuses_of_pod(plan(changed), pod).values()} == {"wrong-rate"}
        limits = {d: (s.verdict, s.rate_bytes_per_s) for d, s in statuses_of_pod(enforce(changed), pod).items()}
        assert limits == {"ingress": ("enforced", 10**7), "egress": ("enforced", 5 * 10**6)}
        run(f"ip link set {pod.host_device} mtu 1400")
        assert {status.verdict for status in statuses_of_pod(plan(changed), pod).values()} == {"enforced"}, (
            "with any MTU"
        )
        assert actions_on(enforce(pod.spec()), pod) == []
        qdiscs = run(f"tc qdisc show dev {pod.host_device}")
        assert ("tbf" in qdiscs, "ingress" in qdiscs) == (False, False)
        assert plugin_ifb_name(NETWORK, pod.container) not in run("ip -br link")


def test_a_lost_part_of_a_limit_is_found_and_repaired() -> None:
    with node_pod(14) as pod:
        spec, name = pod.spec(egress="10M"), plugin_ifb_name(NETWORK, pod.container)
        no_filter, add = (f"tc filter {verb} dev {pod.host_device} ingress" for verb in ("del", "add"))
        add, redirect = f"{add} protocol all", f"action mirred egress redirect dev {name}"
        enforce(spec)
        for commands, verdict in (
            ([no_filter], "filter-missing"),
            ([f"tc qdisc del dev {name} root"], "missing"),
            ([f"ip link del {name}"], "filter-missing"),
            ([f"ip link set {name} down"], "filter-missing"),
            # Filters that no packet, or not every packet, reaches.
            ([no_filter, f"{add} pref 1 u32 match u32 0 0 indev lo {redirect}"], "filter-missing"),
            ([no_filter, f"{add} chain 5 pref 1 u32 match u32 0 0 {redirect}"], "filter-missing"),
        ):
            for command in commands:
                run(command)
            status = statuses_of_pod(plan(spec), pod)["egress"]
            assert (status.verdict, status.rate_bytes_per_s) == (verdict, None), commands
            assert statuses_of_pod(enforce(spec), pod)["egress"].verdict == "enforced"
        assert "UP" in run(f"ip -br link show {name}").split()[-1]


def test_a_default_qdisc_with_the_plugins_handle_is_replaced() -> None:
    """The kernel cannot change the kind of a qdisc with the same handle, so ours has another handle."""
    with node_pod(31) as pod:
        run(f"tc qdisc add dev {pod.host_device} root handle 1: pfifo")
        statuses = statuses_of_pod(enforce(pod.spec(ingress="10M")), pod)
        assert statuses["ingress"].verdict == "enforced"
