"""Enforcing beside other programs that use the same devices: what they attached stays bit by bit, and sees its packets.

Filters, programs and devices are the kernel's; the programs are a few instructions each, where other agents' are long.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import msgspec
import pytest
from pyroute2 import IPRoute

from agent.bandwidth.rules import Policy, plugin_ifb_name
from agent.bandwidth.state import INGRESS_HOOK, LimitEgress
from agent.bandwidth.tbf import bounded_params
from agent.netlink import KernelError
from tests.integration.agent.bpf_programs import NEXT, dropping_udp, loaded, returning
from tests.integration.agent.pods_on_node import NETWORK, NodePod, enforce, execute, node_pod, of_pod, plan, run
from tests.support.plugin_bucket import plugin_shape

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
REPAIR = Policy(enforce=True, repair_burst=True)


def attached(device: str) -> str:
    """All that ``tc`` shows on a device."""
    shown = [run(f"tc qdisc show dev {device}")]
    shown += [run(f"tc filter show dev {device} {hook}") for hook in ("ingress", "egress")]
    return "".join(shown)


def attach_bpf_filter(device: str, program: bytes) -> None:
    """A direct-action BPF filter on what a device receives, as the AWS network policy agent and netobserv attach them."""
    with loaded(program, "foreign") as descriptor, IPRoute() as netlink:
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
    """Whether a UDP datagram from the pod reaches the host."""
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


@pytest.mark.parametrize("stranger", ["drop filter", "bpf filter", "empty clsact"])
def test_what_others_attached_survives_ten_rounds_bit_by_bit(stranger: str) -> None:
    with node_pod(40) as pod:
        run(f"tc qdisc add dev {pod.host_device} clsact")
        if stranger == "drop filter":
            attach_bpf_filter(pod.host_device, dropping_udp())
        elif stranger == "bpf filter":
            attach_bpf_filter(pod.host_device, returning(NEXT))
        spec = pod.spec(egress="10M")
        before = attached(pod.host_device)
        ours = plugin_ifb_name(NETWORK, pod.container)
        for _ in range(10):
            verdict = of_pod(enforce(spec, policy=REPAIR), pod)["egress"]
            if stranger == "empty clsact":
                assert verdict.verdict == "enforced"
                enforce(pod.spec(), policy=REPAIR)
            else:
                assert verdict.verdict == "other-enforcer"
                assert stranger.rpartition(" ")[2] in verdict.detail
            assert attached(pod.host_device) == before
            assert ours not in run("ip -br link")
        if stranger == "drop filter":
            assert not datagram_arrives(pod)


def test_a_drop_filter_that_comes_later_still_drops() -> None:
    with node_pod(41) as pod:
        spec = pod.spec(egress="10M")
        assert of_pod(enforce(spec, policy=REPAIR), pod)["egress"].verdict == "enforced"
        assert datagram_arrives(pod)
        attach_bpf_filter(pod.host_device, dropping_udp())
        assert not datagram_arrives(pod)
        found = of_pod(enforce(spec, policy=REPAIR), pod)["egress"]
        assert (found.verdict, "pref" in found.detail) == ("enforced", True)
        assert not datagram_arrives(pod)


@pytest.mark.parametrize("kind", ["ingress", "clsact"])
def test_a_correct_limit_is_enforced_on_ingress_and_on_clsact(kind: str) -> None:
    with node_pod(43) as pod:
        ours = plugin_ifb_name(NETWORK, pod.container)
        run(f"tc qdisc add dev {pod.host_device} {kind}")
        run(f"ip link add {ours} type ifb")
        run(f"ip link set {ours} up")
        params = bounded_params(10_000_000, 1500)
        run(
            f"tc qdisc add dev {ours} root handle 1: tbf rate 10mbit burst {params.burst_bytes} limit {params.limit_bytes}"
        )
        redirect = f"u32 match u32 0 0 action mirred egress redirect dev {ours}"
        run(f"tc filter add dev {pod.host_device} ingress protocol all pref 1 {redirect}")
        found = plan(pod.spec(egress="10M"))
        assert [(j.verdict, j.device) for j in found.statuses] == [("enforced", ours)]
        # Gone but for the hook, it is repaired on both.
        run(f"tc filter del dev {pod.host_device} ingress")
        assert of_pod(enforce(pod.spec(egress="10M"), policy=REPAIR), pod)["egress"].verdict == "enforced"
        assert kind in run(f"tc qdisc show dev {pod.host_device}")


def test_a_repair_that_fails_leaves_nothing_behind() -> None:
    with node_pod(44) as pod:
        ours, index = plugin_ifb_name(NETWORK, pod.container), socket.if_nametoindex(pod.host_device)
        before = attached(pod.host_device)
        bare = LimitEgress(index, pod.host_device, ours, 1500, plugin_shape(10_000_000, 536_870_911), "netaware:x")
        repair = msgspec.structs.replace(bare, add_ingress_qdisc=True)
        for failing in (
            msgspec.structs.replace(repair, stale_filters=(7,)),  # no filter has this preference
            msgspec.structs.replace(repair, alias="x" * 300),  # longer than the kernel allows
            msgspec.structs.replace(repair, device=999_999),
        ):
            with pytest.raises(KernelError):
                execute(failing)
            assert (attached(pod.host_device), ours in run("ip -br link")) == (before, False)
        # Planned before another program added its qdisc and filter.
        run(f"tc qdisc add dev {pod.host_device} clsact")
        attach_bpf_filter(pod.host_device, dropping_udp())
        before = attached(pod.host_device)
        with pytest.raises(KernelError):
            execute(repair)
        assert (attached(pod.host_device), ours in run("ip -br link")) == (before, False)
