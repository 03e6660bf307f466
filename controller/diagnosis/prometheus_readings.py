"""Adds readings from Prometheus: rates in use, verdicts, firing alerts.

Every question is one query for the whole cluster, whatever its size; a question that fails leaves its part empty and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from controller.diagnosis.snapshot import Alert, NodeReading, PodReading, Readings
from controller.prometheus import PrometheusClient, PrometheusError, Series

TRANSMIT = "sum by (node) (rate(netaware_node_network_transmit_bytes_total[2m])) * 8"
RECEIVE = "sum by (node) (rate(netaware_node_network_receive_bytes_total[2m])) * 8"
POD_USED = "sum by (namespace, pod, direction) (netaware_pod_bandwidth_used_bytes_per_second) * 8"
VERDICTS = "netaware_pod_bandwidth_verdict == 1"
ALERTS = 'ALERTS{alertstate="firing", alertname=~"Netaware.*"}'


async def read_all(prometheus: PrometheusClient) -> Readings:
    """Query Prometheus concurrently. Errors are in `Readings.error`."""
    questions = (TRANSMIT, RECEIVE, POD_USED, VERDICTS, ALERTS)
    answers = await asyncio.gather(*(prometheus.query(q) for q in questions), return_exceptions=True)
    series: list[Sequence[Series]] = []
    error = ""
    for answer in answers:
        if isinstance(answer, PrometheusError):
            error = str(answer)
            series.append(())
        elif isinstance(answer, BaseException):
            raise answer
        else:
            series.append(answer)
    transmit, receive, used, verdicts, alerts = series
    return Readings(
        source=prometheus.url,
        error=error,
        nodes=_nodes(transmit, receive),
        pods=_pods(used, verdicts),
        alerts=tuple(
            Alert(name=s.labels.get("alertname", ""), severity=s.labels.get("severity", ""), labels=s.labels)
            for s in alerts
        ),
    )


def _nodes(transmit: Sequence[Series], receive: Sequence[Series]) -> dict[str, NodeReading]:
    sent = {s.labels.get("node", ""): s.value for s in transmit}
    received = {s.labels.get("node", ""): s.value for s in receive}
    return {
        node: NodeReading(transmit_bps=sent.get(node), receive_bps=received.get(node))
        for node in sent.keys() | received.keys()
        if node
    }


def _pods(used: Sequence[Series], verdicts: Sequence[Series]) -> dict[str, PodReading]:
    rates = {(_key(s), s.labels.get("direction")): s.value for s in used}
    verdicts_by_limit = {(_key(s), s.labels.get("direction")): s.labels.get("verdict") for s in verdicts}
    return {
        key: PodReading(
            ingress_verdict=verdicts_by_limit.get((key, "ingress")),
            egress_verdict=verdicts_by_limit.get((key, "egress")),
            ingress_used_bps=rates.get((key, "ingress")),
            egress_used_bps=rates.get((key, "egress")),
        )
        for key in {key for key, _ in rates.keys() | verdicts_by_limit.keys()}
    }


def _key(series: Series) -> str:
    return f"{series.labels.get('namespace', '')}/{series.labels.get('pod', '')}"
