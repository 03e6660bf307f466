"""The agent's limits hold on real devices, and the default burst of the CNI plugin is reported as too large."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest

from agent.bandwidth import tbf
from agent.bandwidth.annotations import Direction, PodBandwidthSpec
from agent.bandwidth.rules import RepairPolicy
from agent.bandwidth.state import LAST_PRIORITY
from tests.integration.agent.limit_measurements import measure_delay_s, measure_shares, running_generators
from tests.integration.agent.pods_on_node import (
    NodePod,
    enforce,
    needs_root,
    node_pod,
    plan_on_machine,
    read_statuses,
    run_command,
    set_limits_as_plugin,
    take_snapshot,
)
from tests.support.plugin_bucket import CONTAINERD_BURST_BYTES, CRIO_BURST_BYTES

pytestmark = [
    needs_root,
    # Rates are measured; and an enforcing agent of another test would take limits of pods it does not know for leftovers.
    pytest.mark.alone,
]
MAX_SHARE = 1.05
"""Share of a limit that may pass: headers of IP and TCP count, those of Ethernet do not."""
MIN_USED_SHARE = 0.90
REPAIR_BURST = RepairPolicy(enforce=True, repair_burst=True)


def list_actions(limits: PodBandwidthSpec, pod: NodePod) -> list[str]:
    """Types of the planned actions on the pod's devices."""
    actions = plan_on_machine(limits).actions
    return [type(action).__name__ for action in actions if action.device_name == pod.host_device]


def find_bucket_device(pod: NodePod, direction: Direction) -> str:
    """The device that has the limit's bucket."""
    return pod.host_device if direction == "ingress" else pod.ifb_name


def read_root_qdisc(device: str) -> dict[str, Any]:
    """The root qdisc of a device as tc shows it."""
    qdisc: dict[str, Any] = json.loads(run_command(f"tc -j qdisc show dev {device} root"))[0]
    return qdisc


@pytest.mark.parametrize("direction", ["ingress", "egress"])
@pytest.mark.parametrize(
    "rate_mbps", [pytest.param(5, marks=pytest.mark.measure), 50, pytest.param(500, marks=pytest.mark.measure)]
)
def test_enforced_limits_hold_from_the_first_second_and_keep_the_queue_short(
    rate_mbps: int, direction: Direction
) -> None:
    with node_pod(rate_mbps % 251) as pod, running_generators(pod):
        status_by_direction = enforce(pod.make_spec(ingress=f"{rate_mbps}M", egress=f"{rate_mbps}M"))
        assert {status.verdict for status in status_by_direction.values()} == {"enforced"}
        queue_s = tbf.choose_params(rate_mbps * 10**6, 1500).queue_s
        assert status_by_direction[direction].queue_s == pytest.approx(queue_s, rel=1e-3)

        # The limit holds in every run. Other work slows streams and round trips, so one run must use it up with a short queue.
        device, mean_share = find_bucket_device(pod, direction), 0.0
        while mean_share < MIN_USED_SHARE:
            first_second_share, mean_share = measure_shares(pod, direction, device, rate_mbps * 1e6)
            assert max(first_second_share, mean_share) <= MAX_SHARE
        while measure_delay_s(pod, direction) > queue_s:
            pass


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_the_default_burst_of_a_runtime_exceeds_the_limit_and_is_reported(direction: Direction) -> None:
    with node_pod(9) as pod, running_generators(pod):
        set_limits_as_plugin(pod, 50_000_000, CONTAINERD_BURST_BYTES)
        limits, device = pod.make_spec(ingress="50M", egress="50M"), find_bucket_device(pod, direction)
        assert read_statuses(limits)[direction].verdict == "burst-too-large"
        assert list_actions(limits, pod) == []
        first_second_share, _ = measure_shares(pod, direction, device, 50e6)
        assert first_second_share > 3

        # Repaired on request, the same traffic is limited.
        enforce(limits, policy=REPAIR_BURST)
        assert read_statuses(limits)[direction].verdict == "enforced"
        assert max(measure_shares(pod, direction, device, 50e6)) <= MAX_SHARE


