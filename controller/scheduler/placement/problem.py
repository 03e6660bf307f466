"""The placement problem as arrays, for `solve` and `evaluation`.

Classes are indistinguishable replicas: one workload, one set of requests, one set of hosts. Zones are locations, that is
distinct pairs of region and zone. "Nowhere" is host -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from controller.cluster.services import Routing

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class RuleKind(IntEnum):
    """SPREAD: topologySpreadConstraint with DoNotSchedule. ANTI_AFFINITY, AFFINITY: required terms. PREFERENCE: preferred terms and
    ScheduleAnyway, as a penalty for each pair of owner and counted pod in one domain.
    """

    SPREAD = 0
    ANTI_AFFINITY = 1
    AFFINITY = 2
    PREFERENCE = 3


COUNTED, OWNER = 1, 2
"""Roles of a class in a rule: the rule's selector selects it; it carries the rule. Both may be."""


class CallEdge(msgspec.Struct, frozen=True):
    """A dependency between two workloads.

    Attributes:
        caller: workload that calls.
        callee: workload that is called.
        weight: traffic of all callers together, in any unit that all edges share.
        routing: of the callee's Service.
        max_cost: maxNetworkCost.
        table: number of its `Table`; `compile_problem` sets it.
    """

    caller: int
    callee: int
    weight: float = 1.0
    routing: Routing = Routing.ANY
    max_cost: int = 0
    table: int = 0


class Table(msgspec.Struct, frozen=True):
    """Cost of a call by zone pair.

    Attributes:
        latency: [zone, zone] from a caller to a callee on another host, microseconds (or costs, in parity).
        local: within one host.
        violates_limit: [zone, zone] whether that breaks the limit of the edges that use this table.
    """

    latency: Floats
    local: float
    violates_limit: Bools


class Rule(msgspec.Struct, frozen=True):
    """A rule about replicas that must, must not, or should not share a domain.

    Attributes:
        kind: see there.
        roles: class -> role.
        domain_of: [host] or -1 where a host has none.
        bound: [domain] counted pods that stay where they are.
        owned: [domain] pods that carry the rule and stay.
        eligible: [domain] whether its count enters the least that skew is measured from.
        skew: most by which a domain may exceed the least.
        short: fewer domains than minDomains, so that the least is 0.
        price: of a pair of owner and counted pod in one domain, as a share of what a replica's calls cost at worst; of preferred
            rules only, below 0 for affinity.
    """

    kind: RuleKind
    roles: dict[int, int]
    domain_of: Ints
    bound: Ints
    owned: Ints
    eligible: Bools
    skew: int = 1
    short: bool = False
    price: float = 0.0


class Problem(msgspec.Struct, frozen=True):
    """All inputs of a search, as arrays.

    Attributes:
        free: [host, resource] what is free; may be negative where a host is overcommitted.
        capacity: [host, resource] allocatable.
        zone_of: [host].
        zoned: [zone] whether nodes there carry the zone label.
        host_price: [host] of a replica there, as a share of what a replica's calls cost at worst.
        workload_of: [class].
        asks: [class, resource].
        row_of: [class] row of ``allowed``.
        allowed: [row, host] whether a class may go there at all.
        class_of: [replica].
        fixed: per workload, the hosts of replicas that stay.
        edges: at most one per ordered pair of workloads.
        tables: at least one where there are edges.
        rules: required and preferred rules.
        must_span_zones: [workload] whether it must not be wholly in one zone.
        colocation_penalty: [workload] of two of its replicas on one host, as a share of the most that sharing a host with peers gains;
            sharing a zone counts a thousandth of that, so that it decides between equals only.
        crowd: the same for any two replicas of the problem, less where there are more replicas than hosts.
        load: share of a call above a replica's fair share that costs as much as a call to another zone.
        balance: how much a step of load from an empty host to a full one counts, as a share of the mean price of a replica.
        host_names: names of the hosts.
        resource_names: names of the resources; ports of hosts among them.
    """

    free: Ints
    capacity: Ints
    zone_of: Ints
    zoned: Bools
    workload_of: Ints
    asks: Ints
    row_of: Ints
    allowed: Bools
    class_of: Ints
    fixed: tuple[tuple[int, ...], ...]
    edges: tuple[CallEdge, ...] = ()
    tables: tuple[Table, ...] = ()
    rules: tuple[Rule, ...] = ()
    must_span_zones: Bools | None = None
    colocation_penalty: Floats | None = None
    host_price: Floats | None = None
    crowd: float = 0.0
    load: float = 1.0
    balance: float = 1e-3
    host_names: Sequence[str] = ()
    resource_names: Sequence[str] = ()

    @property
    def workloads(self) -> int:
        """Number of workloads."""
        return len(self.fixed)

    @property
    def totals(self) -> Ints:
        """[workload] replicas, those that stay included."""
        placed = np.bincount(self.workload_of[self.class_of], minlength=self.workloads)
        return placed + np.array([len(hosts) for hosts in self.fixed], np.int64)
