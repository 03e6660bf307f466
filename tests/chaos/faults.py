"""Draws the faults of a run from a seed: equal arguments give equal faults."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import msgspec

CONTROL_PLANE = ("etcd", "kube-apiserver")
CLUSTER_COMPONENTS = ("kube-scheduler", "kube-controller-manager", "kwok")
DENIED_RESOURCES = ("configmaps", "pods", "networktopologies", "appgroups", "leases")
# A Lease's duration and two attempts to acquire it, or a start of the control plane.
_LEASE_OUTAGE_S, _START_OUTAGE_S = 14.0, 30.0


class FaultKind(NamedTuple):
    """A kind of fault: relative frequency, names that it hits (a field of `FaultTargets`, or all), and its effect."""

    weight: float
    targets: str | tuple[str, ...] = ()
    is_reverted: bool = False
    max_outage_s: float = 0.0


# Faults of the whole cluster are rare, because nothing else can be observed while they last.
FAULT_KINDS = {
    # SIGKILL and SIGSTOP
    "kill-program": FaultKind(6.0, "programs", max_outage_s=_LEASE_OUTAGE_S),
    "pause-program": FaultKind(4.0, "programs", is_reverted=True, max_outage_s=_LEASE_OUTAGE_S),
    "kill-control-plane": FaultKind(1.0, CONTROL_PLANE, max_outage_s=_START_OUTAGE_S),
    "pause-control-plane": FaultKind(1.0, CONTROL_PLANE, is_reverted=True, max_outage_s=_LEASE_OUTAGE_S),
    "kill-component": FaultKind(1.0, CLUSTER_COMPONENTS),
    # Packets between two zones are lost, or late.
    "cut-link": FaultKind(2.0, "zones", is_reverted=True),
    "slow-link": FaultKind(2.0, "zones", is_reverted=True),
    # All ConfigMaps with results of probes, or with probe plans.
    "delete-results": FaultKind(2.0),
    "corrupt-results": FaultKind(2.0),
    "delete-plans": FaultKind(1.0),
    # A node gets the label of another zone.
    "relabel-node": FaultKind(1.0, "nodes", is_reverted=True),
    # Our programs may not write a resource.
    "deny-writes": FaultKind(1.0, DENIED_RESOURCES, is_reverted=True, max_outage_s=_LEASE_OUTAGE_S),
    # etcd refuses writes as if its quota were used up.
    "fill-etcd": FaultKind(1.0, is_reverted=True, max_outage_s=_LEASE_OUTAGE_S),
}
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
        kind: a key of `FAULT_KINDS`.
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
        (name,) = rng.choices(tuple(FAULT_KINDS), [kind.weight for kind in FAULT_KINDS.values()])
        kind = FAULT_KINDS[name]
        fault_s = round(rng.uniform(_MIN_DURATION_S, _MAX_DURATION_S), 1) if kind.is_reverted else 0.0
        faults.append(Fault(round(at_s, 2), name, _draw_target(rng, kind, targets), fault_s))


def _draw_target(rng: Random, kind: FaultKind, targets: FaultTargets) -> str:
    if kind.targets == "zones":
        return "/".join(sorted(rng.sample(targets.zones, 2)))
    names = getattr(targets, kind.targets) if isinstance(kind.targets, str) else kind.targets
    return str(rng.choice(names)) if names else ""
