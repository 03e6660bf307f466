"""The agent keeps qdiscs, filters and BPF programs of other programs on the same devices."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import msgspec
import pytest
from pyroute2 import IPRoute

from agent.bandwidth.rules import RepairPolicy, plugin_ifb_name
from agent.bandwidth.state import INGRESS_HOOK, SetEgressLimit
from agent.netlink import KernelError
from tests.integration.agent.bpf_programs import loaded_program, program_dropping_udp
from tests.integration.agent.pods_on_node import NETWORK, NodePod, enforce, execute, node_pod, run, statuses_of_pod
from tests.support.plugin_bucket import compute_plugin_params

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
REPAIR = RepairPolicy(enforce=True, repair_burst=True)


def read_tc(device: str) -> str:
    """Qdiscs and filters of a device, as ``tc`` prints them."""
    outputs = [run(f"tc qdisc show dev {device}")]
    outputs += [run(f"tc filter show dev {device} {hook}") for hook in ("ingress", "egress")]
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


def datagram_arrives(pod: NodePod) -> bool:
    """Whether a UDP datagram from the pod arrives at the host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((pod.host_address, 0))
        receiver.settimeout(0.5)
        port = receiver.getsockname()[1]
        send = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ({pod.host_address!r}, {port}))"
        subprocess.run(pod.command(sys.executable, "-c", send), check=True)
        try:
            return receiver.recv(9) == b"x"
        except TimeoutError:
            return False


@pytest.mark.parametrize("has_filter", [True, False])
def test_qdiscs_and_filters_of_others_stay_unchanged_over_ten_rounds(has_filter: bool) -> None:
    with node_pod(40) as pod:
        run(f"tc qdisc add dev {pod.host_device} clsact")
        if has_filter:
            attach_bpf_filter(pod.host_device, program_dropping_udp())
        spec = pod.spec(egress="10M")
        before = read_tc(pod.host_device)
        ours = plugin_ifb_name(NETWORK, pod.container)
        for _ in range(10):
            verdict = statuses_of_pod(enforce(spec, policy=REPAIR), pod)["egress"]
            if has_filter:
                assert (verdict.verdict, "bpf filter" in verdict.detail) == ("other-enforcer", True)
            else:
                assert verdict.verdict == "enforced"
                enforce(pod.spec(), policy=REPAIR)
            assert read_tc(pod.host_device) == before
            assert ours not in run("ip -br link")
        assert datagram_arrives(pod) is not has_filter


def test_a_drop_filter_that_is_added_later_still_drops() -> None:
    with node_pod(41) as pod:
        spec = pod.spec(egress="10M")
        assert statuses_of_pod(enforce(spec, policy=REPAIR), pod)["egress"].verdict == "enforced"
        assert datagram_arrives(pod)
        attach_bpf_filter(pod.host_device, program_dropping_udp())
        assert not datagram_arrives(pod)
        status = statuses_of_pod(enforce(spec, policy=REPAIR), pod)["egress"]
        assert (status.verdict, "pref" in status.detail) == ("enforced", True)
        assert not datagram_arrives(pod)


def test_a_failed_repair_leaves_no_qdisc_and_no_filter() -> None:
    with node_pod(44) as pod:
        ours, index = plugin_ifb_name(NETWORK, pod.container), socket.if_nametoindex(pod.host_device)
        before = read_tc(pod.host_device)
        bare = SetEgressLimit(index, pod.host_device, ours, 1500, compute_plugin_params(10_000_000), "netaware:x")
        repair = msgspec.structs.replace(bare, add_ingress_qdisc=True)
        for failing in (
            msgspec.structs.replace(repair, stale_filter_priorities=(7,)),  # no filter has this preference
            msgspec.structs.replace(repair, alias="x" * 300),  # longer than the kernel allows
            msgspec.structs.replace(repair, device_index=999_999),
        ):
            with pytest.raises(KernelError):
                execute(failing)
            assert (read_tc(pod.host_device), ours in run("ip -br link")) == (before, False)
        # Planned before another program added its qdisc and filter.
        run(f"tc qdisc add dev {pod.host_device} clsact")
        attach_bpf_filter(pod.host_device, program_dropping_udp())
        before = read_tc(pod.host_device)
        with pytest.raises(KernelError):
            execute(repair)
        assert (read_tc(pod.host_device), ours in run("ip -br link")) == (before, False)
