"""The emulated network in the kernel: netem on the nodes' own devices, where the kernel has it.

On each node's device an HTB qdisc sorts packets by destination node into one class per site, and each class ends in a netem
that holds packets for their delay. netem's rate is always set, because with one it keeps packets in order (tc-netem(8)); it
applies per sending node, where the user-space network shares a link's rate among the nodes of a zone.
"""

from __future__ import annotations

import ipaddress
import select
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_NEWQDISC
from pyroute2.netlink.rtnl.tcmsg import sched_netem, tcmsg

from lab import namespaces
from lab.network import index_of
from lab.topology import Link
from lab.wan.delays import MAX_BACKLOG_S, MAX_PACKETS
from lab.wan.plan import Answer, WanLink, WanPlan

_ROOT = 0x10000
_LEAF_MAJOR = 0x100
# Bytes per second that stand for no limit, and the most that netem's field of 32 bits holds.
_UNLIMITED, _MOST = 1_250_000_000, 2**32 - 1
_MTU = 1500
# By version of IP: its number on the wire, and where a header has the destination.
_ETH_P = {4: 0x0800, 6: 0x86DD}
_OFFSET_OF_DESTINATION = {4: 16, 6: 24}


class NetemNetwork:
    """Qdiscs of every node, and their changes. Raises OSError when the kernel refuses."""

    def __init__(self, plan: WanPlan) -> None:
        self._plan = plan
        self._sites = list(dict.fromkeys(node.site for node in plan.nodes))
        links = {direction: link for link in plan.links for direction in link.directions}
        for node in plan.nodes:
            with namespaces.entered(node.netns), IPRoute() as inside:
                index = index_of(inside, plan.device)
                _call(inside.tc, "add", "htb", index, _ROOT, default=0)
                for number, site in enumerate(self._sites, 1):
                    options = {"rate": _UNLIMITED, "quantum": 60_000}
                    _call(inside.tc, "add-class", "htb", index, _ROOT + number, parent=_ROOT, **options)
                    self._set(inside, "add", index, number, links[node.site, site])
                for other in plan.nodes:
                    for destination in (other.address, *other.behind):
                        _call(_sort, inside, index, destination, _ROOT + self._sites.index(other.site) + 1)

    def change(self, link: WanLink) -> None:
        """Set the netem of every node at either end of the link."""
        for node in self._plan.nodes:
            for here, there in link.directions:
                if node.site == here:
                    with namespaces.entered(node.netns), IPRoute() as inside:
                        number = self._sites.index(there) + 1
                        self._set(inside, "change", index_of(inside, self._plan.device), number, link)

    def counters(self) -> Answer:
        """Sums over all nodes. netem counts what it loses on purpose and what it has no room for as one: both are ``lost``."""
        forwarded = lost = 0
        for node in self._plan.nodes:
            with namespaces.entered(node.netns), IPRoute() as inside:
                for qdisc in inside.get_qdiscs(index_of(inside, self._plan.device)):
                    if qdisc.get_attr("TCA_KIND") == "netem":
                        stats = qdisc.get_attr("TCA_STATS2")
                        forwarded += stats.get_attr("TCA_STATS_BASIC")["packets"]
                        lost += stats.get_attr("TCA_STATS_QUEUE")["drops"]
        return Answer(forwarded=forwarded, lost=lost)

    def run(self, control: Any) -> None:
        """Only serve the control socket: the kernel does the rest."""
        while True:
            select.select([control.fileno()], [], [])
            control.serve()

    @staticmethod
    def _set(inside: IPRoute, verb: str, index: int, number: int, link: WanLink) -> None:
        handle = (_LEAF_MAJOR + number) << 16
        _call(_put_netem, inside, verb, index, handle, parent=_ROOT + number, options=netem_options(link))


def netem_options(link: WanLink) -> dict[str, Any]:
    """Half of a link as netem wants it: microseconds, per cent, bytes per second, packets.

    netem spreads evenly over delay ± jitter; ours is the shortest delay plus up to the jitter, so the middle moves up.
    """
    one_way = link.one_way()
    half_spread_us = one_way.jitter_s * 1e6 / 2
    rate = _UNLIMITED if one_way.rate_bps is None else min(max(1, one_way.rate_bps // 8), _MOST)
    room = MAX_PACKETS if one_way.rate_bps is None else int(rate * (one_way.delay_s + MAX_BACKLOG_S) / _MTU) + 2
    return {
        "delay": one_way.delay_s * 1e6 + half_spread_us,
        "jitter": half_spread_us,
        "loss": one_way.loss * 100,
        "rate": rate,
        "limit": min(room, MAX_PACKETS),
    }


def is_available() -> bool:
    """Whether this kernel takes everything that NetemNetwork sets up; tried on the loopback of a namespace of its own."""
    try:
        with namespaces.scratch(), IPRoute() as inside:
            index = index_of(inside, "lo")
            inside.tc("add", "htb", index, _ROOT, default=0)
            inside.tc("add-class", "htb", index, _ROOT + 1, parent=_ROOT, rate=_UNLIMITED, quantum=60_000)
            options = netem_options(WanLink("a", "b", Link(1000.0, 10.0, 0.1)))
            _put_netem(inside, "add", index, _LEAF_MAJOR << 16, parent=_ROOT + 1, options=options)
            for destination in ("127.0.0.1", "::1"):
                _sort(inside, index, destination, _ROOT + 1)
    except (NetlinkError, OSError):
        return False
    return True


def _sort(inside: IPRoute, index: int, destination: str, target: int) -> None:
    """Send packets to an address, or to a range in CIDR notation, into a class."""
    network = ipaddress.ip_network(destination)
    address, mask = network.network_address.packed, network.netmask.packed
    keys = [
        f"{int.from_bytes(address[i : i + 4]):#010x}/{int.from_bytes(mask[i : i + 4]):#010x}"
        f"+{_OFFSET_OF_DESTINATION[network.version] + i}"
        for i in range(0, len(address), 4)
        if any(mask[i : i + 4])
    ]
    # The filters of one priority are for one protocol.
    order, protocol = network.version, _ETH_P[network.version]
    inside.tc("add-filter", "u32", index, parent=_ROOT, prio=order, protocol=protocol, target=target, keys=keys)


def _put_netem(inside: IPRoute, verb: str, index: int, handle: int, *, parent: int, options: dict[str, Any]) -> None:
    """Add or change a netem qdisc. Built by hand, since pyroute2's tc() takes netem's rate for the rate estimator's too."""
    message = tcmsg()
    message["index"], message["handle"], message["parent"] = index, handle, parent
    fields = sched_netem.get_parameters(options)
    # Ticks of 64 ns, which pyroute2 leaves as fractions.
    fields |= {name: round(fields[name]) for name in ("delay", "jitter", "loss")}
    message["attrs"] = [("TCA_KIND", "netem"), ("TCA_OPTIONS", fields)]
    # nlm_request() of pyroute2 0.9 looks for this setting, which an IPRoute does not carry.
    inside.status.setdefault("nlm_generator", False)
    create = NLM_F_CREATE | NLM_F_EXCL if verb == "add" else 0
    inside.nlm_request(message, msg_type=RTM_NEWQDISC, msg_flags=NLM_F_REQUEST | NLM_F_ACK | create)


def _call(function: Any, *args: Any, **kwargs: Any) -> None:
    try:
        function(*args, **kwargs)
    except NetlinkError as error:
        raise OSError(error.code, f"netlink: {error}") from error
