"""The placement problem as arrays, for `solve` and `evaluation`.

Hosts, zones, workloads, classes, replicas and domains are indexes from 0. A class is a set of interchangeable replicas of one
workload. A zone is a `Location`, that is a pair of region and zone. Host -1 means unplaced.

`solve` minimizes the costs of calls and added prices, for example of two replicas on one host. A price is a share of one of
two amounts, so that it has the same effect with all costs:
- the *worst cost*: the cost of a replica's calls if all take the slowest path, as the mean of all replicas;
- the *host gain*: the part of the worst cost that is saved if all calls stay within a host instead of the fastest zone.
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
    """Kinds of `DomainRule`.

    Attributes:
        SPREAD: topologySpreadConstraint with DoNotSchedule.
        ANTI_AFFINITY, AFFINITY: required terms.
        PREFERENCE: preferred terms and ScheduleAnyway, with a price for each pair of owner and counted pod in one domain.
    """

    SPREAD = 0
    ANTI_AFFINITY = 1
    AFFINITY = 2
    PREFERENCE = 3


COUNTED, OWNER = 1, 2
"""Flags of a class's role in a rule: the rule's selector selects its pods; its pods carry the rule."""


class CallEdge(msgspec.Struct, frozen=True):
    """A dependency between two workloads.

    Attributes:
        caller: workload that calls.
        callee: workload that is called.
        weight: traffic of all callers together, in the same unit for all edges.
        routing: routing of calls by the callee's Service.
        max_cost: maxNetworkCost, for pairs in different zones.
        table: index in `Problem.tables`; `build_problem` sets it.
    """

    caller: int
    callee: int
    weight: float = 1.0
    routing: Routing = Routing.ANY
    max_cost: int = 0
    table: int = 0


class CallCostTable(msgspec.Struct, frozen=True):
    """Cost of a call by pair of zones, for edges with equivalent limits.

    The unit depends on the objective: microseconds for ``time``, network cost for ``parity``, else microseconds plus money (`add_prices`).

    Attributes:
        cost_between_hosts: [zone, zone] from a caller to a callee on another host.
        cost_within_host: from a caller to a callee on its host.
        violates_limit: [zone, zone] whether a call between two hosts violates the limit of the edges with this table.
    """

    cost_between_hosts: Floats
    cost_within_host: float
    violates_limit: Bools


class DomainRule(msgspec.Struct, frozen=True):
    """A rule about pods that must, must not, or should not share a topology domain.

    Attributes:
        kind: kind of the rule.
        roles: class -> `COUNTED`, `OWNER` or both.
        domain_of: [host] its domain, -1 if it has none.
        bound_counted: [domain] number of pods that stay and that the rule counts.
        bound_owners: [domain] number of pods that stay and that carry the rule.
        counts_for_minimum: [domain] whether its count enters the minimum from which skew is measured.
        max_skew: of spreads, the highest allowed difference between a domain's count and the minimum.
        lacks_domains: whether there are fewer domains than minDomains; the minimum is then 0.
        price: of preferences, the price of each pair of owner and counted pod in one domain, in worst costs; below 0 for affinity.
    """

    kind: RuleKind
    roles: dict[int, int]
    domain_of: Ints
    bound_counted: Ints
    bound_owners: Ints
    counts_for_minimum: Bools
    max_skew: int = 1
    lacks_domains: bool = False
    price: float = 0.0


class Problem(msgspec.Struct, frozen=True):
    """All inputs of a search, as arrays.

    Attributes:
        free: [host, resource] free amount; below 0 on an overcommitted host.
        capacity: [host, resource] allocatable.
        zone_of: [host] its zone.
        has_zone_label: [zone] whether nodes there carry the zone label.
        workload_of: [class] its workload.
        requests: [class, resource] requested amount.
        row_of: [class] its row of ``allowed``; classes with equal node constraints share a row.
        allowed: [row, host] whether node constraints allow a class on a host.
        class_of: [replica] its class.
        fixed_hosts: [workload] hosts of the replicas that stay.
        must_span_zones: [workload] whether its replicas must not all be in one zone.
        colocation_price: [workload] price of two of its replicas on one host. The unit is 1.5 host gains of that workload, at least of
            a mean one, so that 1 exceeds what sharing a host saves. Two in one zone cost a thousandth: it decides between equal costs.
        host_price: [host] price of each replica there, in worst costs.
        edges: dependencies, at most one per ordered pair of workloads.
        tables: costs of calls; at least one if there are edges.
        domain_rules: required and preferred rules about topology domains.
        crowding_price: in host gains: the n replicas on a host, of any workload, cost n² times it. If there are more replicas than
            hosts, it is divided by the square of the replicas per host.
        overload_price: price of a call that loads a replica above its fair share; 1 is the mean extra cost of a call to another zone.
        balance_price: price of each fully used resource of a host, in worst costs; it grows with the square of utilization.
        host_names: [host] its name.
        resource_names: [resource] its name, host ports included.
    """

    free: Ints
    capacity: Ints
    zone_of: Ints
    has_zone_label: Bools
    workload_of: Ints
    requests: Ints
    row_of: Ints
    allowed: Bools
    class_of: Ints
    fixed_hosts: tuple[tuple[int, ...], ...]
    must_span_zones: Bools
    colocation_price: Floats
    host_price: Floats
    edges: tuple[CallEdge, ...] = ()
    tables: tuple[CallCostTable, ...] = ()
    domain_rules: tuple[DomainRule, ...] = ()
    crowding_price: float = 0.0
    overload_price: float = 1.0
    balance_price: float = 1e-3
    host_names: Sequence[str] = ()
    resource_names: Sequence[str] = ()

    @property
    def workload_count(self) -> int:
        """Number of workloads."""
        return len(self.fixed_hosts)

    @property
    def replica_counts(self) -> Ints:
        """[workload] number of replicas, fixed ones included."""
        to_place = np.bincount(self.workload_of[self.class_of], minlength=self.workload_count)
        return to_place + np.array([len(hosts) for hosts in self.fixed_hosts], np.int64)
