"""Parses a scheduler's message about an unschedulable pod: the reason that excludes most nodes, and its fix. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from controller.cluster.eligibility import UNSCHEDULABLE, Constraints, first_untolerated_taint
from controller.cluster.pods import PodSpec
from controller.diagnosis.facts import NodeFact, PodFact
from kubekit.text import format_command
from kubekit.wire import Taint, split_key
from netperf.contract import CAPACITY_ANNOTATION

MAX_NODES_NAMED = 5
ROLLOUT_KINDS = frozenset({"Deployment", "StatefulSet", "DaemonSet"})
"""Kinds that replace their pods when their template changes."""
_NODE_STATE_PREFIXES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Prefixes of taints that Kubernetes sets by the state of a node."""


class UnschedulableReason(msgspec.Struct, frozen=True):
    """A reason for which a scheduler excludes nodes.

    Attributes:
        code: short and stable; a part of the finding's code.
        pattern: regular expression for the scheduler's message.
        meaning: completes "finds no node: ...".
        fix: commands and instructions, with placeholders ``{pod}``, ``{namespace}``, ``{group}`` (its AppGroup), ``{group_namespace}``
            and ``{cordoned}`` (nodes).
    """

    code: str
    pattern: str
    meaning: str
    fix: tuple[str, ...]


_GET_POD = "kubectl -n {namespace} get pod {pod} -o yaml"
_REASONS: tuple[UnschedulableReason, ...] = (
    UnschedulableReason(
        "max-cost", r"does not meet several network requirements",
        "everywhere more of its dependencies would be violated than met",
        ("kubectl netaware explain pod {pod} -n {namespace}", "kubectl netaware costs",
         "raise maxNetworkCost to what the network can do: kubectl -n {group_namespace} edit appgroup {group}")),
    UnschedulableReason(
        "bandwidth", r"Insufficient network\.aware\.com/bandwidth", "no node publishes that much free bandwidth",
        ("kubectl netaware bandwidth", f"kubectl annotate --overwrite node NODE {CAPACITY_ANNOTATION}=SPEED",
         "lower the request in its template, if nodes have no more")),
    UnschedulableReason(
        "capacity", r"Insufficient |Too many pods", "nodes are full",
        ("kubectl describe nodes | grep -A 9 'Allocated resources'", "add nodes, or lower the requests in its template")),
    UnschedulableReason(
        "taint", r"untolerated taint|had taint", "it does not tolerate the taints of nodes",
        ("kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints", "add a toleration to its template")),
    UnschedulableReason(
        "cordoned", r"were unschedulable", "nodes are cordoned", ("kubectl get nodes", "kubectl uncordon {cordoned}")),
    UnschedulableReason(
        "selector", r"didn't match Pod's node (?:affinity|selector)|node affinity/selector",
        "nodes do not match its node selector or affinity",
        ("kubectl get nodes --show-labels", "correct nodeSelector or affinity in its template")),
    # The second pattern is for Kubernetes 1.36.
    UnschedulableReason(
        "volume", r"volume node affinity conflict|match PersistentVolume's node affinity",
        "its volume can be used from other nodes only",
        ("kubectl -n {namespace} get pvc", "kubectl get pv -o yaml | grep -A 12 nodeAffinity",
         "add nodes where its volume is, or re-create its claim elsewhere")),
    UnschedulableReason(
        "claim", r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim|no available persistent volumes",
        "its PersistentVolumeClaim is missing or not bound",
        ("kubectl -n {namespace} get pvc", "kubectl get storageclass", "add the claim, or a volume or StorageClass that serves it")),
    UnschedulableReason(
        "spread", r"anti-affinity|topology spread constraints|pod affinity rules", "its rules about other pods exclude the nodes",
        (_GET_POD, "add nodes, lower its replicas, or loosen the rules in its template")),
    UnschedulableReason(
        "ports", r"free ports for the requested pod ports", "its host ports are taken on the nodes",
        (_GET_POD, "add nodes, or lower its replicas to one for each node")),
)  # fmt: skip
_SELECTOR_INDEX = next(index for index, reason in enumerate(_REASONS) if reason.code == "selector")
_UNKNOWN = UnschedulableReason(
    "unschedulable", "", "its message names no known reason", ("kubectl -n {namespace} describe pod {pod}",)
)


class NodeSurvey(msgspec.Struct, frozen=True):
    """The nodes that a pod's selector and affinity allow.

    Attributes:
        zones: the zone of each node; empty for a node without one.
        tolerated: number of nodes whose taints the pod tolerates.
        cordoned: sorted names of cordoned nodes.
        taint: the most frequent other taint that the pod does not tolerate; None without one.
    """

    zones: tuple[str, ...] = ()
    tolerated: int = 0
    cordoned: tuple[str, ...] = ()
    taint: Taint | None = None


