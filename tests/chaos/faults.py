"""Which faults a run consists of. Pure: a seed, a length and the names of what there is give the same list every time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

CONTROL_PLANE = ("etcd", "kube-apiserver")
HELPERS = ("kube-scheduler", "kube-controller-manager", "kwok")
DEFINITIONS = ("appgroups.appgroup.diktyo.x-k8s.io", "networktopologies.networktopology.diktyo.x-k8s.io")
DENIED = ("configmaps", "pods", "networktopologies", "appgroups", "leases")


class Kind(msgspec.Struct, frozen=True):
    """A kind of fault: how often it comes beside others, what it is, and whether it is taken back after a while."""

    weight: float
    text: str
    lasts: bool = False


# What takes the whole cluster's time comes less often, so that the rest is seen too.
KINDS: dict[str, Kind] = {
    "kill": Kind(6.0, "SIGKILL to a program of ours"),
    "pause": Kind(4.0, "SIGSTOP to a program of ours", lasts=True),
    "kill-netserver": Kind(2.0, "SIGKILL to a node's netserver"),
    "pause-netserver": Kind(1.0, "SIGSTOP to a node's netserver", lasts=True),
    "kill-control-plane": Kind(1.0, "SIGKILL to etcd or the API server"),
    "pause-control-plane": Kind(1.0, "SIGSTOP to etcd or the API server", lasts=True),
    "kill-helper": Kind(1.0, "SIGKILL to scheduler, controller manager or kwok"),
    "cut": Kind(2.0, "two zones do not reach each other", lasts=True),
    "latency": Kind(2.0, "two zones are further from each other", lasts=True),
    "results-delete": Kind(2.0, "ConfigMaps of results deleted"),
    "results-corrupt": Kind(2.0, "values in them cut in half"),
    "results-fill": Kind(1.0, "they are filled up to their limit by somebody else", lasts=True),
    "plans-delete": Kind(1.0, "ConfigMaps of probe plans deleted"),
    "relabel": Kind(1.0, "a node gets another zone", lasts=True),
    "node-delete": Kind(1.0, "a node is deleted, and made again under the same name", lasts=True),
    "admission-deny": Kind(1.0, "a policy forbids our programs to write one kind of object", lasts=True),
    "webhook-dead": Kind(1.0, "a webhook that nobody answers stands before it", lasts=True),
    "definition-delete": Kind(0.5, "a CustomResourceDefinition is removed, and restored with its objects", lasts=True),
    "etcd-full": Kind(1.0, "etcd has no space left, and takes no write", lasts=True),
}
MEAN_GAP_S, SHORTEST_GAP_S = 2.0, 0.3
_SHORTEST_S, _LONGEST_S = 1.0, 14.0
# A latency's factor; the share of keys that are cut in half.
_AMOUNTS = {"latency": (2.0, 6.0), "results-corrupt": (0.1, 1.0)}


class World(msgspec.Struct, frozen=True):
    """What can be hit, by name: our programs, agents among them, and the topology's zones and nodes."""

    programs: tuple[str, ...]
    agents: tuple[str, ...]
    zones: tuple[str, ...]
    nodes: tuple[str, ...]


class Fault(msgspec.Struct, frozen=True):
    """One fault.

    Attributes:
        at_s: seconds after the start.
        kind: one of `KINDS`.
        target: program, node, kind of object, or two zones joined by ``/``; empty where the kind has only one.
        for_s: after so many seconds it is taken back; 0 for what is not.
        amount: the factor of a latency, the share of keys that are corrupted.
    """

    at_s: float
    kind: str
    target: str = ""
    for_s: float = 0.0
    amount: float = 0.0


def draw(seed: int, length_s: float, world: World, kinds: Sequence[str] = tuple(KINDS)) -> list[Fault]:
    """The faults of a run, in order of time. About half come before recovery from the last."""
    chance = Random(seed)
    weights = [KINDS[kind].weight for kind in kinds]
    faults: list[Fault] = []
    at_s = 0.0
    while True:
        at_s += max(SHORTEST_GAP_S, chance.expovariate(1 / MEAN_GAP_S))
        if at_s >= length_s:
            return faults
        kind = chance.choices(kinds, weights)[0]
        faults.append(_one(chance, round(at_s, 2), kind, world))


def _one(chance: Random, at_s: float, kind: str, world: World) -> Fault:
    lasts_s = round(chance.uniform(_SHORTEST_S, _LONGEST_S), 1) if KINDS[kind].lasts else 0.0
    amount = round(chance.uniform(*_AMOUNTS[kind]), 2) if kind in _AMOUNTS else 0.0
    return Fault(at_s, kind, _target(chance, kind, world), lasts_s, amount)


def _target(chance: Random, kind: str, world: World) -> str:
    if kind in {"cut", "latency"}:
        return "/".join(sorted(chance.sample(world.zones, 2)))
    targets = {
        "kill": world.programs,
        "pause": world.programs,
        "kill-netserver": world.agents,
        "pause-netserver": world.agents,
        "kill-control-plane": CONTROL_PLANE,
        "pause-control-plane": CONTROL_PLANE,
        "kill-helper": HELPERS,
        "relabel": world.nodes,
        "node-delete": world.nodes,
        "admission-deny": DENIED,
        "webhook-dead": DENIED,
        "definition-delete": DEFINITIONS,
    }
    return chance.choice(targets[kind]) if kind in targets else ""
