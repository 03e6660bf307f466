"""A model of the default kube-scheduler's scores, as of 1.36: where it would place one more pod.

NodeResourcesFit (LeastAllocated) and BalancedAllocation count 1 each, PodTopologySpread, InterPodAffinity and NodeAffinity 2,
TaintToleration 3. Not known here: which images a node has (ImageLocality), extenders, and changed profiles; users of these scores
must compare them with what happens. Of more than 100 hosts the scheduler looks at a share.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from controller.cluster.eligibility import Constraints, first_untolerated_taint, selector_of, term_matches
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import DEFAULT_SCHEDULER, GroupPodSpec, NodeSelector
from controller.cluster.requests import MOST, Amounts, bounded, whole
from controller.scheduler.affinity import HOSTNAME_LABEL
from controller.scheduler.placement.problem import Bools, Floats, Ints
from kubekit.selectors import Selector
from netperf.contract import ZONE_LABEL

NAMES = frozenset({"", DEFAULT_SCHEDULER})
"""`spec.schedulerName` of pods that the stock scheduler places."""
FLOOR = {"cpu": 100, "memory": 200 << 20}
"""What a pod that requests nothing counts for LeastAllocated: 0.1 cores and 200 MiB."""
DEFAULT_SPREAD = ((HOSTNAME_LABEL, 3), (ZONE_LABEL, 5))
"""Keys and skews by which replicas of a workload are spread when their pods say nothing."""
_LEAST_SAMPLE, _SURE = 100, 0.99
_MOST_KEPT = 100
_MOST = 50
_SPREAD, _AFFINITY, _TAINTS = 2, 2, 3


class DefaultSchedulerModel:
    """The scores.

    Args:
        hosts: every node, sorted by name.
        pods: everything bound and not finished.
    """

    def __init__(self, hosts: Sequence[Host], pods: Iterable[PodInfo]) -> None:
        self._hosts = hosts
        self._number_of = {host.name: number for number, host in enumerate(hosts)}
        self._have = np.array([[host.allocatable.get(r, 0) for r in FLOOR] for host in hosts], np.int64).reshape(-1, 2)
        asked, floored = [[0, 0] for _ in hosts], [[0, 0] for _ in hosts]
        for pod in pods:
            number = self._number_of.get(pod.node)
            if number is None:
                continue
            for i, (resource, floor) in enumerate(FLOOR.items()):
                amount = pod.requests.get(resource, 0)
                asked[number][i] += amount
                floored[number][i] += amount or floor
        self._domains: dict[str, tuple[Ints, dict[str, int]]] = {}
        # A round of the descheduler asks for thousands of pods, most of them with the same requests and constraints as others.
        self._by_requests: dict[tuple[int, ...], Ints] = {}
        self._sizes: dict[tuple[str, int], tuple[Bools, int]] = {}
        self._unloved = any(host.prefer_no_schedule_taints for host in hosts)
        self._asked, self._floored = (_bounded(table).reshape(-1, 2) for table in (asked, floored))

    def count_pod(self, pod: PodInfo, node: str, sign: int = 1) -> None:
        """A pod comes to a host (1) or leaves it (-1)."""
        number = self._number_of.get(node)
        if number is not None:
            amounts = [bounded(pod.requests.get(resource, 0)) for resource in FLOOR]
            for table, more in ((self._asked, amounts), (self._floored, _floored(amounts))):
                table[number] = np.clip(table[number] + sign * np.array(more, np.int64), -MOST, MOST)
            self._by_requests.clear()

    def use(self, number: int, amounts: Mapping[str, int]) -> None:
        """A host has pods beside those that were given, of which only their requests together are known."""
        asked = np.array([bounded(amounts.get(resource, 0)) for resource in FLOOR], np.int64)
        for table in (self._asked, self._floored):
            table[number] = np.clip(table[number] + asked, -MOST, MOST)
        self._by_requests.clear()

    def scores(
        self, pod: PodInfo, siblings: Iterable[PodInfo], around: Iterable[PodInfo], among: Bools | None = None
    ) -> Ints:
        """[host] the score of a pod.

        Args:
            pod: the pod; where it is bound now does not count.
            siblings: other pods of its workload.
            around: other pods of its namespace.
            among: [host] those that may take it, whose best and worst the scheduler sets the scale by; scores of others mean
                nothing. All by default. An array that was given once is not to be written to.
        """
        if among is None:
            among = np.ones(len(self._hosts), np.bool_)
        spec = pod.constraints.spec
        around = list(around)
        total = self._by_resources(tuple(bounded(pod.requests.get(resource, 0)) for resource in FLOOR))
        total = total + _SPREAD * self._spread(spec, siblings, around, among)
        if self._unloved:
            unborne = np.array([_untolerated(host, spec) for host in self._hosts], np.int64)
            total = total + _TAINTS * (100 - _share(unborne, among))
        return total + _AFFINITY * (_share(self._liked(spec), among) + self._company(spec, around, among))

    def _by_resources(self, amounts: tuple[int, ...]) -> Ints:
        """[host] scores of LeastAllocated and BalancedAllocation. Read-only."""
        found = self._by_requests.get(amounts)
        if found is None:
            found = self._least(np.array(_floored(amounts), np.int64))
            if any(amounts):
                found = found + self._balance(np.array(amounts, np.int64))
            self._by_requests[amounts] = found
        return found

    def _least(self, wanted: Ints) -> Ints:
        used = self._floored + wanted
        free: Ints = np.where((self._have > 0) & (used <= self._have), self._have - used, 0)
        return _mean_of(free * 100 // np.maximum(self._have, 1), self._have)

    def _balance(self, wanted: Ints) -> Ints:
        def score(used: Ints) -> Ints:
            shares = np.minimum(used / np.maximum(self._have, 1), 1.0)
            spread = np.where((self._have > 0).all(axis=1), np.abs(shares[:, 0] - shares[:, 1]) / 2, 0.0)
            return ((1 - spread) * 100).astype(np.int64)

        found: Ints = 50 + (50 + score(self._asked + wanted) - score(self._asked)) // 2
        return found

    def _spread(self, spec: GroupPodSpec, siblings: Iterable[PodInfo], around: Sequence[PodInfo], among: Bools) -> Ints:
        own = spec.topology_spread_constraints
        wishes: list[tuple[str, int, Iterable[PodInfo]]] = [
            (c.topology_key, c.max_skew, _matching(selector_of(c.label_selector), around))
            for c in own or ()
            if c.when_unsatisfiable == "ScheduleAnyway"
        ]
        if not own:
            siblings = list(siblings)
            wishes = [(key, skew, siblings) for key, skew in DEFAULT_SPREAD]
        raw = np.zeros(len(self._hosts))
        for key, skew, pods in wishes:
            raw += self._counts(key, pods, among) * math.log(self._size(key, among) + 2) + (skew - 1)
        rounded = np.round(raw).astype(np.int64)
        scale = rounded[among]
        most, least = (int(scale.max()), int(scale.min())) if len(scale) else (0, 0)
        if most == 0:
            return np.full(len(self._hosts), 100, np.int64)
        spread: Ints = 100 * (most + least - rounded) // most
        return spread

    def _counts(self, key: str, pods: Iterable[PodInfo], among: Bools) -> Floats:
        """[host] pods in its domain, of those on hosts that may take the pod."""
        codes, known = self._domains_of(key)
        found = np.zeros(len(known) + 1)
        for pod in pods:
            number = self._number_of.get(pod.node)
            if number is not None and pod.is_active and among[number]:
                found[codes[number]] += 1
        found[-1] = 0.0  # hosts without the label are in no domain
        return found[codes]

    def _size(self, key: str, among: Bools) -> int:
        """Number of domains of the hosts that may take the pod."""
        # Kept beside the array itself: an array that is gone gives its id to another.
        kept = self._sizes.get((key, id(among)))
        if kept is not None:
            return kept[1]
        if key == HOSTNAME_LABEL:
            size = int(among.sum())
        else:
            codes, _ = self._domains_of(key)
            size = np.unique(codes[among & (codes >= 0)]).size
        if len(self._sizes) >= _MOST_KEPT:
            self._sizes.clear()
        self._sizes[key, id(among)] = among, size
        return size

    def _domains_of(self, key: str) -> tuple[Ints, dict[str, int]]:
        """[host] number of its domain, -1 without one, and the domains by name."""
        if key not in self._domains:
            known: dict[str, int] = {}
            labels = [host.labels.get(key) for host in self._hosts]
            codes = [-1 if label is None else known.setdefault(label, len(known)) for label in labels]
            self._domains[key] = np.array(codes, np.int64), known
        return self._domains[key]

    def _liked(self, spec: GroupPodSpec) -> Ints:
        own = spec.affinity.node_affinity if spec.affinity else None
        total = np.zeros(len(self._hosts), np.int64)
        for term in (own.preferred_during_scheduling_ignored_during_execution if own else None) or ():
            total += [term.weight * term_matches(term.preference, host.name, host.labels) for host in self._hosts]
        return total

    def _company(self, spec: GroupPodSpec, around: Sequence[PodInfo], among: Bools) -> Ints:
        """The pod's own preferences about others; those of others are mostly the same, since most are its siblings."""
        affinity = spec.affinity
        near = affinity.pod_affinity if affinity else None
        anti_affinity = affinity.pod_anti_affinity if affinity else None
        raw = np.zeros(len(self._hosts))
        for sign, wishes in (
            (1, near.preferred_during_scheduling_ignored_during_execution if near else None),
            (-1, anti_affinity.preferred_during_scheduling_ignored_during_execution if anti_affinity else None),
        ):
            for wish in wishes or ():
                term = wish.pod_affinity_term
                counts = self._counts(term.topology_key, _matching(selector_of(term.label_selector), around), among)
                raw += sign * wish.weight * counts
        scale = raw[among]
        if not len(scale) or scale.max() == scale.min():
            return np.zeros(len(self._hosts), np.int64)
        scaled: Ints = (100 * (raw - scale.min()) / (scale.max() - scale.min())).astype(np.int64)
        return scaled


