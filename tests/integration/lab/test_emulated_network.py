"""The emulated network has its configured delays, measured by UDP datagrams."""

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

ROOT = Path(__file__).parents[3]
SO_RCVBUFFORCE = 33  # socket(7)
FAR_US, NEAR_US = 8000.0, 1000.0
pytestmark = pytest.mark.wan


class Wan(NamedTuple):
    """Nodes a1 and a2 of zone a, b1 of zone b, and the control of links."""

    network: LabNetwork
    control: WanControl

    def socket_on(self, name: str) -> socket.socket:
        """A UDP socket in the node's namespace, bound to its address."""
        node = next(n for n in self.network.node_networks if n.node.name == name)
        with namespaces.enter(node.netns):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # Large enough for a burst of delayed packets; more than the system allows without privileges.
        sender.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        sender.bind((node.address, 0))
        sender.settimeout(5.0)
        return sender


@pytest.fixture
def wan(tmp_path: Path) -> Iterator[Wan]:
    links = [("a", "b", FAR_US), ("a", "a", NEAR_US), ("b", "b", NEAR_US)]
    with emulated_wan(tmp_path, {"a1": "a", "a2": "a", "b1": "b"}, links) as (network, control):
        yield Wan(network, control)
    assert not [name for name in namespaces.list_names() if name.startswith(f"netaware-{network.slot}-")]


def round_trips_us(wan: Wan, origin: str, destination: str, count: int = 20) -> list[float]:
    """Round-trip times of datagrams that the other node echoes one after the other."""
    with wan.socket_on(origin) as near, wan.socket_on(destination) as far:

        def send_back() -> None:
            for _ in range(count):
                data, sender = far.recvfrom(2048)
                far.sendto(data, sender)

        thread = threading.Thread(target=send_back, daemon=True)
        thread.start()
        durations_us = []
        for number in range(count):
            started = time.perf_counter()
            near.sendto(b"%d" % number, far.getsockname())
            assert near.recv(2048) == b"%d" % number
            durations_us.append((time.perf_counter() - started) * 1e6)
        thread.join(5)
    return durations_us


def test_no_round_trip_is_shorter_than_the_configured_delay(wan: Wan) -> None:
    assert min(round_trips_us(wan, "a1", "b1")) >= FAR_US
    assert min(round_trips_us(wan, "b1", "a2")) >= FAR_US
    assert NEAR_US <= min(round_trips_us(wan, "a1", "a2")) < FAR_US


def test_a_change_of_a_link_applies_to_both_directions_at_once(wan: Wan) -> None:
    assert wan.control.change_link("b", "a", rtt_us=30_000.0) == Link(30_000.0)
    for pair, changes, message in (
        ("ac", {"loss": 1.0}, "no link"),
        ("ab", {"jitter_us": 30_001.0}, "more than the round"),
    ):
        with pytest.raises(WanError, match=message):
            wan.control.change_link(*pair, **changes)
    assert wan.control.read_links()["a", "b"] == Link(30_000.0)
    assert min(round_trips_us(wan, "a2", "b1", 5)) >= 30_000
    assert min(round_trips_us(wan, "b1", "a1", 5)) >= 30_000


def test_other_nodes_stay_connected_if_the_device_of_a_node_is_removed(wan: Wan) -> None:
    with namespaces.enter(wan.network.node_networks[1].netns), IPRoute() as netlink:
        netlink.link("del", index=netlink.link_lookup(ifname=WAN_DEVICE)[0])
    assert min(round_trips_us(wan, "a1", "b1", 5)) >= FAR_US
