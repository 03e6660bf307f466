"""Handles the extender's verbs: filter, prioritize and preempt.

A request is answered between two awaits, so that no change of a custom resource can come in the middle of it. What we cannot
read gets an error; the shipped scheduler configuration then goes on without us.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from aiohttp import web

from controller.cluster.pods import ExtenderPod, Target, serves, target_of
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.extender.encoding import Answers, Names, pass_all
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.rules import ScoreTable
from controller.scheduler.state import NO_GROUP_LABEL, DeletedNodeError, State
from kubekit import logs
from kubekit.http_limits import BodyTooLargeError, read_body
from kubekit.wire import DECODE_ERRORS

log = logs.get("controller.scheduler.extender")

Verb = Literal["filter", "prioritize", "preempt"]

MAX_REQUEST_BYTES = 16 << 20
"""15,000 nodes need about half a megabyte."""
REQUEST_TIMEOUT_S = 5.0
NOT_OURS = "the pod is not for a scheduler that this extender serves"
PLACED_BY_AFFINITY = "the decision is handed over on the pod itself, by its node affinity"
_NOT_FOR_US = frozenset({NOT_OURS, PLACED_BY_AFFINITY, NO_GROUP_LABEL})


class Question(NamedTuple):
    """ExtenderArgs; node names are decoded lazily."""

    pod: ExtenderPod
    nodenames: bytes


class BadRequestError(Exception):
    """A request that cannot be answered; the text says why."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


