"""A finding, read from the real API server as the command reads it, and reported by one event."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from controller.cli.session import Session
from controller.cli.shared import read_facts_of
from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES
from controller.diagnosis.events import EventReporter
from controller.diagnosis.rules import diagnose
from controller.diagnosis.snapshot import ClusterSnapshot
from kubekit.client import Client
from kubekit.events import EventRecorder
from kubekit.wire import LEASES, PODS, Object, format_time
from netperf.contract import CONTROLLER
from tests.integration.controller.test_appgroup_manager import group, pod


async def test_a_running_pod_that_no_workload_names_is_reported_by_one_event_on_it(
    client: Client, namespace: str, crds: list[str]
) -> None:
    assert crds
    # Somebody leads, and there is a NetworkTopology: stand-ins for a controller.
    renewed = format_time(time.time(), micro=True)
    lease = {"holderIdentity": "somebody", "renewTime": renewed, "leaseDurationSeconds": 600}
    topology = {"configmapName": "netperf-metrics"}
    for resource, name, spec in ((LEASES, CONTROLLER, lease), (NETWORK_TOPOLOGIES, "nt-default", topology)):
        body = {**resource.type_meta, "metadata": {"name": name}, "spec": spec}
        await client.create(resource, body, Object, namespace=namespace)
    await client.create(APPGROUPS, group({"web": ""}, members=9), Object, namespace=namespace)
    made = await client.create(PODS, pod("wbe", "nowhere"), Object, namespace=namespace)

    async def look() -> ClusterSnapshot:
        return await Session(client, None, None, namespace).snapshot(everything=True)

    async def events() -> list[dict[str, Any]]:
        listed = await client.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
        return [event for event in json.loads(listed)["items"] if event["reportingController"] == CONTROLLER]

    # Others share the control plane, and a report is of a few objects only.
    facts = await read_facts_of(Session(client, None, None, namespace))
    mine = [f for f in diagnose(facts) if any(name.startswith(f"{namespace}/") for name in f.affects)]
    assert [(f.code, f.affects) for f in mine] == [("unknown-workload", (made.metadata.key,))]
    recorder = EventRecorder(client, component=CONTROLLER, instance="test")
    reporter = EventReporter(look, recorder)
    sending = asyncio.ensure_future(recorder.run())
    try:
        async with asyncio.timeout(30):
            while not await events():
                await reporter.report()
        for _ in range(3):
            await reporter.report()
        (event,) = await events()
    finally:
        sending.cancel()
    told = event["reason"], event["regarding"]["uid"], event["type"]
    assert told == ("UnknownWorkload", made.metadata.uid, "Warning")
    assert "series" not in event
    assert "no workload with selector wbe" in event["note"]
