"""Events and log lines: what moved and why, what a move came to, and why a hot node is not relieved."""

from __future__ import annotations

from controller.descheduler.decision import Move, Plan
from controller.descheduler.evict import Result
from controller.descheduler.followup import FAILED, Ended
from kubekit import logs
from kubekit.events import EventRecorder, Reference

log = logs.get("controller.descheduler")

DESCHEDULED, REFUSED, NOT_HELPED, STUCK = "Descheduled", "EvictionRefused", "MoveDidNotHelp", "NotRelieved"
_ENDS = {
    "returned": "its replacement came back to the same node",
    "not-cooled": "the node did not cool",
    "cost-not-fallen": "its network cost did not fall",
    "lost": "its replacement is not running",
}


def describe_eviction(move: Move) -> str:
    """The note that users know: ``Pod evicted from node "n1" by the reason "node is overutilized, ..."``."""
    return f'Pod evicted from node "{move.node}" by the reason "{move.reason}"'


def _about_pod(key: str, uid: str) -> Reference:
    namespace, _, name = key.partition("/")
    return Reference("v1", "Pod", name, namespace, uid)


class Teller:
    """Says each thing once per change of state."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._stuck: dict[str, str] = {}

    def tell_result(self, move: Move, result: Result) -> None:
        """An eviction was tried."""
        if result.kind == "evicted":
            log.info("pod evicted", pod=move.pod, node=move.node, target=move.target, reason=move.reason)
            self._recorder.normal(_about_pod(move.pod, move.uid), DESCHEDULED, describe_eviction(move))
        elif result.kind == "dry-run":
            fields = {"pod": move.pod, "node": move.node, "target": move.target, "reason": move.reason}
            log.change(f"dry-run/{move.pod}", move.node, "pod would be evicted", level="info", **fields)
        elif result.kind != "gone":
            log.change(f"evict/{move.pod}", result.kind, "pod not evicted", pod=move.pod, error=result.message)
            note = f'Eviction from node "{move.node}" by the reason "{move.reason}" was refused: {result.message}'
            self._recorder.warning(_about_pod(move.pod, move.uid), REFUSED, note)

    def tell_end(self, ended: Ended) -> None:
        """A followed move ended."""
        move = ended.move
        fields = {"pod": move.pod, "node": move.node, "landed": move.landed, "outcome": ended.outcome}
        if ended.outcome not in FAILED:
            log.info("move ended", **fields)
            return
        log.warning("move did not help", workload=move.workload, rest_s=int(ended.rest_s), **fields)
        note = (
            f'Pod "{move.pod}" was evicted from node "{move.node}", but {_ENDS[ended.outcome]}; '
            f"{move.workload} is left alone for {ended.rest_s / 60:.0f} min"
        )
        about = _about_pod(move.landed_pod, move.landed_uid) if move.landed_pod else _about_pod(move.pod, move.uid)
        self._recorder.warning(about, NOT_HELPED, note)

    def tell_plan(self, plan: Plan) -> None:
        """A round was decided: hot nodes that it could not relieve, and those that it no more has to."""
        stuck = {state.node: state.why for state in plan.nodes if state.stuck}
        for node, why in stuck.items():
            if self._stuck.get(node) != why:
                log.warning("hot node not relieved", node=node, why=why)
                self._recorder.warning(Reference("v1", "Node", node), STUCK, f"Node is overutilized, but {why}")
        # A node whose anomaly timed out is still over, and soon found hot again: that is no change worth telling.
        still_over = {state.node for state in plan.nodes if state.kind in {"over", "unknown"}}
        still_over -= {move.node for move in plan.moves}
        for node in self._stuck.keys() - stuck.keys() - still_over:
            log.info("hot node needs nothing more", node=node)
        self._stuck = {node: why for node, why in self._stuck.items() if node in still_over} | stuck
        for note in plan.notes:
            log.debug("round", note=note)
