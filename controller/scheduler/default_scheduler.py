"""A model of the default kube-scheduler's scores, as of 1.36.

NodeResourcesFit (LeastAllocated) and BalancedAllocation count 1 each, PodTopologySpread, InterPodAffinity and NodeAffinity 2,
TaintToleration 3. The model leaves out images on nodes (ImageLocality), extenders and changed profiles. It scores all hosts, while the
scheduler samples clusters of more than 100.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from controller.cluster.eligibility import Constraints, first_untolerated_taint, term_matches
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import NodeSelector, PodSpec
from controller.cluster.resource_requests import MAX_AMOUNT, Amounts, capacity_of, limit_amount
from controller.scheduler.affinity import HOSTNAME_LABEL
from controller.scheduler.placement.problem import Bools, Floats, Ints
from kubekit.selectors import Selector, compile_or_none
from netperf.contract import ZONE_LABEL

DEFAULT_REQUESTS = {"cpu": 100, "memory": 200 << 20}
"""Requests that LeastAllocated assumes for a pod without requests: 0.1 cores and 200 MiB."""
DEFAULT_SPREAD_CONSTRAINTS = ((HOSTNAME_LABEL, 3), (ZONE_LABEL, 5))
"""Topology keys and skews of the default spread constraints, for pods without constraints."""
_SPREAD_WEIGHT, _AFFINITY_WEIGHT, _TAINT_WEIGHT = 2, 2, 3


class DefaultSchedulerModel:
    """Scores hosts for a pod.

    Args:
        hosts: every node, sorted by name; `add_pod` and `add_requests` add pods.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._number_of = {host.name: number for number, host in enumerate(hosts)}
        self._allocatable = np.array(
            [[host.allocatable.get(r, 0) for r in DEFAULT_REQUESTS] for host in hosts], np.int64
        ).reshape(-1, 2)
        self._requested, self._scored_requests = np.zeros_like(self._allocatable), np.zeros_like(self._allocatable)
        self._domains: dict[str, tuple[Ints, int]] = {}
        self._has_soft_taints = any(host.prefer_no_schedule_taints for host in hosts)

    def add_pod(self, pod: PodInfo, node: str) -> None:
        """Add a pod to a host."""
        requests = _array_of(pod.requests)
        self._add(node, requests, _with_defaults(requests))

    def add_requests(self, node: str, amounts: Mapping[str, int]) -> None:
        """Add pods to a host by their total requests."""
        self._add(node, _array_of(amounts), _array_of(amounts))

    def _add(self, node: str, requests: Ints, scored_requests: Ints) -> None:
        number = self._number_of[node]
        for table, added in ((self._requested, requests), (self._scored_requests, scored_requests)):
            table[number] = np.clip(table[number] + added, -MAX_AMOUNT, MAX_AMOUNT)

    def scores(
        self, pod: PodInfo, siblings: Iterable[PodInfo], namespace_pods: Iterable[PodInfo], eligible: Bools
    ) -> Ints:
        """[host] the score for a pod.

        Args:
            pod: the pod; its current node does not count.
            siblings: other pods of its workload.
            namespace_pods: other pods of its namespace.
            eligible: [host] whether it may take the pod; scores are normalised over eligible hosts, and undefined for others.
        """
        spec, namespace_pods, requests = pod.constraints.spec, list(namespace_pods), _array_of(pod.requests)
        affinity = _scale_to_100(self._node_affinity(spec), eligible)
        affinity = affinity + self._pod_affinity(spec, namespace_pods, eligible)
        total = self._least_allocated(_with_defaults(requests)) + _AFFINITY_WEIGHT * affinity
        total = total + _SPREAD_WEIGHT * self._spread(spec, siblings, namespace_pods, eligible)
        if requests.any():
            total = total + self._balanced_allocation(requests)
        if self._has_soft_taints:
            untolerated = np.array([_count_untolerated(host, spec) for host in self._hosts], np.int64)
            total = total + _TAINT_WEIGHT * (100 - _scale_to_100(untolerated, eligible))
        return total

    def _least_allocated(self, requests: Ints) -> Ints:
        used, has_resource = self._scored_requests + requests, self._allocatable > 0
        free = np.where(has_resource & (used <= self._allocatable), self._allocatable - used, 0)
        scores = free * 100 // np.maximum(self._allocatable, 1)
        mean: Ints = scores.sum(axis=1) // np.maximum(has_resource.sum(axis=1), 1)
        return mean

    def _balanced_allocation(self, requests: Ints) -> Ints:
        def score(used: Ints) -> Ints:
            shares = np.minimum(used / np.maximum(self._allocatable, 1), 1.0)
            deviation = np.where((self._allocatable > 0).all(axis=1), np.abs(shares[:, 0] - shares[:, 1]) / 2, 0.0)
            return ((1 - deviation) * 100).astype(np.int64)

        total: Ints = 50 + (50 + score(self._requested + requests) - score(self._requested)) // 2
        return total

    def _spread(
        self, spec: PodSpec, siblings: Iterable[PodInfo], namespace_pods: Sequence[PodInfo], eligible: Bools
    ) -> Ints:
        declared = spec.topology_spread_constraints
        constraints: list[tuple[str, int, Iterable[PodInfo]]] = [
            (c.topology_key, c.max_skew, _matching(compile_or_none(c.label_selector), namespace_pods))
            for c in declared or ()
            if c.when_unsatisfiable == "ScheduleAnyway"
        ]
        if not declared:
            siblings = list(siblings)
            constraints = [(key, skew, siblings) for key, skew in DEFAULT_SPREAD_CONSTRAINTS]
        raw = np.zeros(len(self._hosts))
        for key, skew, pods in constraints:
            codes, _ = self._domains_of(key)
            domains = np.unique(codes[eligible & (codes >= 0)]).size
            raw += self._counts(key, pods, eligible) * math.log(domains + 2) + (skew - 1)
        rounded = np.round(raw).astype(np.int64)
        highest = int(rounded[eligible].max(initial=0))
        if highest == 0:
            return np.full(len(self._hosts), 100, np.int64)
        spread: Ints = 100 * (highest + int(rounded[eligible].min()) - rounded) // highest
        return spread

    def _counts(self, key: str, pods: Iterable[PodInfo], eligible: Bools) -> Floats:
        """[host] number of pods in its domain, without pods on hosts that are not eligible."""
        codes, domain_count = self._domains_of(key)
        counts = np.zeros(domain_count + 1)
        for pod in pods:
            number = self._number_of.get(pod.node)
            if number is not None and pod.is_active and eligible[number]:
                counts[codes[number]] += 1
        counts[-1] = 0.0  # Hosts without the label are in no domain.
        return counts[codes]

    def _domains_of(self, key: str) -> tuple[Ints, int]:
        """[host] index of its topology domain, -1 without the label; and the number of domains."""
        if key not in self._domains:
            indexes: dict[str, int] = {}
            labels = [host.labels.get(key) for host in self._hosts]
            codes = [-1 if label is None else indexes.setdefault(label, len(indexes)) for label in labels]
            self._domains[key] = np.array(codes, np.int64), len(indexes)
        return self._domains[key]

    def _node_affinity(self, spec: PodSpec) -> Ints:
        affinity = spec.affinity.node_affinity if spec.affinity else None
        total = np.zeros(len(self._hosts), np.int64)
        for term in (affinity.preferred_during_scheduling_ignored_during_execution if affinity else None) or ():
            total += [term.weight * term_matches(term.preference, host.name, host.labels) for host in self._hosts]
        return total

    def _pod_affinity(self, spec: PodSpec, namespace_pods: Sequence[PodInfo], eligible: Bools) -> Ints:
        """The pod's preferred pod affinity. The other pods' is left out: most of these pods are siblings with the same preferences."""
        raw = np.zeros(len(self._hosts))
        for sign, affinity in (
            (1, spec.affinity.pod_affinity if spec.affinity else None),
            (-1, spec.affinity.pod_anti_affinity if spec.affinity else None),
        ):
            for weighted in (affinity.preferred_during_scheduling_ignored_during_execution if affinity else None) or ():
                term = weighted.pod_affinity_term
                matching = _matching(compile_or_none(term.label_selector), namespace_pods)
                raw += sign * weighted.weight * self._counts(term.topology_key, matching, eligible)
        scale = raw[eligible]
        if not len(scale) or scale.max() == scale.min():
            return np.zeros(len(self._hosts), np.int64)
        scaled: Ints = (100 * (raw - scale.min()) / (scale.max() - scale.min())).astype(np.int64)
        return scaled


