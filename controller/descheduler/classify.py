"""Which nodes are hot, which have room, and by which thresholds (docs/contracts, section 11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from controller.descheduler.amounts import RESOURCES, percents, weighted_percent
from controller.descheduler.args import LowNodeLoad, Pool
from controller.descheduler.objects import NodeInfo

Class = Literal["over", "under", "normal", "unknown"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Percent by resource that hold for every node of a pool in this round."""

    low: Mapping[str, float]
    high: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Load:
    """One node's load.

    Attributes:
        used: amounts in use, of resources with a threshold.
        share: the same in percent of allocatable.
        exceeded: resources above the high threshold.
        load: mean of the shares by weight, for sorting.
    """

    node: NodeInfo
    pool: Pool
    thresholds: Thresholds
    kind: Class
    used: Mapping[str, float]
    share: Mapping[str, float]
    exceeded: tuple[str, ...]
    load: float


def assign(nodes: Iterable[NodeInfo], pools: Iterable[Pool]) -> dict[str, list[NodeInfo]]:
    """Pool name -> its nodes, by name; a node belongs to the first pool that selects it, or to none."""
    pools = tuple(pools)
    found: dict[str, list[NodeInfo]] = {pool.name: [] for pool in pools}
    for node in sorted(nodes, key=lambda node: node.name):
        pool = next((pool for pool in pools if pool.selector.matches(node.labels)), None)
        if pool is not None:
            found[pool.name].append(node)
    return found


def thresholds_of(pool: Pool, shares: Iterable[Mapping[str, float]]) -> Thresholds:
    """The pool's thresholds; with deviation, ``mean - low`` and ``mean + high``, within 0 and 100.

    Args:
        pool: its settings.
        shares: percent by resource of every node of the pool whose usage is known.
    """
    if not pool.deviation:
        return Thresholds(pool.low, pool.high)
    shares = tuple(shares)
    low, high = {}, {}
    for resource in pool.high:
        known = [share[resource] for share in shares if resource in share]
        mean = sum(known) / len(known) if known else 0.0
        low[resource] = min(100.0, max(0.0, mean - pool.low[resource]))
        high[resource] = min(100.0, max(0.0, mean + pool.high[resource]))
    return Thresholds(low, high)


def classify(load: LowNodeLoad, nodes: Iterable[NodeInfo], usage: Mapping[str, Mapping[str, float]]) -> list[Load]:
    """Judge every node of every pool, in order of pools and names.

    A node is over with any resource above high; under with all at or below low, schedulable and ready; unknown when usage of
    a resource with a threshold is missing, since half a picture may hide the hot half. A resource that the node does not have
    (no bandwidth is published for it) is not asked for.
    """
    found: list[Load] = []
    for name, members in assign(nodes, load.pools).items():
        pool = next(pool for pool in load.pools if pool.name == name)
        used = {
            node.name: {r: usage[node.name][r] for r in _asked(pool, node) if r in usage[node.name]}
            for node in members
            if node.name in usage
        }
        shares = {node.name: percents(used[node.name], node.allocatable) for node in members if node.name in used}
        thresholds = thresholds_of(pool, shares.values())
        found += [judge(node, pool, thresholds, used.get(node.name, {}), shares.get(node.name, {})) for node in members]
    return found


def judge(
    node: NodeInfo, pool: Pool, thresholds: Thresholds, used: Mapping[str, float], share: Mapping[str, float]
) -> Load:
    """Judge one node."""
    weight = weighted_percent(share, pool.weights)
    if not share or len(share) < len(_asked(pool, node)):
        return Load(node, pool, thresholds, "unknown", used, share, (), weight)
    exceeded = tuple(r for r in RESOURCES if r in share and share[r] > thresholds.high[r])
    low = all(share[resource] <= thresholds.low[resource] for resource in share)
    kind: Class = "over" if exceeded else "under" if low and node.schedulable and node.ready else "normal"
    return Load(node, pool, thresholds, kind, used, share, exceeded, weight)


def _asked(pool: Pool, node: NodeInfo) -> list[str]:
    return [resource for resource in pool.high if node.allocatable.get(resource, 0) > 0]


def describe_overload(share: Mapping[str, float], high: Mapping[str, float], exceeded: Iterable[str]) -> str:
    """The reason that users know: ``node is overutilized, node cpu usage(75.12%)>threshold(70.00%)``."""
    parts = [f"node {resource} usage({share[resource]:.2f}%)>threshold({high[resource]:.2f}%)" for resource in exceeded]
    return "node is overutilized, " + ", ".join(parts)
