"""A model of the default kube-scheduler's scores, Kubernetes 1.36, for comparisons with plans.

NodeResourcesFit (LeastAllocated) and BalancedAllocation have weight 1, PodTopologySpread, InterPodAffinity and NodeAffinity 2,
TaintToleration 3. The model leaves out ImageLocality, extenders, changed profiles, the node policies of spread constraints, and the
``namespaces`` and ``namespaceSelector`` of terms. It scores all hosts, while the scheduler samples clusters of more than 100 nodes.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial

import msgspec
import numpy as np

from controller.cluster.eligibility import Constraints, first_untolerated_taint, term_matches
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import NodeSelector, PodSpec
from controller.cluster.resource_requests import MAX_AMOUNT, Amounts, capacity_of, limit_amount
from controller.scheduler.affinity import HOSTNAME_LABEL
from controller.scheduler.placement.pod_topology import domains_of, spread_selector
from controller.scheduler.placement.problem import Bools, Floats, Ints
from kubekit.selectors import Selector, compile_or_none
from netperf.contract import ZONE_LABEL

DEFAULT_REQUESTS = {"cpu": 100, "memory": 200 << 20}
"""Requests that LeastAllocated assumes for a pod without requests: 0.1 cores and 200 MiB."""
DEFAULT_SPREAD_CONSTRAINTS = ((HOSTNAME_LABEL, 3), (ZONE_LABEL, 5))
"""Topology keys and maxSkew of the default spread constraints, for pods without constraints."""
_SPREAD_WEIGHT, _AFFINITY_WEIGHT, _TAINT_WEIGHT = 2, 2, 3


class DefaultSchedulerModel:
    """Scores hosts for a pod; ``hosts`` are sorted by name, ``used`` is node -> requests of the pods on it, and `add_pod` adds pods."""

    def __init__(self, hosts: Sequence[Host], used: Mapping[str, Amounts] = {}) -> None:
        self._hosts = hosts
        self._host_index = {host.name: index for index, host in enumerate(hosts)}
        self._allocatable = np.array([_array_of(host.allocatable) for host in hosts], np.int64).reshape(-1, 2)
        requested = [_array_of(used.get(host.name, {})) for host in hosts]
        self._requested = np.array(requested, np.int64).reshape(-1, 2)
        self._requested_with_defaults = self._requested.copy()
        self._domains_of = cache(partial(domains_of, hosts))
        self._matching_hosts = cache(partial(_allowed_hosts, hosts=hosts, with_taints=False))
        """Pod constraints -> [host] whether node selector and required node affinity match the host; its taints do not matter."""
        self._has_soft_taints = any(host.prefer_no_schedule_taints for host in hosts)

    def add_pod(self, pod: PodInfo, node: str) -> None:
        """Add a pod to a host."""
        host, requests = self._host_index[node], _array_of(pod.requests)
        for totals, added in ((self._requested, requests), (self._requested_with_defaults, _with_defaults(requests))):
            totals[host] = np.clip(totals[host] + added, -MAX_AMOUNT, MAX_AMOUNT)

    def scores(
        self, pod: PodInfo, siblings: Collection[PodInfo], namespace_pods: Iterable[PodInfo], is_feasible: Bools
    ) -> Ints:
        """[host] the score for a pod, normalised over the hosts where the pod may run, and undefined for others.

        ``siblings`` are the other pods of its workload, ``namespace_pods`` those of its namespace. ``pod.node`` is not read.
        """
        spec, namespace_pods, requests = pod.constraints.spec, list(namespace_pods), _array_of(pod.requests)
        affinity = _scale_to_100(self._score_node_affinity(spec), is_feasible)
        affinity = affinity + self._score_pod_affinity(spec, namespace_pods, is_feasible)
        total = self._score_least_allocated(_with_defaults(requests)) + _AFFINITY_WEIGHT * affinity
        total = total + _SPREAD_WEIGHT * self._score_spread(pod, siblings, namespace_pods, is_feasible)
        if requests.any():
            total = total + self._score_balanced_allocation(requests)
        if self._has_soft_taints:
            untolerated = np.array([_count_untolerated(host, spec) for host in self._hosts], np.int64)
            total = total + _TAINT_WEIGHT * (100 - _scale_to_100(untolerated, is_feasible))
        return total

    def _score_least_allocated(self, requests: Ints) -> Ints:
        used, has_resource = self._requested_with_defaults + requests, self._allocatable > 0
        free = np.where(has_resource & (used <= self._allocatable), self._allocatable - used, 0)
        scores = free * 100 // np.maximum(self._allocatable, 1)
        mean: Ints = scores.sum(axis=1) // np.maximum(has_resource.sum(axis=1), 1)
        return mean

    def _score_balanced_allocation(self, requests: Ints) -> Ints:
        def score(used: Ints) -> Ints:
            shares = np.minimum(used / np.maximum(self._allocatable, 1), 1.0)
            deviation = np.where((self._allocatable > 0).all(axis=1), np.abs(shares[:, 0] - shares[:, 1]) / 2, 0.0)
            return ((1 - deviation) * 100).astype(np.int64)

        total: Ints = 50 + (50 + score(self._requested + requests) - score(self._requested)) // 2
        return total

    def _score_spread(
        self, pod: PodInfo, siblings: Collection[PodInfo], namespace_pods: Sequence[PodInfo], is_feasible: Bools
    ) -> Ints:
        """[host] the score of podtopologyspread/scoring.go.

        A host without a topology key of the pod's own constraints scores 0, and its pods do not count. Pods on other hosts count if the
        pod's node affinity matches the host, even if the host is full.
        """
        declared = pod.constraints.spec.topology_spread_constraints
        constraints: list[tuple[str, int, Iterable[PodInfo]]] = [
            (c.topology_key, c.max_skew, _matching(compile_or_none(spread_selector(pod.labels, c)), namespace_pods))
            for c in declared or ()
            if c.when_unsatisfiable == "ScheduleAnyway"
        ]
        if not declared:
            constraints = [(key, skew, siblings) for key, skew in DEFAULT_SPREAD_CONSTRAINTS]
        domains = [self._domains_of(key)[0] for key, _, _ in constraints]
        has_keys = np.all([domain_of >= 0 for domain_of in domains], axis=0) if declared else np.True_
        is_scored, is_counted = is_feasible & has_keys, self._matching_hosts(pod.constraints) & has_keys
        raw = np.zeros(len(self._hosts))
        for (key, skew, pods), domain_of in zip(constraints, domains, strict=True):
            weight = math.log(np.unique(domain_of[is_scored]).size + 2)
            raw += self._count_pods_in_domain(key, pods, is_counted) * weight + (skew - 1) * (domain_of >= 0)
        rounded = np.round(raw).astype(np.int64)
        highest = int(rounded[is_scored].max(initial=0))
        if highest == 0:
            return np.where(is_scored, 100, 0)
        return np.where(is_scored, 100 * (highest + int(rounded[is_scored].min()) - rounded) // highest, 0)

    def _count_pods_in_domain(self, key: str, pods: Iterable[PodInfo], is_counted: Bools) -> Floats:
        """[host] number of active pods in its domain, on the hosts whose pods are counted."""
        domain_of, domain_count = self._domains_of(key)
        counts = np.zeros(domain_count + 1)
        for pod in pods:
            host = self._host_index.get(pod.node)
            if host is not None and pod.is_active and is_counted[host]:
                counts[domain_of[host]] += 1
        counts[-1] = 0.0  # Hosts without the label are in no domain.
        return counts[domain_of]

    def _score_node_affinity(self, spec: PodSpec) -> Ints:
        affinity = spec.affinity and spec.affinity.node_affinity
        total = np.zeros(len(self._hosts), np.int64)
        for term in (affinity and affinity.preferred_during_scheduling_ignored_during_execution) or ():
            total += [term.weight * term_matches(term.preference, host.name, host.labels) for host in self._hosts]
        return total

    def _score_pod_affinity(self, spec: PodSpec, namespace_pods: Sequence[PodInfo], is_feasible: Bools) -> Ints:
        """The pod's preferred pod affinity. That of other pods is left out: most of them are siblings with the same preferences."""
        raw, every_host = np.zeros(len(self._hosts)), np.ones(len(self._hosts), np.bool_)
        affinity = spec.affinity
        for sign, terms in ((1, affinity and affinity.pod_affinity), (-1, affinity and affinity.pod_anti_affinity)):
            for weighted in (terms and terms.preferred_during_scheduling_ignored_during_execution) or ():
                term = weighted.pod_affinity_term
                matching = _matching(compile_or_none(term.label_selector), namespace_pods)
                raw += sign * weighted.weight * self._count_pods_in_domain(term.topology_key, matching, every_host)
        feasible = raw[is_feasible]
        if not len(feasible) or feasible.max() == feasible.min():
            return np.zeros(len(self._hosts), np.int64)
        scores: Ints = (100 * (raw - feasible.min()) / (feasible.max() - feasible.min())).astype(np.int64)
        return scores


