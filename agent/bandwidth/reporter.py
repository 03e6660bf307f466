"""Reports limits by metrics, and their changes by events and log lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from agent.bandwidth.annotations import PodBandwidthSpec
from agent.bandwidth.meters import TrafficMeter
from agent.bandwidth.metrics import BandwidthMetrics
from agent.bandwidth.state import LimitKey, LimitStatus
from kubekit import logs
from kubekit.events import EventRecorder, ObjectReference
from kubekit.text import join_first
from kubekit.wire import PODS

log = logs.get("agent.bandwidth")

NEW_POD_AGE_S = 120.0
"""Pods older than this get no events when an agent starts, because the previous agent may have sent them."""
MAX_UNLOCATED_LOGGED = 5
"""Number of pods in a log line about pods that cannot be located."""


class LimitReporter:
    """Reports the limits of one node's pods, and remembers what was reported."""

    def __init__(self, recorder: EventRecorder, registry: CollectorRegistry) -> None:
        self._recorder, self._metrics = recorder, BandwidthMetrics(registry)
        self._status_by_key: dict[LimitKey, LimitStatus] = {}
        self._mismatch_by_uid: dict[str, str] = {}
        self._has_reported = False

    def report(
        self,
        statuses: Sequence[LimitStatus],
        pods: Sequence[PodBandwidthSpec],
        meter_by_key: Mapping[LimitKey, TrafficMeter],
    ) -> None:
        """Export the statuses and the measured traffic of these pods, and report what changed since the previous call."""
        self._metrics.statuses, self._metrics.meter_by_key = statuses, meter_by_key
        for status in statuses:
            self._report_change(status, self._status_by_key.get(status.key))
        # A pod that temporarily cannot be located keeps its reported status.
        uids = {pod.uid for pod in pods}
        previous = {key: status for key, status in self._status_by_key.items() if status.pod.uid in uids}
        self._status_by_key = previous | {status.key: status for status in statuses}
        self._report_mismatches(pods)
        self._has_reported = True

    def log_unlocated(self, reason_by_pod: Mapping[str, str]) -> None:
        """Log the pods that cannot be located, and so have no verdict, when they or their reasons change."""
        listed = join_first([f"{pod}: {reason}" for pod, reason in sorted(reason_by_pod.items())], MAX_UNLOCATED_LOGGED)
        message = "pods cannot be located" if listed else "all pods can be located"
        log.log_change("unlocated", listed, message, level="info", pods=listed)

    def _report_mismatches(self, pods: Sequence[PodBandwidthSpec]) -> None:
        """Report pods whose reservation and limit differ, when the difference changes."""
        previous = self._mismatch_by_uid
        self._mismatch_by_uid = {pod.uid: pod.mismatch for pod in pods if pod.mismatch}
        for pod in pods:
            if pod.mismatch and pod.mismatch != previous.get(pod.uid):
                log.warning("reservation and limit differ", pod=pod.key, why=pod.mismatch)
                self._send_event(
                    pod, "BandwidthMismatch", pod.mismatch, "CheckBandwidth", is_first=pod.uid not in previous
                )

    def _report_change(self, status: LimitStatus, previous: LimitStatus | None) -> None:
        """Log a status whose verdict or rate changed; send an event about a changed verdict, and about a first one unless enforced."""
        if previous is not None and (previous.verdict, previous.wanted_bps) == (status.verdict, status.wanted_bps):
            return
        is_normal = status.verdict == "enforced"
        has_verdict_changed = status.verdict != (previous.verdict if previous is not None else "enforced")
        write_log: Callable[..., None] = log.warning if has_verdict_changed and not is_normal else log.info
        write_log(
            "limit",
            pod=status.pod.key,
            direction=status.direction,
            verdict=status.verdict,
            wanted_bps=status.wanted_bps,
            device=status.device_name,
            why=status.detail,
        )
        if has_verdict_changed:
            reason = "Bandwidth" + "".join(part.capitalize() for part in status.verdict.split("-"))
            note, is_first = _format_event_note(status), previous is None
            self._send_event(status.pod, reason, note, "CheckBandwidth", is_first=is_first, is_normal=is_normal)

    def _send_event(
        self, pod: PodBandwidthSpec, reason: str, note: str, action: str, *, is_first: bool, is_normal: bool = False
    ) -> None:
        """Send an event, except about an older pod in the first report after the agent's start."""
        is_new = pod.created_at_s is None or time.time() - pod.created_at_s < NEW_POD_AGE_S
        if is_first and not self._has_reported and not is_new:
            return
        regarding = ObjectReference(PODS.api_version, PODS.kind, pod.name, pod.namespace, pod.uid)
        self._recorder.record("Normal" if is_normal else "Warning", regarding, reason, note, action=action)


def _format_event_note(status: LimitStatus) -> str:
    rate = f"{status.wanted_bps} bit/s" if status.wanted_bps is not None else "the annotation"
    detail = f": {status.detail}" if status.detail else ""
    location = f" on {status.device_name}" if status.device_name else ""
    return f"{status.direction} limit of {rate}: {status.verdict}{location}{detail}"