def place(
    waiting: Sequence[tuple[str, PodInfo]],
    hosts: Mapping[str, Host],
    used: Mapping[str, Amounts],
    chance: random.Random,
    volumes: Mapping[str, Sequence[NodeSelector]] | None = None,
) -> list[str]:
    """Node of each pod, placed one after the other as given; an empty text where none fits. Among equals the scheduler draws lots.

    Args:
        waiting: workload and pod; pods of one workload are spread.
        hosts: every node by name.
        used: node -> requests of the pods on it, and the ports of it that they take.
        chance: decides between equally good nodes.
        volumes: pod key -> what its volumes demand of a node.
    """
    there = [hosts[name] for name in sorted(hosts)]
    stock = DefaultSchedulerModel(there, ())
    free: dict[str, Ints] = {}
    for number, host in enumerate(there):
        stock.use(number, used.get(host.name, {}))
    may: dict[tuple[Constraints, str], Bools] = {}
    placed: dict[str, list[PodInfo]] = defaultdict(list)
    nodes: list[str] = []
    for workload, pod in waiting:
        demands = (volumes or {}).get(pod.key, ())
        which = pod.constraints, pod.key if demands else ""
        if which not in may:
            refused = (pod.constraints.refusal(h.name, h.labels, h.taints, volumes=demands) for h in there)
            may[which] = np.array([not why for why in refused], np.bool_)
        fits = may[which].copy()
        for resource, amount in pod.asks.items():
            if resource not in free:
                left = [whole(resource, h.allocatable) - used.get(h.name, {}).get(resource, 0) for h in there]
                free[resource] = np.array([bounded(value) for value in left], np.int64)
            if amount > 0:
                fits &= free[resource] >= bounded(amount)
        if not fits.any():
            nodes.append("")
            continue
        around = [p for others in placed.values() for p in others if p.namespace == pod.namespace]
        scores = np.where(fits, stock.scores(pod, placed[workload], around, fits), -1)
        best = int(chance.choice(np.flatnonzero(scores == scores.max()).tolist()))
        nodes.append(there[best].name)
        stock.count_pod(pod, nodes[-1])
        placed[workload].append(msgspec.structs.replace(pod, node=nodes[-1]))
        for resource, amount in pod.asks.items():
            free[resource][best] -= bounded(amount)
    return nodes