def simulate_scheduling(
    waiting: Sequence[tuple[str, PodInfo]],
    hosts: Mapping[str, Host],
    used: Mapping[str, Amounts],
    rng: random.Random,
    volume_selectors: Mapping[str, Sequence[NodeSelector]] = {},
) -> list[str]:
    """The node of each pod if the default scheduler places one pod after the other; empty if no node is feasible.

    Args:
        waiting: pairs of workload and pod; pods of one workload are spread.
        hosts: node -> host, of every node.
        used: node -> requests and host ports of the pods on it, which have no other effect.
        rng: breaks ties at random, as the scheduler does.
        volume_selectors: pod key -> node selectors of its volumes.
    """
    all_hosts = [hosts[name] for name in sorted(hosts)]
    resources = sorted({resource for _, pod in waiting for resource in pod.requests_with_ports})
    model, free = DefaultSchedulerModel(all_hosts, used), _free_amounts(all_hosts, used, resources)
    allowed: dict[tuple[Constraints, str], Bools] = {}
    pods_by_workload: dict[str, list[PodInfo]] = defaultdict(list)
    nodes: list[str] = []
    for workload, pod in waiting:
        selectors = volume_selectors.get(pod.key, ())
        key = pod.constraints, pod.key if selectors else ""
        if key not in allowed:
            allowed[key] = _allowed_hosts(pod.constraints, all_hosts, selectors)
        requests = np.array([limit_amount(pod.requests_with_ports.get(r, 0)) for r in resources], np.int64)
        is_feasible = allowed[key] & ((requests <= 0) | (free >= requests)).all(axis=1)
        if not is_feasible.any():
            nodes.append("")
            continue
        namespace_pods = [p for pods in pods_by_workload.values() for p in pods if p.namespace == pod.namespace]
        scores = np.where(is_feasible, model.scores(pod, pods_by_workload[workload], namespace_pods, is_feasible), -1)
        best = int(rng.choice(np.flatnonzero(scores == scores.max()).tolist()))
        nodes.append(all_hosts[best].name)
        model.add_pod(pod, nodes[-1])
        free[best] -= requests
        pods_by_workload[workload].append(msgspec.structs.replace(pod, node=nodes[-1]))
    return nodes


