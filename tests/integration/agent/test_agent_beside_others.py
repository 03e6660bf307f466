"""The agent keeps qdiscs, filters and BPF programs of other programs on the same devices."""

from __future__ import annotations

import socket
import subprocess
import sys

import msgspec
import pytest
from pyroute2 import IPRoute

from agent.bandwidth.rules import RepairPolicy
from agent.bandwidth.state import INGRESS_HOOK, SetEgressLimit
from agent.netlink import KernelError
from tests.integration.agent.bpf_programs import loaded_program, make_program_dropping_udp
from tests.integration.agent.pods_on_node import NodePod, enforce, execute, needs_root, node_pod, run_command
from tests.support.plugin_bucket import compute_plugin_params

pytestmark = needs_root
REPAIR = RepairPolicy(enforce=True, repair_burst=True)


def read_tc(device: str) -> str:
    """Qdiscs and filters of a device, as ``tc`` prints them."""
    outputs = [run_command(f"tc qdisc show dev {device}")]
    outputs += [run_command(f"tc filter show dev {device} {hook}") for hook in ("ingress", "egress")]
    return "".join(outputs)


def attach_bpf_filter(device: str, program: bytes) -> None:
    """Attach a direct-action BPF filter to a device's ingress, as the AWS network policy agent and netobserv do."""
    with loaded_program(program, "foreign") as descriptor, IPRoute() as netlink:
        netlink.tc(
            "add-filter",
            "bpf",
            index=socket.if_nametoindex(device),
            parent=INGRESS_HOOK,
            prio=10,
            fd=descriptor,
            name="foreign",
            flags=1,
        )


def has_datagram_arrived(pod: NodePod) -> bool:
    """Whether a UDP datagram that the pod sends now arrives at the host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((pod.host_address, 0))
        receiver.settimeout(0.5)
        port = receiver.getsockname()[1]
        send = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ({pod.host_address!r}, {port}))"
        subprocess.run(pod.make_command(sys.executable, "-c", send), check=True)
        try:
            return receiver.recv(9) == b"x"
        except TimeoutError:
            return False


def assert_fails_without_change(repair: SetEgressLimit, pod: NodePod) -> None:
    tc_before = read_tc(pod.host_device)
    with pytest.raises(KernelError):
        execute(repair)
    assert read_tc(pod.host_device) == tc_before
    assert pod.ifb_name not in run_command("ip -br link")


@pytest.mark.parametrize("has_filter", [True, False])
def test_qdiscs_and_filters_of_others_stay_unchanged_over_ten_rounds(has_filter: bool) -> None:
    with node_pod(40) as pod:
        run_command(f"tc qdisc add dev {pod.host_device} clsact")
        if has_filter:
            attach_bpf_filter(pod.host_device, make_program_dropping_udp())
        tc_before = read_tc(pod.host_device)
        for _ in range(10):
            status = enforce(pod.make_spec(egress="10M"), policy=REPAIR)["egress"]
            assert status.verdict == ("other-enforcer" if has_filter else "enforced")
            assert ("bpf filter" in status.detail) is has_filter
            enforce(pod.make_spec(), policy=REPAIR)  # without the annotation our limit is removed
            assert read_tc(pod.host_device) == tc_before
            assert pod.ifb_name not in run_command("ip -br link")
        assert has_datagram_arrived(pod) is not has_filter


def test_a_drop_filter_that_is_added_later_still_drops() -> None:
    with node_pod(41) as pod:
        limits = pod.make_spec(egress="10M")
        assert enforce(limits, policy=REPAIR)["egress"].verdict == "enforced"
        assert has_datagram_arrived(pod)
        attach_bpf_filter(pod.host_device, make_program_dropping_udp())
        assert not has_datagram_arrived(pod)
        status = enforce(limits, policy=REPAIR)["egress"]
        assert status.verdict == "enforced"
        assert "pref" in status.detail
        assert not has_datagram_arrived(pod)


def test_a_failed_repair_leaves_no_qdisc_and_no_filter() -> None:
    with node_pod(44) as pod:
        index, params = socket.if_nametoindex(pod.host_device), compute_plugin_params(10_000_000)
        repair = SetEgressLimit(
            index, pod.host_device, pod.ifb_name, 1500, params, "netaware:x", add_ingress_qdisc=True
        )
        no_such_filter = msgspec.structs.replace(repair, stale_filter_priorities=(7,))
        too_long_alias = msgspec.structs.replace(repair, alias="x" * 300)
        no_such_device = msgspec.structs.replace(repair, device_index=999_999)
        for invalid_repair in (no_such_filter, too_long_alias, no_such_device):
            assert_fails_without_change(invalid_repair, pod)

        # Another program adds its qdisc and filter after the repair was planned.
        run_command(f"tc qdisc add dev {pod.host_device} clsact")
        attach_bpf_filter(pod.host_device, make_program_dropping_udp())
        assert_fails_without_change(repair, pod)
