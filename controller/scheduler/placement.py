"""A placement of replicas on sites, what every change of it would cost, and descent to a local optimum.

Numbers only: what a workload, a site or a cost means is `planner`'s business. ``near[w, s]``, what a replica of workload w
pays on site s, is kept up to date, so that a step costs the size of some rows and not of the problem.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from controller.scheduler.spreading import Spreading

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNPLACED_COST = 10**10
"""What it costs to leave a replica out: more than any placement."""


class Link(msgspec.Struct, frozen=True):
    """A dependency between workloads, and which of the cost tables it is judged by."""

    dependant: int
    dependency: int
    table: int


class Problem(msgspec.Struct, frozen=True):
    """What is to be placed, and where it may go.

    Attributes:
        workload_of: per replica, its workload.
        links: the dependencies; at most one per ordered pair of workloads.
        tables: [table, zone, zone] cost from a dependant's zone to a dependency's zone, on different hosts; on one host it
            is 0. Violations are priced in.
        zone_of: per site, its zone.
        free: [site, resource] what is free.
        requests: [workload, resource] what a replica takes.
        allowed: [workload, site] whether a replica may go there at all.
        standing: [workload, site] what a replica pays towards pods that stay where they are.
        spreading: what replicas must not share; None when nothing was asked for.
    """

    workload_of: Ints
    links: tuple[Link, ...]
    tables: Ints
    zone_of: Ints
    free: Ints
    requests: Ints
    allowed: Bools
    standing: Ints
    spreading: Spreading | None = None

    @property
    def sites(self) -> int:
        """Number of sites; this number itself stands for "not placed"."""
        return len(self.zone_of)


class Placement:
    """A placement, what every move would cost, and what room is left."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        count, sites = len(problem.workload_of), problem.sites
        self.site_of = np.full(count, sites, np.int64)
        self.free = problem.free.copy()
        # The last column stands for "not placed".
        self.near = np.concatenate(
            [problem.standing, np.full((len(problem.requests), 1), UNPLACED_COST, np.int64)], axis=1
        )
        self.fits = self._all_fits()
        self.spreading = problem.spreading.copy() if problem.spreading else None
        self.lists = problem.workload_of.tolist()
        self.requests = problem.requests[problem.workload_of]
        self._pulls: dict[tuple[int, int], tuple[Ints, Ints]] = {}
        self._neighbours = self._neighbour_tables()
        # Both directions of a link in one look-up.
        self._both_ways = problem.tables + problem.tables.transpose(0, 2, 1)

    def _neighbour_tables(self) -> list[tuple[Ints, Ints]]:
        """Per workload: the replicas of all linked workloads, and per replica the table of the link."""
        found: list[tuple[list[int], list[int]]] = [([], []) for _ in self.problem.requests]
        replicas = [np.flatnonzero(self.problem.workload_of == w).tolist() for w in range(len(found))]
        for link in self.problem.links:
            for one, other in ((link.dependant, link.dependency), (link.dependency, link.dependant)):
                found[one][0].extend(replicas[other])
                found[one][1].extend([link.table] * len(replicas[other]))
        return [(np.array(others, np.int64), np.array(tables, np.int64)) for others, tables in found]

    def _pull(self, workload: int, zone: int) -> tuple[Ints, Ints]:
        """Linked workloads, and what each would pay per site for a replica of ``workload`` in a zone, on another host."""
        known = self._pulls.get((workload, zone))
        if known is None:
            tables, zone_of = self.problem.tables, self.problem.zone_of
            rows: dict[int, Ints] = {}
            for link in self.problem.links:
                for one, other, costs in (
                    (link.dependency, link.dependant, tables[link.table, :, zone]),
                    (link.dependant, link.dependency, tables[link.table, zone, :]),
                ):
                    if one == workload:
                        rows[other] = rows.get(other, 0) + np.append(costs[zone_of], 0)
            linked = sorted(rows)
            costs = np.array([rows[other] for other in linked], np.int64).reshape(len(linked), self.problem.sites + 1)
            known = self._pulls[workload, zone] = np.array(linked, np.int64), costs
        return known

    def copy(self) -> Placement:
        """An independent placement with the same content."""
        twin = object.__new__(Placement)
        twin.__dict__.update(self.__dict__)
        twin.site_of, twin.free = self.site_of.copy(), self.free.copy()
        twin.near, twin.fits = self.near.copy(), self.fits.copy()
        twin.spreading = self.spreading.copy() if self.spreading else None
        return twin

    def _all_fits(self) -> Bools:
        problem = self.problem
        room = (problem.free[None, :, :] >= problem.requests[:, None, :]).all(axis=2)
        fits: Bools = room & problem.allowed
        return fits

    def by_size(self) -> list[int]:
        """Replicas, those that take the largest share of what is free first; a stable order."""
        total = np.maximum(self.problem.free.sum(axis=0), 1)
        share = (self.requests / total).max(axis=1) if self.requests.shape[1] else np.zeros(len(self.requests))
        order: list[int] = np.argsort(-share, kind="stable").tolist()
        return order

    def follow(self, hints: Sequence[int]) -> None:
        """Put replicas where an earlier plan had them, as far as they still fit."""
        for replica, site in enumerate(hints):
            if site < self.problem.sites and self.open_sites(replica)[site]:
                self.move(replica, site)

    def fill(self, order: Sequence[int], centre: int) -> None:
        """Put every replica on the site that is cheapest so far; of equals, the one nearest to the centre."""
        tables, zone_of = self.problem.tables, self.problem.zone_of
        distance = (tables[0][centre] + tables[0][:, centre])[zone_of]
        for replica in order:
            possible = np.flatnonzero(self.open_sites(replica))
            if len(possible):
                price = self.near[self.lists[replica], possible] * 4 + distance[possible]
                self.move(replica, int(possible[np.argmin(price)]))

    def improve(self) -> None:
        """Move and swap until nothing helps."""
        replicas, quiet, at = len(self.site_of), 0, 0
        # Each turn that counts lowers the cost; the bound is for problems that nobody foresaw.
        for _ in range(replicas * 60):
            quiet = 0 if self._improve_one(at) else quiet + 1
            if quiet >= replicas:
                return
            at = (at + 1) % replicas

    def _improve_one(self, replica: int) -> bool:
        here, workload = int(self.site_of[replica]), self.lists[replica]
        now = int(self.near[workload, here])
        prices = np.where(self.open_sites(replica), self.near[workload, :-1], UNPLACED_COST * 2)
        to = int(np.argmin(prices))
        move_gain = int(prices[to]) - now
        swap_gain, other = self._best_swap(replica, here, now)
        if min(move_gain, swap_gain) >= 0:
            return False
        if move_gain <= swap_gain:
            self.move(replica, to)
        else:
            there = int(self.site_of[other])
            self.move(other, self.problem.sites)
            self.move(replica, there)
            self.move(other, here)
        return True

    def open_sites(self, replica: int) -> Bools:
        """Where a replica may go as things stand; where it is now may be left out."""
        workload = self.lists[replica]
        fits: Bools = self.fits[workload]
        if self.spreading is not None and self.spreading.concerns(workload):
            return fits & self.spreading.open_sites(workload, int(self.site_of[replica]))
        return fits

    def _best_swap(self, replica: int, here: int, now: int) -> tuple[int, int]:
        """The best gain by a swap, and with which replica; positive when there is none."""
        problem, workload, sites = self.problem, self.lists[replica], self.problem.sites
        others, there = problem.workload_of, self.site_of
        gains = self.near[workload, there] - now + self.near[others, here] - self.near[others, there]
        if here < sites:
            self._correct_swaps(gains, workload, here)
        candidates = np.flatnonzero(gains < 0)
        if not len(candidates):
            return 1, -1
        for other in candidates[np.argsort(gains[candidates], kind="stable")][:8].tolist():
            if self._can_swap(replica, other, here, int(there[other])):
                return int(gains[other]), other
        return 1, -1

    def _correct_swaps(self, gains: Ints, workload: int, here: int) -> None:
        """Two linked replicas that swap stay as far from each other; `near` took each for moved to where the other was."""
        others, tables = self._neighbours[workload]
        there = self.site_of[others]
        apart = (there < self.problem.sites) & (there != here)
        zones = self.problem.zone_of[there[apart]]
        np.add.at(gains, others[apart], self._both_ways[tables[apart], zones, self.problem.zone_of[here]])

    def _can_swap(self, one: int, other: int, here: int, there: int) -> bool:
        problem, sites = self.problem, self.problem.sites
        mine, its = self.lists[one], self.lists[other]
        if mine == its or here == there:
            return False
        for mover, left, to in ((one, other, there), (other, one, here)):
            if to == sites:
                continue
            if not problem.allowed[self.lists[mover], to]:
                return False
            if (self.free[to] + self.requests[left] < self.requests[mover]).any():
                return False
        if self.spreading is None:
            return True
        return self.spreading.may_swap(mine, here, its, there, sites)

    def move(self, replica: int, to: int) -> None:
        """Move one replica and follow up what all others would pay."""
        here, workload, sites = int(self.site_of[replica]), self.lists[replica], self.problem.sites
        self.site_of[replica] = to
        if here < sites:
            self._shift(workload, here, -1)
            self.free[here] += self.requests[replica]
            self._refit(here)
        if to < sites:
            self._shift(workload, to, 1)
            self.free[to] -= self.requests[replica]
            self._refit(to)
        if self.spreading is not None:
            self.spreading.move(workload, here if here < sites else None, to if to < sites else None)

    def _refit(self, site: int) -> None:
        problem = self.problem
        self.fits[:, site] = problem.allowed[:, site] & (self.free[site] >= problem.requests).all(axis=1)

    def _shift(self, workload: int, site: int, sign: int) -> None:
        """A replica appears on a site (1) or goes (-1): its neighbours pay its zone's cost, but nothing on its own host."""
        linked, costs = self._pull(workload, int(self.problem.zone_of[site]))
        if len(linked):
            self.near[linked] += sign * costs
            self.near[linked, site] -= sign * costs[:, site]

    def cost(self) -> int:
        """What the placement costs: towards what stands, every link once, and for each replica left out."""
        workloads, sites = self.problem.workload_of, self.problem.sites
        paid = self.near[workloads, self.site_of]
        placed = self.site_of < sites
        standing = self.problem.standing[workloads[placed], self.site_of[placed]].sum()
        # Both ends of a link between two replicas pay for it, so half of it is to be taken off.
        return int(paid[~placed].sum()) + int(standing) + int(paid[placed].sum() - standing) // 2
