"""Handles the extender's verbs: filter, prioritize and preempt.

A request is answered without an await, so that the cluster state cannot change meanwhile. A request that cannot be decoded gets an error;
with the shipped scheduler configuration, kube-scheduler then continues without the extender.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from aiohttp import web

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.cluster.pods import ExtenderPod, Target, calls_extender, target_of
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.extender.encoding import AnswerEncoder, encode_pass_all
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.rules import ScoreTable
from controller.scheduler.state import NO_GROUP_LABEL, NO_LOCATION_INDEX, DeletedNodeError, State
from kubekit import logs
from kubekit.http_limits import BodyTooLargeError, read_body
from kubekit.wire import DECODE_ERRORS

log = logs.get("controller.scheduler.extender")

Verb = Literal["filter", "prioritize", "preempt"]

MAX_REQUEST_BYTES = 16 << 20
REQUEST_TIMEOUT_S = 5.0
"""Time in which the whole body of a request must arrive."""
FOREIGN_SCHEDULER = "the pod belongs to a scheduler that this extender does not serve"
PLACED_BY_AFFINITY = "the pod is placed by its node affinity"
# Values of `ScoreTable.neutral_reason`.
_REASONS_WITHOUT_ALLOCATABLE = frozenset({FOREIGN_SCHEDULER, PLACED_BY_AFFINITY})
"""Reasons for which prioritize omits NodeResourcesAllocatable's score."""
_REASONS_WITHOUT_PLAN = _REASONS_WITHOUT_ALLOCATABLE | {NO_GROUP_LABEL}
"""Reasons for which the pod's plan does not count."""


class ExtenderArgs(NamedTuple):
    """A request for filter or prioritize, with the node names as a JSON list."""

    pod: ExtenderPod
    names_json: bytes


