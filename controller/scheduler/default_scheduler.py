"""A model of the default kube-scheduler's scores, as of 1.36.

NodeResourcesFit (LeastAllocated) and BalancedAllocation count 1 each, PodTopologySpread, InterPodAffinity and NodeAffinity 2,
TaintToleration 3. The model does not know images on nodes (ImageLocality), extenders and changed profiles. It scores all hosts, while
the scheduler samples clusters of more than 100.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from controller.cluster.eligibility import Constraints, compile_or_none, first_untolerated_taint, term_matches
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import GroupPodSpec, NodeSelector
from controller.cluster.requests import MAX_AMOUNT, Amounts, capacity_of, clamp_amount
from controller.scheduler.affinity import HOSTNAME_LABEL
from controller.scheduler.placement.problem import Bools, Floats, Ints
from kubekit.selectors import Selector
from netperf.contract import ZONE_LABEL

FLOOR = {"cpu": 100, "memory": 200 << 20}
"""Requests that LeastAllocated assumes for a pod without requests: 0.1 cores and 200 MiB."""
DEFAULT_SPREAD = ((HOSTNAME_LABEL, 3), (ZONE_LABEL, 5))
"""Topology keys and skews of the default spread constraints, for pods without constraints."""
_SPREAD, _AFFINITY, _TAINTS = 2, 2, 3


class DefaultSchedulerModel:
    """Scores hosts for one more pod.

    Args:
        hosts: every node, sorted by name; without pods.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._number_of = {host.name: number for number, host in enumerate(hosts)}
        self._have = np.array([[host.allocatable.get(r, 0) for r in FLOOR] for host in hosts], np.int64).reshape(-1, 2)
        self._asked, self._floored = np.zeros_like(self._have), np.zeros_like(self._have)
        self._domains: dict[str, tuple[Ints, int]] = {}
        self._has_soft_taints = any(host.prefer_no_schedule_taints for host in hosts)

    def add_pod(self, pod: PodInfo, node: str) -> None:
        """Add a pod to a host."""
        amounts = _of(pod.requests)
        self._add(self._number_of[node], amounts, _floored(amounts))

    def add_requests(self, node: str, amounts: Mapping[str, int]) -> None:
        """Add further pods to a host, given by their total requests."""
        self._add(self._number_of[node], _of(amounts), _of(amounts))

    def _add(self, number: int, asked: Ints, floored: Ints) -> None:
        for table, more in ((self._asked, asked), (self._floored, floored)):
            table[number] = np.clip(table[number] + more, -MAX_AMOUNT, MAX_AMOUNT)

    def scores(self, pod: PodInfo, siblings: Iterable[PodInfo], around: Iterable[PodInfo], eligible: Bools) -> Ints:
        """[host] the score for a pod.

        Args:
            pod: the pod; its current node does not count.
            siblings: other pods of its workload.
            around: other pods of its namespace.
            eligible: [host] whether it may take the pod; scores are normalised over eligible hosts, those of others are undefined.
        """
        spec, around, amounts = pod.constraints.spec, list(around), _of(pod.requests)
        total = self._least(_floored(amounts)) + _SPREAD * self._spread(spec, siblings, around, eligible)
        if amounts.any():
            total = total + self._balance(amounts)
        if self._has_soft_taints:
            untolerated = np.array([_count_untolerated(host, spec) for host in self._hosts], np.int64)
            total = total + _TAINTS * (100 - _share(untolerated, eligible))
        return total + _AFFINITY * (
            _share(self._node_affinity(spec), eligible) + self._pod_affinity(spec, around, eligible)
        )

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

    def _spread(
        self, spec: GroupPodSpec, siblings: Iterable[PodInfo], around: Sequence[PodInfo], eligible: Bools
    ) -> Ints:
        own = spec.topology_spread_constraints
        wishes: list[tuple[str, int, Iterable[PodInfo]]] = [
            (c.topology_key, c.max_skew, _matching(compile_or_none(c.label_selector), around))
            for c in own or ()
            if c.when_unsatisfiable == "ScheduleAnyway"
        ]
        if not own:
            siblings = list(siblings)
            wishes = [(key, skew, siblings) for key, skew in DEFAULT_SPREAD]
        raw = np.zeros(len(self._hosts))
        for key, skew, pods in wishes:
            raw += self._counts(key, pods, eligible) * math.log(self._size(key, eligible) + 2) + (skew - 1)
        rounded = np.round(raw).astype(np.int64)
        scale = rounded[eligible]
        most, least = (int(scale.max()), int(scale.min())) if len(scale) else (0, 0)
        if most == 0:
            return np.full(len(self._hosts), 100, np.int64)
        spread: Ints = 100 * (most + least - rounded) // most
        return spread

    def _counts(self, key: str, pods: Iterable[PodInfo], eligible: Bools) -> Floats:
        """[host] number of pods in its domain, without pods on hosts that are not eligible."""
        codes, known = self._domains_of(key)
        found = np.zeros(known + 1)
        for pod in pods:
            number = self._number_of.get(pod.node)
            if number is not None and pod.is_active and eligible[number]:
                found[codes[number]] += 1
        found[-1] = 0.0  # Hosts without the label are in no domain.
        return found[codes]

    def _size(self, key: str, eligible: Bools) -> int:
        """Number of domains that have eligible hosts."""
        codes, _ = self._domains_of(key)
        return np.unique(codes[eligible & (codes >= 0)]).size

    def _domains_of(self, key: str) -> tuple[Ints, int]:
        """[host] number of its domain, -1 without one; and the number of domains."""
        if key not in self._domains:
            known: dict[str, int] = {}
            labels = [host.labels.get(key) for host in self._hosts]
            codes = [-1 if label is None else known.setdefault(label, len(known)) for label in labels]
            self._domains[key] = np.array(codes, np.int64), len(known)
        return self._domains[key]

    def _node_affinity(self, spec: GroupPodSpec) -> Ints:
        own = spec.affinity.node_affinity if spec.affinity else None
        total = np.zeros(len(self._hosts), np.int64)
        for term in (own.preferred_during_scheduling_ignored_during_execution if own else None) or ():
            total += [term.weight * term_matches(term.preference, host.name, host.labels) for host in self._hosts]
        return total

    def _pod_affinity(self, spec: GroupPodSpec, around: Sequence[PodInfo], eligible: Bools) -> Ints:
        """The pod's preferences about other pods. Their preferences about it are left out: most of them are siblings with the same ones."""
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
                matching = _matching(compile_or_none(term.label_selector), around)
                raw += sign * wish.weight * self._counts(term.topology_key, matching, eligible)
        scale = raw[eligible]
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
    """Node of each pod, placed one after the other; empty where none fits. Ties are broken at random, as the scheduler does.

    Args:
        waiting: workload and pod; pods of one workload are spread.
        hosts: every node by name.
        used: node -> requests and host ports of the pods on it.
        chance: breaks ties.
        volumes: pod key -> node requirements of its volumes.
    """
    there = [hosts[name] for name in sorted(hosts)]
    model = DefaultSchedulerModel(there)
    free: dict[str, Ints] = {}
    for host in there:
        model.add_requests(host.name, used.get(host.name, {}))
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
        for resource, amount in pod.host_requests.items():
            if resource not in free:
                left = [capacity_of(resource, h.allocatable) - used.get(h.name, {}).get(resource, 0) for h in there]
                free[resource] = np.array([clamp_amount(value) for value in left], np.int64)
            if amount > 0:
                fits &= free[resource] >= clamp_amount(amount)
        if not fits.any():
            nodes.append("")
            continue
        around = [p for others in placed.values() for p in others if p.namespace == pod.namespace]
        scores = np.where(fits, model.scores(pod, placed[workload], around, fits), -1)
        best = int(chance.choice(np.flatnonzero(scores == scores.max()).tolist()))
        nodes.append(there[best].name)
        model.add_pod(pod, nodes[-1])
        placed[workload].append(msgspec.structs.replace(pod, node=nodes[-1]))
        for resource, amount in pod.host_requests.items():
            free[resource][best] -= clamp_amount(amount)
    return nodes


