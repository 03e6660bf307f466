"""What is wrong, read from the real API server as the command reads it, and told by events."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from controller.cli.session import Session
from controller.cli.shared import read_facts_of
from controller.cluster.resources import APPGROUP_LABEL, APPGROUPS, NETWORK_TOPOLOGIES, WORKLOAD_LABEL
from controller.diagnosis.events import EventReporter
from controller.diagnosis.findings import Finding
from controller.diagnosis.rules import diagnose
from controller.diagnosis.snapshot import ClusterSnapshot
from kubekit.client import Client
from kubekit.events import EventRecorder
from kubekit.wire import LEASES, PODS, Object, format_time
from netperf.contract import CONTROLLER


def workload(name: str, *calls: str) -> dict[str, Any]:
    needs = [
        {"workload": {"kind": "Deployment", "name": called, "selector": called}, "maxNetworkCost": 5}
        for called in calls
    ]
    return {"workload": {"kind": "Deployment", "name": name, "selector": name}, "dependencies": needs}


async def an_installation(client: Client, namespace: str) -> None:
    """Somebody leads, and there is a NetworkTopology: stand-ins for a controller, which these situations do not need."""
    lease = {
        "holderIdentity": "somebody",
        "renewTime": format_time(time.time(), micro=True),
        "leaseDurationSeconds": 600,
    }
    body = {**LEASES.type_meta, "metadata": {"name": CONTROLLER}, "spec": lease}
    await client.create(LEASES, body, Object, namespace=namespace)
    body = {
        **NETWORK_TOPOLOGIES.type_meta,
        "metadata": {"name": "nt-default"},
        "spec": {"configmapName": "netperf-metrics"},
    }
    await client.create(NETWORK_TOPOLOGIES, body, Object, namespace=namespace)


async def a_group(client: Client, namespace: str, *workloads: dict[str, Any], members: int = 9) -> None:
    spec = {"numMembers": members, "topologySortingAlgorithm": "KahnSort", "workloads": list(workloads)}
    body = {**APPGROUPS.type_meta, "metadata": {"name": "shop"}, "spec": spec}
    await client.create(APPGROUPS, body, Object, namespace=namespace)


async def a_pod(client: Client, namespace: str, name: str, selector: str, **spec: Any) -> None:
    labels = {APPGROUP_LABEL: "shop", WORKLOAD_LABEL: selector}
    known = {"schedulerName": "network-aware-scheduler", "automountServiceAccountToken": False}
    body = {
        "metadata": {"name": name, "labels": labels},
        "spec": {**known, "containers": [{"name": "main", "image": "none"}], **spec},
    }
    await client.create(PODS, body, Object, namespace=namespace)


async def of(client: Client, namespace: str) -> list[Finding]:
    """Findings about this test's own objects; others share the control plane."""
    facts = await read_facts_of(Session(client, None, None, namespace))
    mine = (f"{namespace}/shop", f"{namespace}/")
    return [f for f in diagnose(facts) if any(name.startswith(mine) for name in f.affects)]


async def test_a_running_pod_that_no_workload_names_is_told_by_one_event_on_it(
    client: Client, namespace: str, crds: list[str]
) -> None:
    assert crds
    await an_installation(client, namespace)
    await a_group(client, namespace, workload("web"))
    await a_pod(client, namespace, "wrong", "wbe", nodeName="nowhere")
    (finding,) = await of(client, namespace)
    assert (finding.code, finding.affects) == ("unknown-workload", (f"{namespace}/wrong",))
    recorder = EventRecorder(client, component=CONTROLLER, instance="test")
    sending = asyncio.ensure_future(recorder.run())

    async def look() -> ClusterSnapshot:
        return await Session(client, None, None, namespace).snapshot(everything=True)

    reporter = EventReporter(look, recorder)
    try:
        async with asyncio.timeout(30):
            # Others share the control plane, and a look tells of a few objects only.
            while not (found := await events_of(client, namespace)):
                await reporter.report()
        for _ in range(3):
            await reporter.report()
        found = await events_of(client, namespace)
    finally:
        sending.cancel()
    pod = await client.get(PODS, "wrong", Object, namespace=namespace)
    (event,) = found
    assert (event["reason"], event["regarding"]["uid"], event["type"]) == (
        "UnknownWorkload",
        pod.metadata.uid,
        "Warning",
    )
    assert "series" not in event
    assert "no workload with selector wbe" in event["note"]


async def events_of(client: Client, namespace: str) -> list[dict[str, Any]]:
    listed = await client.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    found: list[dict[str, Any]] = json.loads(listed)["items"]
    return [event for event in found if event["reportingController"] == CONTROLLER]