def placement_probabilities(
    hosts: Sequence[Host], scores: Ints, fits: Callable[[Host], bool], *, near: int
) -> dict[str, float]:
    """Host -> chance that the scheduler takes it, the likeliest first; together nearly 1, or empty where nothing fits.

    Args:
        hosts: all, sorted by name.
        scores: [host].
        fits: whether the scheduler would let the pod onto a host.
        near: scores that differ by no more are taken for equal.
    """
    share = sampled_share(len(hosts))
    found: dict[str, float] = {}
    missed = 1.0
    for level in _levels(hosts, scores, fits, near):
        inside = 1.0 if share >= 1.0 else 1.0 - (1.0 - share) ** len(level)
        found.update(dict.fromkeys(level, missed * inside / len(level)))
        missed *= 1.0 - inside
        if missed <= 1.0 - _SURE or len(found) >= _MOST:
            break
    return found


def sampled_share(hosts: int) -> float:
    """Share of feasible hosts that the scheduler scores by default."""
    if hosts <= _LEAST_SAMPLE:
        return 1.0
    return max(_LEAST_SAMPLE / hosts, max(50 - hosts // 125, 5) / 100)


def _levels(hosts: Sequence[Host], scores: Ints, fits: Callable[[Host], bool], near: int) -> Iterator[list[str]]:
    """Hosts that fit, by levels of their scores, the best first; of many equal ones a sample."""
    order = np.argsort(-scores, kind="stable")
    sorted_scores = scores[order]
    at = 0
    while at < len(order):
        if not fits(hosts[order[at]]):
            at += 1
            continue
        end = int(np.searchsorted(-sorted_scores, near - sorted_scores[at], side="right"))
        step = max((end - at) // _MOST, 1)
        level = [hosts[number] for number in order[at:end:step].tolist()]
        yield [host.name for n, host in enumerate(level) if n == 0 or fits(host)]
        at = end


def _bounded(table: list[list[int]]) -> Ints:
    return np.array([[bounded(value) for value in row] for row in table], np.int64)


def _floored(amounts: Sequence[int]) -> list[int]:
    return [amount or floor for amount, floor in zip(amounts, FLOOR.values(), strict=True)]


def _mean_of(scores: Ints, have: Ints) -> Ints:
    known = (have > 0).sum(axis=1)
    mean: Ints = np.where(have > 0, scores, 0).sum(axis=1) // np.maximum(known, 1)
    return mean


def _share(amounts: Ints, among: Bools) -> Ints:
    scale = amounts[among]
    most = int(scale.max()) if len(scale) else 0
    found: Ints = amounts * 100 // most if most else np.zeros(len(amounts), np.int64)
    return found


def _untolerated(host: Host, spec: GroupPodSpec) -> int:
    return sum(
        first_untolerated_taint((taint,), spec.tolerations) is not None for taint in host.prefer_no_schedule_taints
    )


def _matching(selector: Selector | None, pods: Iterable[PodInfo]) -> list[PodInfo]:
    return [pod for pod in pods if selector is not None and selector.matches(pod.labels)]