class NodeSurveys:
    """Surveys of pods' specs. Pods of one template share a survey, because there may be 10,000 nodes."""

    def __init__(self, nodes: Mapping[str, NodeFact]) -> None:
        self._nodes = nodes
        self._surveys: dict[bytes, NodeSurvey] = {}

    def survey(self, spec: PodSpec) -> NodeSurvey:
        """The survey of one spec."""
        key = msgspec.json.encode((spec.node_selector, spec.affinity, spec.tolerations))
        if key not in self._surveys:
            self._surveys[key] = self._make_survey(spec)
        return self._surveys[key]

    def _make_survey(self, spec: PodSpec) -> NodeSurvey:
        constraints = Constraints(spec)
        allowed = {
            name: node for name, node in self._nodes.items() if not constraints.unschedulable_reason(name, node.labels)
        }
        untolerated = {
            name: taint
            for name, node in allowed.items()
            if (taint := first_untolerated_taint(node.taints, spec.tolerations))
        }
        taints = Counter(taint for taint in untolerated.values() if taint.key != UNSCHEDULABLE.key)
        return NodeSurvey(
            tuple(node.zone for node in allowed.values()),
            len(allowed) - len(untolerated),
            tuple(sorted(name for name, taint in untolerated.items() if taint.key == UNSCHEDULABLE.key)),
            taints.most_common(1)[0][0] if taints else None,
        )


def reason_of(pod: PodFact, surveys: NodeSurveys) -> UnschedulableReason:
    """The reason that excludes most nodes for a pod without a node, with commands for this pod."""
    survey = surveys.survey(pod.spec)
    reason = reason_in_message(message_of(pod), pod.metadata.name, pod.metadata.namespace, pod.group_key, survey)
    if reason.code == "taint" and survey.taint is not None:
        return msgspec.structs.replace(reason, fix=(*reason.fix[:-1], *_toleration_for(survey.taint, pod)))
    return reason


def message_of(pod: PodFact) -> str:
    """The scheduler's message; empty for none."""
    return pod.scheduled.message if pod.scheduled is not None else ""


def _toleration_for(taint: Taint, pod: PodFact) -> tuple[str, ...]:
    """The fix for a taint: to correct the node's state that it shows, or to add a toleration."""
    if taint.key.startswith(_NODE_STATE_PREFIXES):
        return (f"correct the cause of {taint.key} on its nodes, or add nodes",)
    if pod.owner is None or pod.owner[0] not in ROLLOUT_KINDS:
        return (f"add a toleration of {taint.key} to its template",)
    toleration = {"key": taint.key, "operator": "Equal", "value": taint.value or "", "effect": taint.effect}
    # The patch replaces the list; Kubernetes adds its own tolerations to each pod.
    tolerations = [
        msgspec.to_builtins(t) for t in pod.spec.tolerations or () if not t.key.startswith(_NODE_STATE_PREFIXES)
    ]
    body = [{"op": "add", "path": "/spec/template/spec/tolerations", "value": [*tolerations, toleration]}]
    kind, name = pod.owner
    return (
        format_command("kubectl -n {} patch {} {} --type=json -p {}", pod.metadata.namespace, kind.lower(), name, body),
    )


@lru_cache(maxsize=1024)
def parse_message(message: str) -> UnschedulableReason:
    """The reason that excludes most nodes in a scheduler's message; its commands have placeholders."""
    counts: Counter[int] = Counter()
    # The part about preemption repeats the reasons.
    for part in message.partition("preemption:")[0].split(", "):
        number = re.search(r"(?:^|: )([0-9]{1,9}) ", part)
        for index, reason in enumerate(_REASONS):
            if re.search(reason.pattern, part):
                counts[index] += int(number[1]) if number else 1
                break
    if len(counts) > 1:
        # The pod's own selector excludes nodes on purpose.
        counts.pop(_SELECTOR_INDEX, None)
    return _REASONS[min(counts, key=lambda index: (-counts[index], index))] if counts else _UNKNOWN


def reason_in_message(message: str, pod: str, namespace: str, group: str, survey: NodeSurvey) -> UnschedulableReason:
    """The reason by the scheduler's message; ``group`` is the key of the pod's AppGroup, empty for none."""
    group_namespace, name = split_key(group)
    reason = parse_message(message)
    cordoned = survey.cordoned[:MAX_NODES_NAMED] or "NODE"
    placeholders = {
        "pod": pod,
        "namespace": namespace,
        "group_namespace": group_namespace,
        "group": name,
        "cordoned": cordoned,
    }
    return msgspec.structs.replace(reason, fix=tuple(format_command(line, **placeholders) for line in reason.fix))
