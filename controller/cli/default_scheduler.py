"""Where a stock kube-scheduler would put pods: a model of its default scoring, for comparison only.

Pods are placed one by one, in the order in which they were given, on the feasible node with the highest score; among equals
by lot, as kube-scheduler does. Modelled are NodeResourcesFit (LeastAllocated), BalancedAllocation and the default spreading of
a workload's replicas over hosts and zones; not modelled are image locality, volumes and user-written wishes. The network plays
no part in it, which is the point.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from controller.scheduler.eligibility import may_run_on, tolerated
from controller.scheduler.fleet import Host
from controller.scheduler.pods import GroupPodSpec
from controller.scheduler.requests import Amounts

SCORED = ("cpu", "memory")
SPREAD_WEIGHT = 2
LEAST = {"cpu": 100, "memory": 200 << 20}
"""What kube-scheduler assumes for the score of a pod that requests nothing: 0.1 cores and 200 MiB."""


class Waiting(msgspec.Struct, frozen=True):
    """A replica to place: its workload, its spec, and what it requests."""

    workload: str
    spec: GroupPodSpec
    requests: Amounts


def place(
    waiting: Sequence[Waiting], hosts: Mapping[str, Host], used: Mapping[str, Amounts], chance: random.Random
) -> list[str]:
    """Node of each replica, in the order given; an empty text where none fits.

    Args:
        waiting: the replicas.
        hosts: every node by name.
        used: node -> requests of the pods on it.
        chance: decides between equally good nodes.
    """
    taken: dict[str, Amounts] = {name: dict(used.get(name, {})) for name in hosts}
    replicas: dict[str, Counter[str]] = defaultdict(Counter)
    nodes: list[str] = []
    for replica in waiting:
        feasible = [host for host in hosts.values() if _fits(replica, host, taken[host.name])]
        if not feasible:
            nodes.append("")
            continue
        scores = _scores(replica, feasible, taken, replicas[replica.workload], hosts)
        best = max(scores.values())
        chosen = chance.choice(sorted(name for name, score in scores.items() if score == best))
        nodes.append(chosen)
        replicas[replica.workload][chosen] += 1
        for name, value in replica.requests.items():
            taken[chosen][name] = taken[chosen].get(name, 0) + value
    return nodes


def _fits(replica: Waiting, host: Host, taken: Amounts) -> bool:
    if not tolerated(host.taints, replica.spec.tolerations) or not may_run_on(replica.spec, host.name, host.labels):
        return False
    return all(value <= host.allocatable.get(name, 0) - taken.get(name, 0) for name, value in replica.requests.items())


def _scores(
    replica: Waiting,
    feasible: Sequence[Host],
    taken: Mapping[str, Amounts],
    replicas: Counter[str],
    hosts: Mapping[str, Host],
) -> dict[str, int]:
    zones: Counter[str] = Counter()
    for node, count in replicas.items():
        zones[hosts[node].location.zone] += count
    crowd = {host.name: replicas[host.name] + zones[host.location.zone] for host in feasible}
    worst = max(crowd.values())
    scores: dict[str, int] = {}
    for host in feasible:
        shares = [_share(replica, host, taken[host.name], resource) for resource in SCORED]
        least = sum(100 * (1 - share) for share in shares) / len(shares)
        balanced = 100 * (1 - (max(shares) - min(shares)) / 2)
        spread = 100 * (worst - crowd[host.name]) / worst if worst else 100
        scores[host.name] = int(least) + int(balanced) + SPREAD_WEIGHT * int(spread)
    return scores


def _share(replica: Waiting, host: Host, taken: Amounts, resource: str) -> float:
    """Requested over allocatable once the replica is there, at most 1."""
    have = host.allocatable.get(resource, 0)
    wanted = taken.get(resource, 0) + (replica.requests.get(resource) or LEAST[resource])
    return min(1.0, wanted / have) if have else 1.0