def simulate_scheduling(
    waiting: Sequence[tuple[str, PodInfo]],
    hosts: Mapping[str, Host],
    used: Mapping[str, Amounts],
    rng: random.Random,
    volumes: Mapping[str, Sequence[NodeSelector]] | None = None,
) -> list[str]:
    """Node of each pod, placed one after the other; empty if it fits nowhere. Ties are broken at random, as the scheduler does.

    Args:
        waiting: pairs of workload and pod; pods of one workload are spread.
        hosts: every node by name.
        used: node -> requests and host ports of the pods on it.
        rng: breaks ties.
        volumes: pod key -> node requirements of its volumes.
    """
    all_hosts = [hosts[name] for name in sorted(hosts)]
    model = DefaultSchedulerModel(all_hosts)
    free: dict[str, Ints] = {}
    for host in all_hosts:
        model.add_requests(host.name, used.get(host.name, {}))
    eligible_by: dict[tuple[Constraints, str], Bools] = {}
    placed: dict[str, list[PodInfo]] = defaultdict(list)
    nodes: list[str] = []
    for workload, pod in waiting:
        selectors = (volumes or {}).get(pod.key, ())
        key = pod.constraints, pod.key if selectors else ""
        if key not in eligible_by:
            reasons = (
                pod.constraints.unmet_constraint(h.name, h.labels, h.taints, volume_selectors=selectors)
                for h in all_hosts
            )
            eligible_by[key] = np.array([not reason for reason in reasons], np.bool_)
        fits = eligible_by[key].copy()
        for resource, amount in pod.requests_with_ports.items():
            if resource not in free:
                left = (capacity_of(resource, h.allocatable) - used.get(h.name, {}).get(resource, 0) for h in all_hosts)
                free[resource] = np.array([limit_amount(value) for value in left], np.int64)
            if amount > 0:
                fits &= free[resource] >= limit_amount(amount)
        if not fits.any():
            nodes.append("")
            continue
        namespace_pods = [p for pods in placed.values() for p in pods if p.namespace == pod.namespace]
        scores = np.where(fits, model.scores(pod, placed[workload], namespace_pods, fits), -1)
        best = int(rng.choice(np.flatnonzero(scores == scores.max()).tolist()))
        nodes.append(all_hosts[best].name)
        model.add_pod(pod, nodes[-1])
        placed[workload].append(msgspec.structs.replace(pod, node=nodes[-1]))
        for resource, amount in pod.requests_with_ports.items():
            free[resource][best] -= limit_amount(amount)
    return nodes


def _array_of(amounts: Mapping[str, int]) -> Ints:
    """[resource] amounts of the scored resources, in the order of `DEFAULT_REQUESTS`."""
    return np.array([limit_amount(amounts.get(resource, 0)) for resource in DEFAULT_REQUESTS], np.int64)


def _with_defaults(requests: Ints) -> Ints:
    scored: Ints = np.where(requests == 0, [*DEFAULT_REQUESTS.values()], requests)
    return scored


def _scale_to_100(amounts: Ints, eligible: Bools) -> Ints:
    highest = int(amounts[eligible].max(initial=0))
    scaled: Ints = amounts * 100 // highest if highest else np.zeros(len(amounts), np.int64)
    return scaled


def _count_untolerated(host: Host, spec: PodSpec) -> int:
    return sum(
        first_untolerated_taint((taint,), spec.tolerations) is not None for taint in host.prefer_no_schedule_taints
    )


def _matching(selector: Selector | None, pods: Iterable[PodInfo]) -> list[PodInfo]:
    return [pod for pod in pods if selector is not None and selector.matches(pod.labels)]
