"""Draws the faults of a run from a seed: equal arguments give equal faults."""

from __future__ import annotations

from random import Random

import msgspec

CONTROL_PLANE = ("etcd", "kube-apiserver")
CLUSTER_COMPONENTS = ("kube-scheduler", "kube-controller-manager", "kwok")
DENIED_RESOURCES = ("configmaps", "pods", "networktopologies", "appgroups", "leases")
# Relative frequencies. Faults of the whole cluster are rare, because nothing else can be observed while they last.
WEIGHT_BY_KIND = {
    "kill-program": 6.0,  # SIGKILL to a program of ours
    "pause-program": 4.0,  # SIGSTOP
    "kill-control-plane": 1.0,  # etcd or the API server
    "pause-control-plane": 1.0,
    "kill-component": 1.0,  # a program of `CLUSTER_COMPONENTS`
    "cut-link": 2.0,  # packets between two zones are lost
    "slow-link": 2.0,  # their round trips take longer
    "delete-results": 2.0,  # all ConfigMaps with results of probes
    "corrupt-results": 2.0,  # results are truncated
    "delete-plans": 1.0,  # all ConfigMaps with probe plans
    "relabel-node": 1.0,  # a node gets the label of another zone
    "deny-writes": 1.0,  # our programs may not write a resource
    "fill-etcd": 1.0,  # etcd refuses writes as if its quota were used up
}
REVERTED_KINDS = frozenset(
    {"pause-program", "pause-control-plane", "cut-link", "slow-link", "relabel-node", "deny-writes", "fill-etcd"}
)
"""Faults that are reverted after their duration."""
# Short, so that about half of the faults hit a cluster that has not recovered from the one before.
_MEAN_GAP_S, _MIN_GAP_S = 2.0, 0.3
_MIN_DURATION_S, _MAX_DURATION_S = 1.0, 14.0


class FaultTargets(msgspec.Struct, frozen=True):
    """Names that faults may hit: our programs, agents included; zones; nodes."""

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


def draw_faults(seed: int, duration_s: float, targets: FaultTargets) -> list[Fault]:
    """The faults of a run, in order of time."""
    rng = Random(seed)
    faults: list[Fault] = []
    at_s = 0.0
    while True:
        at_s += max(_MIN_GAP_S, rng.expovariate(1 / _MEAN_GAP_S))
        if at_s >= duration_s:
            return faults
        (kind,) = rng.choices(tuple(WEIGHT_BY_KIND), tuple(WEIGHT_BY_KIND.values()))
        fault_s = round(rng.uniform(_MIN_DURATION_S, _MAX_DURATION_S), 1) if kind in REVERTED_KINDS else 0.0
        faults.append(Fault(round(at_s, 2), kind, _draw_target(rng, kind, targets), fault_s))


def _draw_target(rng: Random, kind: str, targets: FaultTargets) -> str:
    if kind in {"cut-link", "slow-link"}:
        return "/".join(sorted(rng.sample(targets.zones, 2)))
    names_by_kind = {
        "kill-program": targets.programs,
        "pause-program": targets.programs,
        "kill-control-plane": CONTROL_PLANE,
        "pause-control-plane": CONTROL_PLANE,
        "kill-component": CLUSTER_COMPONENTS,
        "relabel-node": targets.nodes,
        "deny-writes": DENIED_RESOURCES,
    }
    return rng.choice(names_by_kind[kind]) if kind in names_by_kind else ""
