"""Hosts that a plan cannot tell apart: of ten thousand in a few sizes, it needs to look at no more of each kind than it has pods.

Two hosts are alike when they are in the same place, have the same labels but for their names, the same taints, and the same
amounts, free and taken. A group of n pods can use at most n of them, so leaving out the others changes no plan's worth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from controller.cluster.hosts import Host
from controller.cluster.pods import GroupPod, NodeSelector
from controller.cluster.requests import Amounts
from controller.scheduler.affinity import HOSTNAME_LABEL

_NAMES = (HOSTNAME_LABEL.encode(), b"matchFields")


class Alike:
    """The kinds of hosts, kept up to date host by host."""

    def __init__(self) -> None:
        self._kind_of: dict[str, Hashable] = {}
        self._members: dict[Hashable, dict[str, None]] = defaultdict(dict)

    def take(self, name: str, host: Host | None, used: Mapping[str, int]) -> None:
        """A host came, changed, or is gone (None)."""
        before = self._kind_of.pop(name, None)
        if before is not None:
            self._members[before].pop(name, None)
            if not self._members[before]:
                del self._members[before]
        if host is None:
            return
        labels = frozenset(item for item in host.labels.items() if item[1] != name)
        kind = (
            host.location,
            labels,
            host.taints,
            _fixed(host.allocatable),
            _fixed(used),
            host.schedulable,
            host.ready,
            host.closing,
        )
        self._kind_of[name] = kind
        self._members[kind][name] = None

    def enough(self, count: int, always: Collection[str]) -> list[str]:
        """Names of those that are always to be there, and of at most so many others of each kind.

        Others, since of a host that is spoken of more is known than its kind: it was refused, or promised to another group.
        """
        spoken_of = {name for name in always if name in self._kind_of}
        found = set(spoken_of)
        for members in self._members.values():
            found.update(islice((name for name in members if name not in spoken_of), count))
        return sorted(found)


def _fixed(amounts: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset(item for item in amounts.items() if item[1])


def names_hosts(pods: Iterable[GroupPod], volumes: Iterable[Sequence[NodeSelector]] = ()) -> bool:
    """Whether any pod, or what its volumes demand, asks for hosts by name, for which no two are alike."""
    if any(name in msgspec.json.encode(demands) for demands in volumes for name in _NAMES):
        return True
    for pod in pods:
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        asked = msgspec.json.encode((pod.spec.node_selector, affinity)) if pod.spec.node_selector or affinity else b""
        if any(name in asked for name in _NAMES):
            return True
    return False


def part_of(
    hosts: Mapping[str, Host], used: Mapping[str, Amounts], names: Iterable[str]
) -> tuple[dict[str, Host], dict[str, Amounts]]:
    """The same cluster with these hosts alone."""
    chosen = {name: hosts[name] for name in names}
    return chosen, {name: used[name] for name in chosen if name in used}
