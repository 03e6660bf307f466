"""What replicas must not share: topologySpreadConstraints and pod anti-affinity, counted per domain during a search.

Wishes (ScheduleAnyway) are taken as seriously as demands while all replicas can be placed so; `planner` drops them when not.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Rule(msgspec.Struct, frozen=True):
    """One constraint of one workload.

    Attributes:
        owner: the workload whose pods carry it.
        counted: [workload] whose pods count.
        domain_of: [site] domain, -1 where the node lacks the label.
        domains: how many there are.
        max_skew: most by which a domain may exceed the emptiest; 0 stands for anti-affinity: no counted pod may be there.
        standing: [domain] counted pods that stay where they are.
        owned: [domain] pods of the owner that stay: anti-affinity holds in both directions.
    """

    owner: int
    counted: Bools
    domain_of: Ints
    domains: int
    max_skew: int
    standing: Ints
    owned: Ints


class Spreading:
    """Counts of a placement in the making.

    Attributes:
        bound: [workload] whether any rule binds it.
        shared: [workload, workload] whether one rule looks at both; swaps of such are not looked into.
    """

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._counts = [rule.standing.copy() for rule in rules]
        self._owned = [rule.owned.copy() for rule in rules]
        count = len(rules[0].counted) if rules else 0
        self.bound = np.zeros(count, np.bool_)
        self.shared = np.zeros((count, count), np.bool_)
        for rule in rules:
            # Anti-affinity also binds those who are counted, not only those who carry it.
            mine = rule.counted.copy()
            mine[rule.owner] = True
            self.bound |= mine if not rule.max_skew else np.arange(count) == rule.owner
            self.shared |= mine[:, None] & mine[None, :]

    def copy(self) -> Spreading:
        """An independent one with the same counts."""
        twin = Spreading(self._rules)
        twin._counts = [counts.copy() for counts in self._counts]
        twin._owned = [owned.copy() for owned in self._owned]
        return twin

    def concerns(self, workload: int) -> bool:
        """Whether any rule binds a workload."""
        return bool(self.bound[workload])

    def move(self, workload: int, here: int | None, to: int | None) -> None:
        """A replica left one site for another; None stands for nowhere."""
        for rule, counts, owned in zip(self._rules, self._counts, self._owned, strict=True):
            for site, step in ((here, -1), (to, 1)):
                domain = -1 if site is None else rule.domain_of[site]
                if domain >= 0:
                    counts[domain] += step * rule.counted[workload]
                    owned[domain] += step * (workload == rule.owner)

    def open_sites(self, workload: int, here: int) -> Bools:
        """[site] where a replica that now is on ``here`` (or on no site) may go."""
        count = len(self._rules[0].domain_of)
        found = np.ones(count, np.bool_)
        for rule, counts, owned in zip(self._rules, self._counts, self._owned, strict=True):
            domain = int(rule.domain_of[here]) if here < count else -1
            if workload == rule.owner:
                found &= _open(rule, _without(counts, domain, int(rule.counted[workload])))
            if not rule.max_skew and rule.counted[workload]:
                taken = _without(owned, domain, int(workload == rule.owner))
                found &= (rule.domain_of < 0) | ((taken[rule.domain_of] == 0) if rule.domains else True)
        return found

    def may_swap(self, one: int, here: int, other: int, there: int, sites: int) -> bool:
        """Whether two replicas of different workloads may change places."""
        if not self.bound[one] and not self.bound[other]:
            return True
        if self.shared[one, other]:
            return False
        return (there == sites or bool(self.open_sites(one, here)[there])) and (
            here == sites or bool(self.open_sites(other, there)[here])
        )


def _without(counts: Ints, domain: int, step: int) -> Ints:
    if domain < 0 or not step:
        return counts
    fewer = counts.copy()
    fewer[domain] -= step
    return fewer


def _open(rule: Rule, counts: Ints) -> Bools:
    """[site] where one more counted pod is within the rule; a node without the label is outside a spread."""
    known: Bools = rule.domain_of >= 0
    if not rule.domains:
        return ~known if not rule.max_skew else known
    there = counts[rule.domain_of]
    found: Bools = known & (there + 1 - counts.min() <= rule.max_skew) if rule.max_skew else ~known | (there == 0)
    return found