@pytest.mark.parametrize(
    ("rate_bps", "burst_bytes"),
    [(900_000, CONTAINERD_BURST_BYTES), (15_000_000, CONTAINERD_BURST_BYTES), (124_000_000, CRIO_BURST_BYTES)],
)
def test_an_overflowed_burst_is_reported_with_the_numbers_of_tc(rate_bps: int, burst_bytes: int) -> None:
    with node_pod(10) as pod:
        set_limits_as_plugin(pod, rate_bps, burst_bytes)
        status_by_direction = read_statuses(pod.make_spec(ingress=str(rate_bps), egress=str(rate_bps)))
        for direction in ("ingress", "egress"):
            status, device = status_by_direction[direction], find_bucket_device(pod, direction)
            assert status.verdict == "burst-overflow"
            assert status.device_name == device
            assert str(burst_bytes) in status.detail

            tc_options = read_root_qdisc(device)["options"]
            effective_burst_bytes = int(re.findall(r"(?:burst|one) of (\d+)", status.detail)[-1])
            assert effective_burst_bytes == pytest.approx(tc_options["burst"], rel=1e-3)
            assert status.rate_bytes_per_s == tc_options["rate"]


def test_enforcing_again_changes_nothing_and_qdiscs_are_like_those_of_the_plugin() -> None:
    with node_pod(12) as pod:
        limits = pod.make_spec(ingress="100G", egress="20M")
        assert list_actions(limits, pod) == ["SetIngressLimit", "SetEgressLimit"]
        enforce(limits)
        assert list_actions(limits, pod) == []

        device_index = socket.if_nametoindex(pod.host_device)
        qdiscs = take_snapshot(limits).tc_state.qdiscs
        params = [q.params for q in qdiscs if q.device_index == device_index and q.kind == "tbf"]
        assert params == [tbf.choose_params(100 * 10**9, 1500)], "more than 32 bits of bytes per second"

        root = read_root_qdisc(pod.host_device)
        assert root["handle"] == "6e61:"
        assert root["options"]["rate"] == 12_500_000_000
        assert read_root_qdisc(pod.ifb_name)["options"]["rate"] == 20_000_000 // 8
        filters = run_command(f"tc filter show dev {pod.host_device} ingress")
        assert f"protocol all pref {LAST_PRIORITY} u32" in filters
        assert "match 00000000/00000000 at 0" in filters
        assert f"mirred (Egress Redirect to device {pod.ifb_name})" in filters
        ifb = json.loads(run_command(f"ip -j -d link show {pod.ifb_name}"))[0]
        assert (ifb["mtu"], ifb.get("txqlen", 0)) == (1500, 0)
        assert ifb["ifalias"] == f"netaware:{pod.uid}/ingress"


def test_a_limit_holds_with_any_mtu_and_a_removed_annotation_removes_it() -> None:
    with node_pod(13) as pod:
        limits = pod.make_spec(ingress="10M", egress="10M")
        enforce(limits)
        run_command(f"ip link set {pod.host_device} mtu 1400")
        assert {status.verdict for status in read_statuses(limits).values()} == {"enforced"}

        enforce(pod.make_spec())
        assert list_actions(pod.make_spec(), pod) == []
        qdiscs = run_command(f"tc qdisc show dev {pod.host_device}")
        assert "tbf" not in qdiscs
        assert "ingress" not in qdiscs
        assert pod.ifb_name not in run_command("ip -br link")


def test_a_lost_part_of_a_limit_is_found_and_repaired() -> None:
    with node_pod(14) as pod:
        limits, ifb = pod.make_spec(egress="10M"), pod.ifb_name
        delete_filter = f"tc filter del dev {pod.host_device} ingress"
        add_filter = f"tc filter add dev {pod.host_device} ingress protocol all"
        redirect = f"action mirred egress redirect dev {ifb}"
        enforce(limits)
        for commands, verdict, detail in (
            ([delete_filter], "filter-missing", ""),
            ([f"tc qdisc del dev {ifb} root"], "missing", ""),
            ([f"ip link del {ifb}"], "filter-missing", "is lost"),
            ([f"ip link set {ifb} down"], "filter-missing", "is lost"),
            # Filters that no packet, or not every packet, reaches.
            ([delete_filter, f"{add_filter} pref 1 u32 match u32 0 0 indev lo {redirect}"], "filter-missing", ""),
            ([delete_filter, f"{add_filter} chain 5 pref 1 u32 match u32 0 0 {redirect}"], "filter-missing", ""),
        ):
            for command in commands:
                run_command(command)
            status = read_statuses(limits)["egress"]
            assert status.verdict == verdict, commands
            assert detail in status.detail
            assert status.rate_bytes_per_s is None
            assert enforce(limits)["egress"].verdict == "enforced"
        assert "UP" in run_command(f"ip -br link show {ifb}").split()[-1]


def test_a_default_qdisc_with_the_plugins_handle_is_replaced() -> None:
    """The kernel cannot change the kind of a qdisc with the same handle, so ours has another handle."""
    with node_pod(31) as pod:
        run_command(f"tc qdisc add dev {pod.host_device} root handle 1: pfifo")
        assert enforce(pod.make_spec(ingress="10M"))["ingress"].verdict == "enforced"
