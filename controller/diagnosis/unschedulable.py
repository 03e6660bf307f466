"""Finds why a scheduler found no node for a pod, from the scheduler's message, and names a fix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from controller.cluster.eligibility import UNSCHEDULABLE_TAINT, Constraints, first_untolerated_taint
from controller.cluster.pods import PodSpec
from controller.diagnosis.facts import NodeFact, PodFact
from kubekit.text import format_command
from kubekit.wire import Taint, split_key
from netperf.contract import CAPACITY_ANNOTATION

MAX_NODES_NAMED = 5
"""A command names at most this many cordoned nodes."""
ROLLOUT_KINDS = frozenset({"Deployment", "StatefulSet", "DaemonSet"})
"""Kinds that replace their pods when their template changes."""
_NODE_STATE_PREFIXES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Prefixes of taints that Kubernetes sets by the state of a node."""
_DEFAULT_TOLERATIONS = frozenset(
    (f"node.kubernetes.io/{state}", seconds)
    for state, seconds in (("not-ready", 300), ("unreachable", 300), ("memory-pressure", None))
)
"""Keys and tolerationSeconds of the tolerations that Kubernetes adds to pods; to those of DaemonSets it adds others."""


class UnschedulableReason(msgspec.Struct, frozen=True):
    """A reason for which a scheduler excludes nodes.

    Attributes:
        code: short and stable; a part of the finding's code.
        pattern: regular expression for its part of the scheduler's message; empty if the reason is unknown.
        meaning: completes "finds no node: ..."; "it" is the pod.
        fix: commands and instructions. Those in `_REASONS` have the placeholders ``{pod}``, ``{namespace}``, ``{group}`` (name of its
            AppGroup), ``{group_namespace}`` and ``{cordoned}`` (names of cordoned nodes).
    """

    code: str
    pattern: str
    meaning: str
    fix: tuple[str, ...]


_GET_POD = "kubectl -n {namespace} get pod {pod} -o yaml"
_REASONS: tuple[UnschedulableReason, ...] = (
    UnschedulableReason(
        "max-cost", r"does not meet several network requirements",
        "on every node, more of its dependencies would be violated than met",
        ("kubectl netaware explain pod {pod} -n {namespace}", "kubectl netaware costs",
         "raise maxNetworkCost to a cost that the network offers: kubectl -n {group_namespace} edit appgroup {group}")),
    UnschedulableReason(
        "bandwidth", r"Insufficient network\.aware\.com/bandwidth", "no node has enough free bandwidth",
        ("kubectl netaware bandwidth", f"kubectl annotate --overwrite node NODE {CAPACITY_ANNOTATION}=SPEED",
         "lower the request in the pod template, if no node has more bandwidth")),
    UnschedulableReason(
        "capacity", r"Insufficient |Too many pods", "the nodes are full",
        ("kubectl describe nodes | grep -A 9 'Allocated resources'", "add nodes, or lower the requests in the pod template")),
    UnschedulableReason(
        "taint", r"untolerated taint|had taint", "it does not tolerate the taints of the nodes",
        ("kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints", "add a toleration to the pod template")),
    UnschedulableReason(
        "cordoned", r"were unschedulable", "the nodes are cordoned", ("kubectl get nodes", "kubectl uncordon {cordoned}")),
    UnschedulableReason(
        "selector", r"didn't match Pod's node (?:affinity|selector)|node affinity/selector",
        "the nodes do not match its nodeSelector or node affinity",
        ("kubectl get nodes --show-labels", "correct nodeSelector or node affinity in the pod template")),
    # From Kubernetes 1.36 on, the message has the second form.
    UnschedulableReason(
        "volume", r"volume node affinity conflict|match PersistentVolume's node affinity",
        "its volume is usable only on other nodes",
        ("kubectl -n {namespace} get pvc", "kubectl get pv -o yaml | grep -A 12 nodeAffinity",
         "add nodes where its volume is usable, or re-create its claim elsewhere")),
    UnschedulableReason(
        "claim", r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim|no available persistent volumes",
        "its PersistentVolumeClaim is missing or not bound",
        ("kubectl -n {namespace} get pvc", "kubectl get storageclass", "add the claim, or a volume or StorageClass that serves it")),
    UnschedulableReason(
        "spread", r"anti-affinity|topology spread constraints|pod affinity rules",
        "its pod affinity, anti-affinity or topology spread constraints exclude the nodes",
        (_GET_POD, "add nodes, lower its replicas, or loosen these constraints in the pod template")),
    UnschedulableReason(
        "ports", r"free ports for the requested pod ports", "its host ports are in use on the nodes",
        (_GET_POD, "add nodes, or lower its replicas to one for each node")),
)  # fmt: skip
_UNKNOWN = UnschedulableReason(
    "unschedulable",
    "",
    "netaware does not know the reason in its message",
    ("kubectl -n {namespace} describe pod {pod}",),
)


class NodeSurvey(msgspec.Struct, frozen=True):
    """The nodes that a pod's selector and affinity allow.

    Attributes:
        zones: the zone of each node; empty for a node without one.
        tolerated_count: number of nodes whose taints the pod tolerates.
        cordoned: sorted names of cordoned nodes that the pod does not tolerate.
        main_taint: the taint that excludes most of the other nodes; None if taints exclude none of them.
    """

    zones: tuple[str, ...] = ()
    tolerated_count: int = 0
    cordoned: tuple[str, ...] = ()
    main_taint: Taint | None = None


