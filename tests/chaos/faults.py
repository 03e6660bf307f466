"""Draws the faults of a run from a seed: equal arguments give equal faults."""

from __future__ import annotations

from random import Random

import msgspec

CONTROL_PLANE = ("etcd", "kube-apiserver")
CLUSTER_COMPONENTS = ("kube-scheduler", "kube-controller-manager", "kwok")
DENIED_RESOURCES = ("configmaps", "pods", "networktopologies", "appgroups", "leases")
# Relative frequencies. Faults of the whole cluster are rare, because nothing else can be observed while they last.
WEIGHT_BY_KIND = {
    "kill": 6.0,
    "pause": 4.0,
    "kill-control-plane": 1.0,
    "pause-control-plane": 1.0,
    "kill-helper": 1.0,
    "cut": 2.0,
    "latency": 2.0,
    "results-delete": 2.0,
    "results-corrupt": 2.0,
    "plans-delete": 1.0,
    "relabel": 1.0,
    "deny": 1.0,
    "etcd-full": 1.0,
}
REVERTED_KINDS = frozenset({"pause", "pause-control-plane", "cut", "latency", "relabel", "deny", "etcd-full"})
"""Faults that are reverted after their duration."""
# Short, so that about half of the faults hit a cluster that has not recovered from the one before.
MEAN_GAP_S, MIN_GAP_S = 2.0, 0.3
_MIN_DURATION_S, _MAX_DURATION_S = 1.0, 14.0


class FaultTargets(msgspec.Struct, frozen=True):
    """Names that faults may hit: our programs with the agents, zones and nodes."""

    programs: tuple[str, ...]
    zones: tuple[str, ...]
    nodes: tuple[str, ...]


class Fault(msgspec.Struct, frozen=True):
    """One fault.

    Attributes:
        at_s: seconds after the start.
        kind: a key of `WEIGHT_BY_KIND`.
        target: program, node, resource, or two zones joined by ``/``; empty for faults of the whole cluster.
        duration_s: seconds until the fault is reverted; 0 for faults that are not.
    """

    at_s: float
    kind: str
    target: str = ""
    duration_s: float = 0.0


def draw_faults(seed: int, length_s: float, targets: FaultTargets) -> list[Fault]:
    """The faults of a run, in order of time."""
    rng = Random(seed)
    faults: list[Fault] = []
    at_s = 0.0
    while True:
        at_s += max(MIN_GAP_S, rng.expovariate(1 / MEAN_GAP_S))
        if at_s >= length_s:
            return faults
        (kind,) = rng.choices(tuple(WEIGHT_BY_KIND), tuple(WEIGHT_BY_KIND.values()))
        duration_s = round(rng.uniform(_MIN_DURATION_S, _MAX_DURATION_S), 1) if kind in REVERTED_KINDS else 0.0
        faults.append(Fault(round(at_s, 2), kind, _draw_target(rng, kind, targets), duration_s))


def _draw_target(rng: Random, kind: str, targets: FaultTargets) -> str:
    if kind in {"cut", "latency"}:
        return "/".join(sorted(rng.sample(targets.zones, 2)))
    choices = {
        "kill": targets.programs,
        "pause": targets.programs,
        "kill-control-plane": CONTROL_PLANE,
        "pause-control-plane": CONTROL_PLANE,
        "kill-helper": CLUSTER_COMPONENTS,
        "relabel": targets.nodes,
        "deny": DENIED_RESOURCES,
    }
    return rng.choice(choices[kind]) if kind in choices else ""