def _of(amounts: Mapping[str, int]) -> Ints:
    """Amounts of the resources that count, in the order of `FLOOR`."""
    return np.array([clamp_amount(amounts.get(resource, 0)) for resource in FLOOR], np.int64)


def _floored(amounts: Ints) -> Ints:
    floors = np.array([*FLOOR.values()], np.int64)
    floored: Ints = np.where(amounts == 0, floors, amounts)
    return floored


def _mean_of(scores: Ints, have: Ints) -> Ints:
    known = (have > 0).sum(axis=1)
    mean: Ints = np.where(have > 0, scores, 0).sum(axis=1) // np.maximum(known, 1)
    return mean


def _share(amounts: Ints, eligible: Bools) -> Ints:
    scale = amounts[eligible]
    most = int(scale.max()) if len(scale) else 0
    found: Ints = amounts * 100 // most if most else np.zeros(len(amounts), np.int64)
    return found


def _count_untolerated(host: Host, spec: GroupPodSpec) -> int:
    return sum(
        first_untolerated_taint((taint,), spec.tolerations) is not None for taint in host.prefer_no_schedule_taints
    )


def _matching(selector: Selector | None, pods: Iterable[PodInfo]) -> list[PodInfo]:
    return [pod for pod in pods if selector is not None and selector.matches(pod.labels)]
