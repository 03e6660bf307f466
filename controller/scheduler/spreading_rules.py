"""From pods' own words to `spreading.Rule`: topologySpreadConstraints and pod anti-affinity of a group's workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from controller.scheduler.eligibility import selects
from controller.scheduler.fleet import Host
from controller.scheduler.pods import GroupPod, LabelSelector
from controller.scheduler.spreading import Rule


class Asked(msgspec.Struct, frozen=True):
    """What was asked for.

    Attributes:
        demands: DoNotSchedule and required anti-affinity.
        all: these, and what was only wished for.
    """

    demands: tuple[Rule, ...]
    all: tuple[Rule, ...]


def spreading_of(
    models: Sequence[GroupPod | None],
    sites: Sequence[Host],
    fixed: Sequence[Mapping[str, int]],
    hosts: Mapping[str, Host],
) -> Asked:
    """Read the rules of a group.

    Args:
        models: per workload one of its pods, None where it has none yet.
        sites: candidate hosts.
        fixed: per workload, node -> pods that stay there.
        hosts: every host, for the domains of those that are no candidates.
    """
    group = _Group(models, sites, fixed, hosts)
    demands: list[Rule] = []
    wishes: list[Rule] = []
    for owner, model in enumerate(models):
        for term in _terms(model) if model is not None else ():
            rule = group.rule(owner, term)
            if rule is not None:
                (demands if term.demanded else wishes).append(rule)
    return Asked(tuple(demands), (*demands, *wishes))


class _Term(msgspec.Struct, frozen=True):
    selector: LabelSelector | None
    key: str
    max_skew: int
    demanded: bool


def _terms(pod: GroupPod) -> list[_Term]:
    found = [
        _Term(c.label_selector, c.topology_key, max(c.max_skew, 1), c.when_unsatisfiable != "ScheduleAnyway")
        for c in pod.spec.topology_spread_constraints or ()
    ]
    anti = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    if anti is not None:
        required = anti.required_during_scheduling_ignored_during_execution or ()
        preferred = anti.preferred_during_scheduling_ignored_during_execution or ()
        found += [_Term(term.label_selector, term.topology_key, 0, True) for term in required]  # noqa: FBT003
        wishes = [wish.pod_affinity_term for wish in preferred]
        found += [_Term(term.label_selector, term.topology_key, 0, False) for term in wishes]  # noqa: FBT003
    return found


class _Group(msgspec.Struct, frozen=True):
    """What every rule of a group is read against."""

    models: Sequence[GroupPod | None]
    sites: Sequence[Host]
    fixed: Sequence[Mapping[str, int]]
    hosts: Mapping[str, Host]

    def rule(self, owner: int, term: _Term) -> Rule | None:
        """One term as a rule; None when it counts no pod of the group."""
        labels = [model.metadata.labels or {} if model is not None else None for model in self.models]
        counted = np.array([found is not None and selects(term.selector, found) for found in labels], np.bool_)
        if not counted.any():
            return None
        places = {node for nodes in self.fixed for node in nodes} | {host.name for host in self.sites}
        values = {
            self.hosts[n].labels[term.key] for n in places if n in self.hosts and term.key in self.hosts[n].labels
        }
        domains = {value: i for i, value in enumerate(sorted(values))}
        standing, owned = np.zeros(len(domains), np.int64), np.zeros(len(domains), np.int64)
        for workload, nodes in enumerate(self.fixed):
            for node, count in nodes.items():
                domain = domains.get(self.hosts[node].labels.get(term.key, ""), -1) if node in self.hosts else -1
                if domain >= 0:
                    standing[domain] += count * counted[workload]
                    owned[domain] += count * (workload == owner)
        domain_of = np.array([domains.get(host.labels.get(term.key, ""), -1) for host in self.sites], np.int64)
        return Rule(owner, counted, domain_of, len(domains), term.max_skew, standing, owned)
