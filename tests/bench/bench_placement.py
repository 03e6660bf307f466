"""Placement of whole groups: a production cluster that others published, and size.

Runs on two cores; deadlines are those of `simulate`. Figures for docs/scheduling.md.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from typing import Any

import msgspec

from controller.cluster.hosts import host_of
from controller.scheduler.placement.planner import plan_group
from controller.scheduler.placement.solve import solve
from tests.bench import m3
from tests.unit.controller import groups

Figure = dict[str, Any]
DEALS = 20
PUBLISHED = (
    "published: production 7.0 %, ApplSci19 58.2 %, RASA's best 84.9 %; annealing of whole replicas levels at 85.5 %"
)


def measure() -> dict[str, Figure]:
    """All figures."""
    return measure_m3() | measure_zones() | measure_size()


def _figure(value: float, unit: str, budget: str, ok: bool | None, reference: str = "") -> Figure:
    return {"value": value, "unit": unit, "budget": budget, "ok": ok, "reference": reference}


def measure_m3() -> dict[str, Figure]:
    """Machines as hosts, PreferSameNode, no replica above its fair share."""
    data = m3.read()
    problem = m3.problem_of(data)
    before = m3.scores(problem, m3.production(data))
    began = time.monotonic()
    found = m3.scores(problem, solve(problem, seed=1, deadline_s=50.0))
    took = time.monotonic() - began
    gained = found.gained_affinity * 100
    return {
        "m3_gained_affinity": _figure(gained, "%", ">= 85", gained >= 85, PUBLISHED),
        "m3_gained_affinity_in_production": _figure(before.gained_affinity * 100, "%", "", None),
        "m3_unplaced": _figure(found.unplaced, "pods", "0", found.unplaced == 0),
        "m3_seconds": _figure(took, "s", "<= 60", took <= 60),
    }


def measure_zones() -> dict[str, Figure]:
    """M3 dealt to three zones, PreferSameZone, every service to survive a zone."""
    data = m3.read()
    found = []
    for deal in range(DEALS):
        problem = m3.problem_of(data, deal)
        found.append(m3.scores(problem, solve(problem, seed=deal, deadline_s=50.0)))
        print(f"  deal {deal}: {found[-1]}", file=sys.stderr, flush=True)
    near = 100 * statistics.mean(one.in_zone for one in found)
    hottest = statistics.mean(one.hottest for one in found)
    together, unplaced = max(one.together for one in found), max(one.unplaced for one in found)
    return {
        "m3_zones_in_zone": _figure(
            near, "%", ">= 92", near >= 92, f"least of {DEALS}: {100 * min(f.in_zone for f in found):.1f} %"
        ),
        "m3_zones_hottest": _figure(
            hottest, "x", "<= 1.15", hottest <= 1.15, f"worst of {DEALS}: {max(f.hottest for f in found):.3f}"
        ),
        "m3_zones_together": _figure(together, "services", "0", together == 0),
        "m3_zones_unplaced": _figure(unplaced, "pods", "0", unplaced == 0),
    }


def measure_size() -> dict[str, Figure]:
    """100 workloads of 50 replicas on 10,000 hosts, in processor time."""
    rng = random.Random(1)
    pairs = [(rng.randrange(j), j) for j in range(1, 100)]
    pairs += [(i, j) for j in range(1, 100) for i in range(j) if rng.random() < 0.02]
    edges = tuple((i, j, 10) for i, j in dict.fromkeys(pairs))
    case = groups.Case((50,) * 100, edges, ((0, 3, 5), (3, 0, 4), (5, 4, 0)), (16,) * 3)
    hosts = {}
    for number in range(10_000):
        node = groups.node_of(number % 3, 16)
        named = msgspec.structs.replace(node.metadata, name=f"n{number:05}")
        host = host_of(msgspec.structs.replace(node, metadata=named))
        hosts[host.name] = host
    snapshot = groups.snapshot(case, hosts=hosts, spread="soft", objective="time")
    began = time.process_time()
    plan = plan_group(snapshot)
    took = time.process_time() - began
    return {
        "plan_5000_replicas_10000_hosts": _figure(took, "s", "< 2", took < 2, "processor time of one plan"),
        "plan_5000_replicas_unplaced": _figure(len(plan.unplaced), "pods", "0", not plan.unplaced),
    }
