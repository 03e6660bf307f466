"""Why a scheduler found no node, from its own words: which reason stands before most nodes, and what ends it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import msgspec

from controller.cluster.eligibility import UNSCHEDULABLE
from controller.diagnosis.facts import NodeFact, PodFact
from netperf.contract import CAPACITY_ANNOTATION

NAMED_NODES = 5


class Obstacle(msgspec.Struct, frozen=True):
    """A reason why nodes are refused.

    Attributes:
        code: short and stable.
        says: what it means.
        do: how to end it; ``{pod}``, ``{namespace}``, ``{group}`` (its AppGroup) and ``{cordoned}`` (nodes) are put in.
    """

    code: str
    says: str
    do: tuple[str, ...]


_OF_POD = "kubectl -n {namespace} get pod {pod} -o yaml"
_EXPLAIN = "kubectl netaware explain pod {pod} -n {namespace}"
_ROOM = "kubectl describe nodes | grep -A 9 'Allocated resources'"
_BANDWIDTH = "kubectl netaware bandwidth"
_TABLE: tuple[tuple[str, Obstacle], ...] = (
    (
        r"does not meet several network requirements",
        Obstacle(
            "max-cost",
            "more of its dependencies would be broken than met there",
            (
                _EXPLAIN,
                "kubectl netaware costs",
                "raise maxNetworkCost to what the network can do: kubectl -n {namespace} edit appgroup {group}",
            ),
        ),
    ),
    (
        r"too little free bandwidth for the Workload dependencies",
        Obstacle(
            "pair-bandwidth",
            "the zones have too little free bandwidth for its dependencies",
            (_BANDWIDTH, "lower minBandwidth: kubectl -n {namespace} edit appgroup {group}"),
        ),
    ),
    (
        r"Insufficient network\.aware\.com/bandwidth",
        Obstacle(
            "bandwidth",
            "no node has that much bandwidth left, or publishes any",
            (
                _BANDWIDTH,
                f"kubectl annotate --overwrite node NODE {CAPACITY_ANNOTATION}=SPEED",
                "lower the request in its template, where nodes have no more",
            ),
        ),
    ),
    (
        r"Insufficient |Too many pods",
        Obstacle("room", "nodes are full", (_ROOM, "add nodes, or lower the requests in its template")),
    ),
    (
        r"untolerated taint|had taint",
        Obstacle(
            "taint",
            "it does not tolerate their taints",
            (
                "kubectl get nodes -o custom-columns=NODE:.metadata.name,TAINTS:.spec.taints",
                "add a toleration to its template",
            ),
        ),
    ),
    (
        r"were unschedulable",
        Obstacle("cordoned", "they are cordoned", ("kubectl get nodes", "kubectl uncordon {cordoned}")),
    ),
    (
        r"didn't match Pod's node (?:affinity|selector)|node affinity/selector",
        Obstacle(
            "selector",
            "they do not match its node selector or affinity",
            ("kubectl get nodes --show-labels", "correct nodeSelector or affinity in its template"),
        ),
    ),
    (
        # Older schedulers say the first, that of Kubernetes 1.36 the second.
        r"volume node affinity conflict|match PersistentVolume's node affinity",
        Obstacle(
            "volume",
            "its volume can be used from other nodes only",
            (
                "kubectl -n {namespace} get pvc",
                "kubectl get pv -o yaml | grep -A 12 nodeAffinity",
                "add room where its volume is, or make its claim anew elsewhere",
            ),
        ),
    ),
    (
        r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim|no available persistent volumes",
        Obstacle(
            "claim",
            "its PersistentVolumeClaim is missing or not bound",
            (
                "kubectl -n {namespace} get pvc",
                "kubectl get storageclass",
                "add the claim, or a volume or StorageClass that serves it",
            ),
        ),
    ),
    (
        r"anti-affinity|topology spread constraints|pod affinity rules",
        Obstacle(
            "spread",
            "its rules about other pods forbid them",
            (_OF_POD, "add nodes, lower its replicas, or loosen the rules in its template"),
        ),
    ),
    (
        r"free ports for the requested pod ports",
        Obstacle(
            "ports",
            "its host ports are taken there",
            (_OF_POD, "add nodes, or lower its replicas to one for each node"),
        ),
    ),
    (
        r"no nodes available",
        Obstacle("no-nodes", "the cluster has no nodes", ("kubectl get nodes", "add nodes")),
    ),
)
_BY_CHOICE = next(place for place, (_, obstacle) in enumerate(_TABLE) if obstacle.code == "selector")
_UNKNOWN = Obstacle("unschedulable", "it says no more", ("kubectl -n {namespace} describe pod {pod}",))


def obstacle_of(pod: PodFact, nodes: Mapping[str, NodeFact]) -> Obstacle:
    """What stands before most of ``nodes``, by the condition PodScheduled of a pod that found none."""
    said = pod.scheduled.message if pod.scheduled is not None else ""
    return obstacle_in(said, pod.name, pod.namespace, pod.group, nodes)


def obstacle_in(said: str, pod: str, namespace: str, group: str, nodes: Mapping[str, NodeFact]) -> Obstacle:
    """The same by the scheduler's words; ``group`` is the pod's AppGroup, empty for none."""
    counts: Counter[int] = Counter()
    # What preemption would do repeats the reasons.
    for part in said.partition("preemption:")[0].split(", "):
        number = re.search(r"(?:^|: )(\d+) ", part)
        for place, (pattern, _) in enumerate(_TABLE):
            if re.search(pattern, part):
                counts[place] += int(number[1]) if number else 1
                break
    if len(counts) > 1:
        # Nodes that its own selector leaves out are meant to be; what the others say is why it waits.
        counts.pop(_BY_CHOICE, None)
    found = _TABLE[min(counts, key=lambda place: (-counts[place], place))][1] if counts else _UNKNOWN
    cordoned = [name for name, node in sorted(nodes.items()) if any(t.key == UNSCHEDULABLE.key for t in node.taints)]
    named = " ".join(cordoned[:NAMED_NODES]) or "NODE"
    filled = tuple(line.format(pod=pod, namespace=namespace, group=group, cordoned=named) for line in found.do)
    return msgspec.structs.replace(found, do=filled)
