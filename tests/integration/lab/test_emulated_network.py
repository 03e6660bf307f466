"""The emulated network has its configured delays, measured by datagrams, and links can be changed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyroute2 import IPRoute

from lab import namespaces
from lab.errors import WanError
from lab.network import WAN_DEVICE, LabNetwork
from lab.topology import Link
from lab.wan.control import WanControl
from tests.support.emulated_wan import emulated_wan

SO_RCVBUFFORCE = 33  # socket(7)
FAR_US, NEAR_US = 8000.0, 1000.0  # between zones, and inside a zone
pytestmark = pytest.mark.wan


class Wan(NamedTuple):
    """Nodes a1 and a2 of zone a, b1 of zone b, and the control of links."""

    network: LabNetwork
    control: WanControl

    def open_socket(self, name: str) -> socket.socket:
        """A UDP socket in a node's namespace, bound to its address."""
        (network,) = (network for network in self.network.node_networks if network.node.name == name)
        with namespaces.enter(network.netns):
            udp_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # Large enough for a burst of delayed packets; more than the system allows without privileges.
        udp_socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        udp_socket.bind((network.address, 0))
        udp_socket.settimeout(5.0)
        return udp_socket


@pytest.fixture
def wan(tmp_path: Path) -> Iterator[Wan]:
    links = [("a", "b", FAR_US), ("a", "a", NEAR_US), ("b", "b", NEAR_US)]
    with emulated_wan(tmp_path, {"a1": "a", "a2": "a", "b1": "b"}, links) as (network, control):
        yield Wan(network, control)
    assert not [name for name in namespaces.list_names() if name.startswith(f"netaware-{network.slot}-")]


def echo_datagrams(server: socket.socket, count: int) -> None:
    for _ in range(count):
        payload, sender = server.recvfrom(2048)
        server.sendto(payload, sender)


def measure_rtts_us(wan: Wan, origin: str, destination: str, count: int = 20) -> list[float]:
    """Round-trip times of datagrams that the other node echoes one after the other."""
    with wan.open_socket(origin) as client, wan.open_socket(destination) as server:
        thread = threading.Thread(target=echo_datagrams, args=(server, count), daemon=True)
        thread.start()
        rtts_us = []
        for number in range(count):
            sent_at_s = time.perf_counter()
            client.sendto(b"%d" % number, server.getsockname())
            assert client.recv(2048) == b"%d" % number
            rtts_us.append((time.perf_counter() - sent_at_s) * 1e6)
        thread.join(5)
    return rtts_us


def test_no_round_trip_is_shorter_than_the_configured_delay(wan: Wan) -> None:
    assert min(measure_rtts_us(wan, "a1", "b1")) >= FAR_US
    assert min(measure_rtts_us(wan, "b1", "a2")) >= FAR_US
    assert NEAR_US <= min(measure_rtts_us(wan, "a1", "a2")) < FAR_US


def test_a_change_of_a_link_applies_to_both_directions_at_once(wan: Wan) -> None:
    assert wan.control.change_link("b", "a", rtt_us=30_000.0) == Link(30_000.0)
    assert wan.control.read_links()["a", "b"] == Link(30_000.0)
    assert min(measure_rtts_us(wan, "a2", "b1", 5)) >= 30_000
    assert min(measure_rtts_us(wan, "b1", "a1", 5)) >= 30_000


def test_a_change_of_an_absent_link_or_to_a_jitter_beyond_the_delay_is_refused(wan: Wan) -> None:
    with pytest.raises(WanError, match="no link"):
        wan.control.change_link("a", "c", loss=1.0)
    with pytest.raises(WanError, match="more than the round"):
        wan.control.change_link("a", "b", jitter_us=FAR_US + 1)
    assert wan.control.read_links()["a", "b"] == Link(FAR_US)


def test_other_nodes_stay_connected_if_the_device_of_a_node_is_removed(wan: Wan) -> None:
    with namespaces.enter(wan.network.node_networks[1].netns), IPRoute() as netlink:
        netlink.link("del", index=netlink.link_lookup(ifname=WAN_DEVICE)[0])
    assert min(measure_rtts_us(wan, "a1", "b1", 5)) >= FAR_US