class NodeSurveys:
    """Surveys of all nodes for pods' specs. Pods of one template share a survey, because there may be 10,000 nodes."""

    def __init__(self, nodes: Mapping[str, NodeFact]) -> None:
        self._nodes = nodes
        self._surveys: dict[bytes, NodeSurvey] = {}

    def for_spec(self, spec: PodSpec) -> NodeSurvey:
        """The survey of one spec."""
        key = msgspec.json.encode((spec.node_selector, spec.affinity, spec.tolerations))
        if key not in self._surveys:
            self._surveys[key] = self._make_survey(spec)
        return self._surveys[key]

    def _make_survey(self, spec: PodSpec) -> NodeSurvey:
        constraints = Constraints(spec)
        allowed = {
            name: node for name, node in self._nodes.items() if not constraints.unmet_constraint(name, node.labels)
        }
        untolerated = {
            name: taint
            for name, node in allowed.items()
            if (taint := first_untolerated_taint(node.taints, spec.tolerations))
        }
        taints = Counter(taint for taint in untolerated.values() if taint.key != UNSCHEDULABLE_TAINT.key)
        return NodeSurvey(
            tuple(node.zone for node in allowed.values()),
            len(allowed) - len(untolerated),
            tuple(sorted(name for name, taint in untolerated.items() if taint.key == UNSCHEDULABLE_TAINT.key)),
            taints.most_common(1)[0][0] if taints else None,
        )


def find_reason(pod: PodFact, surveys: NodeSurveys) -> UnschedulableReason:
    """The reason that excludes most nodes for a pod without a node, with commands for this pod."""
    survey = surveys.for_spec(pod.spec)
    reason = find_reason_in_message(pod.scheduled_condition.message, pod.metadata.key, pod.group_key, survey)
    if reason.code == "taint" and survey.main_taint is not None:
        return msgspec.structs.replace(reason, fix=(*reason.fix[:-1], *_list_taint_fixes(survey.main_taint, pod)))
    return reason


def _list_taint_fixes(taint: Taint, pod: PodFact) -> tuple[str, ...]:
    """The fix for a taint: correct the node's state if Kubernetes set the taint for it, else add a toleration."""
    if taint.key.startswith(_NODE_STATE_PREFIXES):
        return (f"correct the cause of {taint.key} on its nodes, or add nodes",)
    if pod.owner is None or pod.owner[0] not in ROLLOUT_KINDS - {"DaemonSet"}:
        return (f"add a toleration of {taint.key} to the pod template",)
    toleration = {"key": taint.key, "operator": "Equal", "value": taint.value or "", "effect": taint.effect}
    patch: dict[str, object] = {"op": "add", "path": "/spec/template/spec/tolerations", "value": [toleration]}
    # The patch appends to the template's list if there is one: if the pod has other tolerations than those that Kubernetes adds.
    if any((t.key, t.toleration_seconds) not in _DEFAULT_TOLERATIONS for t in pod.spec.tolerations or ()):
        patch |= {"path": "/spec/template/spec/tolerations/-", "value": toleration}
    kind, name = pod.owner[0].lower(), pod.owner[1]
    return (format_command("kubectl -n {} patch {} {} --type=json -p {}", pod.metadata.namespace, kind, name, [patch]),)


@lru_cache(maxsize=1024)
def parse_message(message: str) -> UnschedulableReason:
    """The reason that excludes most nodes in a scheduler's message; of equal ones the first in `_REASONS`. Its fix has placeholders.

    The pod's own selector counts only if there is no other reason, because it excludes nodes on purpose.
    """
    node_counts: Counter[UnschedulableReason] = Counter()
    # The part about preemption repeats the reasons.
    for part in message.partition("preemption:")[0].split(", "):
        number = re.search(r"(?:^|: )([0-9]{1,9}) ", part)
        reason = next((reason for reason in _REASONS if re.search(reason.pattern, part)), None)
        if reason is not None:
            node_counts[reason] += int(number[1]) if number else 1
    if len(node_counts) > 1:
        node_counts = Counter({reason: count for reason, count in node_counts.items() if reason.code != "selector"})
    return max(_REASONS, key=lambda reason: node_counts[reason]) if node_counts else _UNKNOWN


def find_reason_in_message(message: str, pod_key: str, group_key: str, survey: NodeSurvey) -> UnschedulableReason:
    """The reason in a scheduler's message, with commands for a pod; ``group_key`` is empty for a pod without an AppGroup."""
    reason = parse_message(message)
    (namespace, pod), (group_namespace, group) = split_key(pod_key), split_key(group_key)
    placeholders = {
        "pod": pod,
        "namespace": namespace,
        "group_namespace": group_namespace,
        "group": group,
        "cordoned": survey.cordoned[:MAX_NODES_NAMED] or "NODE",
    }
    return msgspec.structs.replace(reason, fix=tuple(format_command(line, **placeholders) for line in reason.fix))
