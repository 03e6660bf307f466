"""``POST /preempt``: which of the nodes that kube-scheduler would clear for a pod our filter would pass once they are cleared.

Without this verb a pod evicts others on a node that filter refuses at the next attempt, and then again on the next one. The
wire format is that of kube-scheduler's extender v1 types: victims by UID, since we are ``nodeCacheCapable``.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.cluster.pods import AskedPod
from controller.scheduler.state import State


class MetaPod(msgspec.Struct, frozen=True):
    """A victim."""

    uid: str = msgspec.field(default="", name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """The pods that would be evicted from a node, and how many PodDisruptionBudgets that would break."""

    pods: list[MetaPod] | None = msgspec.field(default=None, name="Pods")
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class PreemptionQuestion(msgspec.Struct, frozen=True):
    """ExtenderPreemptionArgs."""

    pod: AskedPod = msgspec.field(default=AskedPod(), name="Pod")
    nodes: dict[str, MetaVictims | None] | None = msgspec.field(default=None, name="NodeNameToMetaVictims")


class PreemptionAnswer(msgspec.Struct, frozen=True):
    """ExtenderPreemptionResult: the nodes that remain, with the same victims."""

    nodes: Mapping[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims")


decode_preemption = msgspec.json.Decoder(PreemptionQuestion).decode


def passing(
    state: State, namespace: str, group: str, workload: str, nodes: Mapping[str, MetaVictims | None]
) -> PreemptionAnswer:
    """The nodes that filter passes for a pod once their victims are gone.

    Args:
        state: the cluster.
        namespace: of the pod.
        group: its AppGroup label.
        workload: its workload label.
        nodes: as they were asked about.

    Raises:
        DeletedNodeError: only where deleted nodes block, as upstream has it.
    """
    remaining: dict[str, MetaVictims] = {}
    for node, victims in nodes.items():
        kept = victims or MetaVictims()
        gone = [placed for victim in kept.pods or () if (placed := state.placed(victim.uid)) is not None]
        weighing = state.weigh_without(namespace, group, workload, gone)
        if weighing.tally(node, state.place_of.get(node, 0)).passes:
            remaining[node] = kept
    return PreemptionAnswer(remaining)