def _free_amounts(hosts: Sequence[Host], used: Mapping[str, Amounts], resources: Sequence[str]) -> Ints:
    """[host, resource] free amount."""
    amounts = [
        [limit_amount(capacity_of(r, host.allocatable) - used.get(host.name, {}).get(r, 0)) for r in resources]
        for host in hosts
    ]
    return np.array(amounts, np.int64).reshape(len(hosts), len(resources))


def _allowed_hosts(
    constraints: Constraints, hosts: Sequence[Host], volumes: Sequence[NodeSelector] = (), *, with_taints: bool = True
) -> Bools:
    """[host] whether node constraints and node selectors of volumes allow a pod there."""
    unmet = partial(constraints.unmet_constraint, volume_selectors=volumes)
    return np.array([not unmet(h.name, h.labels, h.taints if with_taints else ()) for h in hosts], np.bool_)


def _array_of(amounts: Mapping[str, int]) -> Ints:
    """[resource] amount of each scored resource, in the order of `DEFAULT_REQUESTS`."""
    return np.array([limit_amount(amounts.get(resource, 0)) for resource in DEFAULT_REQUESTS], np.int64)


def _with_defaults(requests: Ints) -> Ints:
    scored: Ints = np.where(requests == 0, [*DEFAULT_REQUESTS.values()], requests)
    return scored


def _scale_to_100(amounts: Ints, is_feasible: Bools) -> Ints:
    highest = int(amounts[is_feasible].max(initial=0))
    scaled: Ints = amounts * 100 // highest if highest else np.zeros(len(amounts), np.int64)
    return scaled


def _count_untolerated(host: Host, spec: PodSpec) -> int:
    taints = host.prefer_no_schedule_taints
    return sum(first_untolerated_taint((taint,), spec.tolerations) is not None for taint in taints)


def _matching(selector: Selector | None, pods: Iterable[PodInfo]) -> list[PodInfo]:
    return [pod for pod in pods if selector is not None and selector.matches(pod.labels)]