class MetaPod(msgspec.Struct, frozen=True):
    """A pod that would be evicted."""

    uid: str = msgspec.field(default="", name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """The pods that would be evicted from a node, and the number of violated PodDisruptionBudgets."""

    pods: list[MetaPod] | None = msgspec.field(default=None, name="Pods")
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class PreemptionArgs(msgspec.Struct, frozen=True):
    """ExtenderPreemptionArgs of kube-scheduler's extender v1 types: victims by UID, since we are ``nodeCacheCapable``."""

    pod: ExtenderPod = msgspec.field(default=ExtenderPod(), name="Pod")
    nodes: dict[str, MetaVictims | None] | None = msgspec.field(default=None, name="NodeNameToMetaVictims")


class BadRequestError(Exception):
    """A request that cannot be answered, with the HTTP status of the response."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


_decode_pod = msgspec.json.Decoder(ExtenderPod).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_preemption = msgspec.json.Decoder(PreemptionArgs).decode


class Extender:
    """Serves ``POST /filter``, ``POST /prioritize`` and ``POST /preempt``. ``describe_unready`` returns why they cannot be answered yet."""

    def __init__(
        self, state: State, config: SchedulerConfig, metrics: ExtenderMetrics, describe_unready: Callable[[], str]
    ) -> None:
        self._state, self._config, self._metrics, self._describe_unready = state, config, metrics, describe_unready
        self._scheduler_names = frozenset(config.scheduler_names)
        self._encoder = AnswerEncoder(state, config.network_overhead_args.weight)

    def add_routes(self, app: web.Application) -> None:
        """Add the routes of the verbs to an application."""
        app.router.add_post("/filter", self._handler("filter", self.answer_filter))
        app.router.add_post("/prioritize", self._handler("prioritize", self.answer_prioritize))
        app.router.add_post("/preempt", self._handler("preempt", self.answer_preempt))

    def _handler(self, verb: Verb, answer: Callable[[bytes], bytes]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            try:
                body = await self._read_request_body(request)
                started = time.perf_counter()
                answer_body = answer(body)
                self._metrics.request_duration.labels(verb).observe(time.perf_counter() - started)
                return web.Response(body=answer_body, content_type="application/json")
            except BadRequestError as error:
                return self._error_response(verb, str(error), error.status)
            except DeletedNodeError as error:
                return self._error_response(verb, str(error), 500)
            except DECODE_ERRORS as error:
                return self._error_response(verb, f"nodenames: {error}", 400)

        return handle

    def _error_response(self, verb: Verb, reason: str, status: int) -> web.Response:
        self._metrics.errors.labels(verb, str(status)).inc()
        log.log_change(verb, reason, "request refused", verb=verb, error=reason, status=status)
        body = msgspec.json.encode({"error": f"netaware extender: {reason}"})
        return web.Response(status=status, body=body, content_type="application/json")

    async def _read_request_body(self, request: web.Request) -> bytes:
        reason = self._describe_unready()
        if reason:
            raise BadRequestError(f"not ready: {reason}", 503)
        try:
            return await read_body(request, MAX_REQUEST_BYTES, REQUEST_TIMEOUT_S)
        except TimeoutError:
            raise BadRequestError("the request did not arrive in time", 408) from None
        except BodyTooLargeError:
            raise BadRequestError(f"the request is larger than {MAX_REQUEST_BYTES} bytes", 413) from None

    def answer_filter(self, body: bytes) -> bytes:
        """ExtenderFilterResult for ExtenderArgs, both as JSON; a `DeletedNodeError` becomes the result's error.

        Raises:
            BadRequestError: the arguments cannot be read.
            kubekit.wire.DECODE_ERRORS: ``nodenames`` is not a list of strings.
        """
        args = decode_args(body)
        try:
            score_table = self._score_table_of(args.pod)
        except DeletedNodeError as error:
            self._metrics.decisions.labels("filter", "error").inc()
            return msgspec.json.encode({"nodenames": [], "failedNodes": {}, "error": str(error)})
        # A pod for which the scheduler found no node with the plan is filtered by NetworkOverhead's rule (docs/scheduling.md).
        target = None if args.pod.status.scheduling_failed else self._target_of(args.pod, score_table)
        if target is not None:
            planned_answer = self._encoder.encode_planned_filter(args.names_json, score_table, target)
            if planned_answer is not None:
                self._metrics.decisions.labels("filter", "planned").inc()
                return planned_answer
        if score_table.neutral_reason:
            self._metrics.decisions.labels("filter", "neutral").inc()
            return encode_pass_all(args.names_json)
        answer, refused_count = self._encoder.encode_filter(self._encoder.parse_names(args.names_json), score_table)
        self._metrics.decisions.labels("filter", "refused-some" if refused_count else "passed").inc()
        self._metrics.refused_nodes.inc(refused_count)
        return answer

    def answer_prioritize(self, body: bytes) -> bytes:
        """HostPriorityList for ExtenderArgs, both as JSON.

        Raises:
            BadRequestError: the arguments cannot be read.
            DeletedNodeError: in upstream parity, if a pod of a dependency is on a deleted node.
            kubekit.wire.DECODE_ERRORS: ``nodenames`` is not a list of strings.
        """
        args = decode_args(body)
        score_table = self._score_table_of(args.pod)
        names = self._encoder.parse_names(args.names_json)
        # The plan counts after a failed attempt too, because a score, unlike filter, keeps the pod off no node.
        target = self._target_of(args.pod, score_table)
        result_without_plan = "neutral" if score_table.neutral_reason else "scored"
        self._metrics.decisions.labels("prioritize", result_without_plan if target is None else "planned").inc()
        adds_allocatable_score = score_table.neutral_reason not in _REASONS_WITHOUT_ALLOCATABLE
        return self._encoder.encode_priorities(names, score_table, target, with_allocatable=adds_allocatable_score)

    def answer_preempt(self, body: bytes) -> bytes:
        """ExtenderPreemptionResult for ExtenderPreemptionArgs, both as JSON.

        Nodes that filter would refuse after the eviction are removed. If the planned node remains, the others are removed too, unless one
        of them violates fewer PodDisruptionBudgets.

        Raises:
            BadRequestError: the arguments cannot be read.
            DeletedNodeError: in upstream parity, if a pod of a dependency is on a deleted node.
        """
        try:
            args = decode_preemption(body)
        except DECODE_ERRORS as error:
            raise BadRequestError(f"no ExtenderPreemptionArgs: {error}") from None
        if args.nodes is None:
            msg = "NodeNameToMetaVictims is missing; set nodeCacheCapable: true for this extender in the scheduler's configuration"
            raise BadRequestError(msg)
        score_table = self._score_table_of(args.pod)
        remaining = {node: victims or MetaVictims() for node, victims in args.nodes.items()}
        if not score_table.neutral_reason:
            remaining = self._nodes_passing_after_eviction(args.pod, remaining)
        target = None if args.pod.status.scheduling_failed else self._target_of(args.pod, score_table)
        if target is not None and target.node in remaining:
            on_target = remaining[target.node]
            if all(on_target.num_pdb_violations <= victims.num_pdb_violations for victims in remaining.values()):
                remaining = {target.node: on_target}
        result = "refused-some" if len(remaining) < len(args.nodes) else "passed"
        self._metrics.decisions.labels("preempt", result).inc()
        return msgspec.json.encode({"NodeNameToMetaVictims": remaining})

    def _nodes_passing_after_eviction(
        self, pod: ExtenderPod, nodes: Mapping[str, MetaVictims]
    ) -> dict[str, MetaVictims]:
        """The nodes that filter passes once their victims are gone.

        Otherwise a pod could evict others from a node that filter refuses at the next attempt, and then from further nodes.
        """
        metadata, state = pod.metadata, self._state
        group, workload = metadata.label(APPGROUP_LABEL), metadata.label(WORKLOAD_LABEL)
        passing: dict[str, MetaVictims] = {}
        for node, victims in nodes.items():
            placed = (state.placed_pods.get(victim.uid) for victim in victims.pods or ())
            evicted = [victim for victim in placed if victim is not None]
            score_table = state.score_after_eviction(metadata.namespace, group, workload, evicted)
            if score_table.node_score(node, state.location_index.get(node, NO_LOCATION_INDEX)).passes:
                passing[node] = victims
        return passing

    def _score_table_of(self, pod: ExtenderPod) -> ScoreTable:
        scheduler = pod.spec.scheduler_name
        if scheduler and not calls_extender(scheduler, self._scheduler_names):
            return ScoreTable(FOREIGN_SCHEDULER)
        labels = pod.metadata.labels or {}
        group = labels.get(APPGROUP_LABEL, "")
        mode = self._state.placement_mode_of(labels, pod.metadata.namespace, self._config.placement)
        if group and mode != "extender":
            return ScoreTable(PLACED_BY_AFFINITY)
        return self._state.score(pod.metadata.namespace, group, labels.get(WORKLOAD_LABEL, ""))

    def _target_of(self, pod: ExtenderPod, score_table: ScoreTable) -> Target | None:
        """The target of the pod's plan; None if it has none, or its plan does not count, as in upstream parity."""
        if self._config.has_upstream_parity or score_table.neutral_reason in _REASONS_WITHOUT_PLAN:
            return None
        return target_of(pod)


def decode_args(body: bytes) -> ExtenderArgs:
    """Decode ExtenderArgs; keys may have any case, as in Go.

    Raises:
        BadRequestError: the arguments cannot be read.
    """
    try:
        fields = {key.lower(): value for key, value in _decode_fields(body).items()}
        pod = _decode_pod(fields.get("pod", b"{}"))
    except DECODE_ERRORS as error:
        raise BadRequestError(f"no ExtenderArgs: {error}") from None
    if "nodenames" not in fields:
        msg = "nodenames is missing; set nodeCacheCapable: true for this extender in the scheduler's configuration"
        raise BadRequestError(msg)
    names_json = bytes(fields["nodenames"])
    if names_json == b"null":
        names_json = b"[]"
    if not names_json.startswith(b"["):
        raise BadRequestError("nodenames is not a list")
    return ExtenderArgs(pod, names_json)