_decode_pod = msgspec.json.Decoder(ExtenderPod).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Extender:
    """Serves ``POST /filter``, ``POST /prioritize`` and ``POST /preempt``.

    Args:
        state: the cluster, kept current by others.
        config: the scheduler section.
        metrics: where to count.
        unready: why questions cannot be answered yet, empty when they can.
    """

    def __init__(
        self, state: State, config: SchedulerConfig, metrics: ExtenderMetrics, unready: Callable[[], str]
    ) -> None:
        self._state, self._config, self._metrics, self._unready = state, config, metrics, unready
        self._names = frozenset(config.scheduler_names)
        self._answers = Answers(state, config.rules, config.allocatable)

    def add_routes(self, app: web.Application) -> None:
        """Attach the verbs to an application."""
        app.router.add_post("/filter", self._handler("filter", self.answer_filter))
        app.router.add_post("/prioritize", self._handler("prioritize", self.answer_prioritize))
        app.router.add_post("/preempt", self._handler("preempt", self.answer_preempt))

    def _handler(self, verb: Verb, answer: Callable[[bytes], bytes]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            try:
                body = await self._read(request)
                started = time.perf_counter()
                result = answer(body)
                self._metrics.duration.labels(verb).observe(time.perf_counter() - started)
            except BadRequestError as error:
                self._metrics.errors.labels(verb, str(error.status)).inc()
                log.change(verb, str(error), "request refused", verb=verb, error=str(error), status=error.status)
                text = msgspec.json.encode({"error": f"netaware extender: {error}"})
                return web.Response(status=error.status, body=text, content_type="application/json")
            return web.Response(body=result, content_type="application/json")

        return handle

    async def _read(self, request: web.Request) -> bytes:
        reason = self._unready()
        if reason:
            raise BadRequestError(f"not ready: {reason}", 503)
        try:
            return await read_body(request, MAX_REQUEST_BYTES, REQUEST_TIMEOUT_S)
        except TimeoutError:
            raise BadRequestError("the request did not arrive in time", 408) from None
        except BodyTooLargeError:
            raise BadRequestError(f"the request is larger than {MAX_REQUEST_BYTES} bytes", 413) from None

    def answer_filter(self, body: bytes) -> bytes:
        """ExtenderFilterResult for ExtenderArgs, both as JSON.

        Raises:
            BadRequestError: the arguments cannot be read.
        """
        question = _question(body)
        score_table = self._score(question.pod)
        if isinstance(score_table, DeletedNodeError):
            self._metrics.decisions.labels("filter", "error").inc()
            return msgspec.json.encode({"nodenames": [], "failedNodes": {}, "error": str(score_table)})
        planned = self._answer_by_plan(question, score_table)
        if planned is not None:
            self._metrics.decisions.labels("filter", "planned").inc()
            return planned
        if score_table.neutral:
            self._metrics.decisions.labels("filter", "neutral").inc()
            _check_names(question.nodenames)
            return pass_all(question.nodenames)
        answer, refused = self._answers.filter(self._nodes_of(question), score_table)
        self._metrics.count_nodes("filter", refused)
        return answer

    def _answer_by_plan(self, question: Question, score_table: ScoreTable) -> bytes | None:
        """The answer by the plan. None without one, and for a pod that found no node with it: the plain rule answers then."""
        pod = question.pod
        if score_table.neutral in _NOT_FOR_US or pod.found_no_node:
            return None
        target = self._target(pod)
        if target is None:
            return None
        _check_names(question.nodenames)
        try:
            return self._answers.encode_planned(question.nodenames, score_table, target)
        except DECODE_ERRORS as error:
            raise BadRequestError(f"nodenames: {error}") from None

    def _nodes_of(self, question: Question) -> Names:
        try:
            return self._answers.names(question.nodenames)
        except DECODE_ERRORS as error:
            raise BadRequestError(f"nodenames: {error}") from None

    def answer_prioritize(self, body: bytes) -> bytes:
        """HostPriorityList for ExtenderArgs, both as JSON.

        Raises:
            BadRequestError: the arguments cannot be read.
        """
        question = _question(body)
        score_table = self._score(question.pod)
        if isinstance(score_table, DeletedNodeError):
            raise BadRequestError(str(score_table), 500)
        names = self._nodes_of(question)
        foreign = score_table.neutral in _NOT_FOR_US
        target = None if foreign else self._target(question.pod)
        result = "planned" if target is not None else "neutral" if score_table.neutral else "ruled"
        self._metrics.decisions.labels("prioritize", result).inc()
        return self._answers.prioritize(
            names, score_table, target, allocatable=not foreign or score_table.neutral == NO_GROUP_LABEL
        )

    def answer_preempt(self, body: bytes) -> bytes:
        """ExtenderPreemptionResult for ExtenderPreemptionArgs, both as JSON: the planned node alone, unless that breaks more
        PodDisruptionBudgets than another; else by the rule.

        Raises:
            BadRequestError: the arguments cannot be read.
        """
        try:
            question = decode_preemption(body)
        except DECODE_ERRORS as error:
            raise BadRequestError(f"no ExtenderPreemptionArgs: {error}") from None
        if question.nodes is None:
            msg = "NodeNameToMetaVictims is missing; set nodeCacheCapable: true for this extender in the scheduler's configuration"
            raise BadRequestError(msg)
        score_table = self._score(question.pod)
        if isinstance(score_table, DeletedNodeError):
            raise BadRequestError(str(score_table), 500)
        if score_table.neutral:
            answer = PreemptionAnswer({node: victims or MetaVictims() for node, victims in question.nodes.items()})
        else:
            meta = question.pod.metadata
            workload = meta.label(WORKLOAD_LABEL)
            answer = filter_victims(self._state, meta.namespace, meta.label(APPGROUP_LABEL), workload, question.nodes)
        if score_table.neutral not in _NOT_FOR_US and not question.pod.found_no_node:
            answer = _only_planned_node(answer, self._target(question.pod))
        self._metrics.count_nodes("preempt", len(question.nodes) - len(answer.nodes))
        return msgspec.json.encode(answer)

    def _score(self, pod: ExtenderPod) -> ScoreTable | DeletedNodeError:
        scheduler = pod.spec.scheduler_name
        if scheduler and not serves(scheduler, self._names):
            return ScoreTable(NOT_OURS)
        labels = pod.metadata.labels or {}
        group = labels.get(APPGROUP_LABEL, "")
        mode = self._state.placement_of(labels, pod.metadata.namespace, self._config.placement)
        if group and mode != "extender":
            return ScoreTable(PLACED_BY_AFFINITY)
        try:
            return self._state.score(pod.metadata.namespace, group, labels.get(WORKLOAD_LABEL, ""))
        except DeletedNodeError as error:
            return error

    def _target(self, pod: ExtenderPod) -> Target | None:
        return target_of(pod) if self._config.plans else None


def _question(body: bytes) -> Question:
    """Keys may be written in any case, as Go reads them; kube-scheduler writes Go's names."""
    try:
        fields = {key.lower(): value for key, value in _decode_fields(body).items()}
        pod = _decode_pod(fields.get("pod", b"{}"))
    except DECODE_ERRORS as error:
        raise BadRequestError(f"no ExtenderArgs: {error}") from None
    if "nodenames" not in fields:
        msg = "nodenames is missing; set nodeCacheCapable: true for this extender in the scheduler's configuration"
        raise BadRequestError(msg)
    names = bytes(fields["nodenames"])
    return Question(pod, b"[]" if names == b"null" else names)


def _check_names(raw: bytes) -> None:
    """Check that names to echo are a list."""
    if not raw.startswith(b"["):
        raise BadRequestError("nodenames is no list")


class MetaPod(msgspec.Struct, frozen=True):
    """A victim."""

    uid: str = msgspec.field(default="", name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """The pods that would be evicted from a node, and how many PodDisruptionBudgets that would break."""

    pods: list[MetaPod] | None = msgspec.field(default=None, name="Pods")
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class PreemptionQuestion(msgspec.Struct, frozen=True):
    """ExtenderPreemptionArgs of kube-scheduler's extender v1 types: victims by UID, since we are ``nodeCacheCapable``."""

    pod: ExtenderPod = msgspec.field(default=ExtenderPod(), name="Pod")
    nodes: dict[str, MetaVictims | None] | None = msgspec.field(default=None, name="NodeNameToMetaVictims")


class PreemptionAnswer(msgspec.Struct, frozen=True):
    """ExtenderPreemptionResult: the nodes that remain, with the same victims."""

    nodes: Mapping[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims")


def _only_planned_node(answer: PreemptionAnswer, target: Target | None) -> PreemptionAnswer:
    """The planned node alone, unless another breaks fewer PodDisruptionBudgets."""
    planned = answer.nodes.get(target.node) if target is not None else None
    if target is None or planned is None:
        return answer
    least = min(victims.num_pdb_violations for victims in answer.nodes.values())
    return PreemptionAnswer({target.node: planned}) if planned.num_pdb_violations == least else answer


decode_preemption = msgspec.json.Decoder(PreemptionQuestion).decode


def filter_victims(
    state: State, namespace: str, group: str, workload: str, nodes: Mapping[str, MetaVictims | None]
) -> PreemptionAnswer:
    """The nodes that kube-scheduler would clear for a pod, and that filter passes once they are cleared.

    Without this verb a pod evicts others on a node that filter refuses at the next attempt, and then again on the next one.

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
        score_table = state.score_without(namespace, group, workload, gone)
        if score_table.node_score(node, state.location_index.get(node, 0)).passes:
            remaining[node] = kept
    return PreemptionAnswer(remaining)
