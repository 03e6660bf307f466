"""Which faults a run consists of. Pure: a seed, a length and the names of what there is give the same list every time."""

from __future__ import annotations

from random import Random

import msgspec

CONTROL_PLANE = ("etcd", "kube-apiserver")
HELPERS = ("kube-scheduler", "kube-controller-manager", "kwok")
DENIED = ("configmaps", "pods", "networktopologies", "appgroups", "leases")
# How often each kind comes beside others: what takes the whole cluster's time comes less often, so that the rest is seen too.
WEIGHTS = {
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
LASTING = frozenset({"pause", "pause-control-plane", "cut", "latency", "relabel", "deny", "etcd-full"})
"""Kinds that are reverted after a while."""
MEAN_GAP_S, SHORTEST_GAP_S = 2.0, 0.3
_SHORTEST_S, _LONGEST_S = 1.0, 14.0


class World(msgspec.Struct, frozen=True):
    """Names of targets: our programs, agents among them, and the topology's zones and nodes."""

    programs: tuple[str, ...]
    zones: tuple[str, ...]
    nodes: tuple[str, ...]


class Fault(msgspec.Struct, frozen=True):
    """One fault.

    Attributes:
        at_s: seconds after the start.
        kind: one of `WEIGHTS`.
        target: program, node, kind of object, or two zones joined by ``/``; empty where the kind has only one.
        for_s: after so many seconds it is taken back; 0 for what is not.
    """

    at_s: float
    kind: str
    target: str = ""
    for_s: float = 0.0


def draw(seed: int, length_s: float, world: World) -> list[Fault]:
    """The faults of a run, in order of time. About half come before recovery from the last."""
    chance = Random(seed)
    faults: list[Fault] = []
    at_s = 0.0
    while True:
        at_s += max(SHORTEST_GAP_S, chance.expovariate(1 / MEAN_GAP_S))
        if at_s >= length_s:
            return faults
        (kind,) = chance.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))
        for_s = round(chance.uniform(_SHORTEST_S, _LONGEST_S), 1) if kind in LASTING else 0.0
        faults.append(Fault(round(at_s, 2), kind, _target(chance, kind, world), for_s))


def _target(chance: Random, kind: str, world: World) -> str:
    if kind in {"cut", "latency"}:
        return "/".join(sorted(chance.sample(world.zones, 2)))
    targets = {
        "kill": world.programs,
        "pause": world.programs,
        "kill-control-plane": CONTROL_PLANE,
        "pause-control-plane": CONTROL_PLANE,
        "kill-helper": HELPERS,
        "relabel": world.nodes,
        "deny": DENIED,
    }
    return chance.choice(targets[kind]) if kind in targets else ""
