"""Events for what is wrong, by the leader: each finding once on the objects that it is about, so that ``kubectl describe`` tells it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable

from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding
from controller.diagnosis.news import About, FindingNews
from controller.diagnosis.rules import diagnose
from controller.views.agents import build_agents
from controller.views.diagnosing import read_facts
from controller.views.network import build_network
from controller.views.snapshot import Snapshot
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.events import EventRecorder, Reference, reference
from kubekit.wire import DEPLOYMENTS, NODES, PODS, Object, ObjectMeta, Resource
from netperf.contract import AGENT_POD_SELECTOR

log = logs.get("controller.announcing")

INTERVAL_S = 10.0
REST = 20.0
"""Rest after a look, as a multiple of what it took: a look at 10,000 nodes with 30,000 pods of AppGroups takes a second or two."""
_RESOURCES: dict[str, Resource] = {
    "Pod": PODS,
    "AppGroup": APPGROUPS,
    "Node": NODES,
    "NetworkTopology": NETWORK_TOPOLOGIES,
    "Deployment": DEPLOYMENTS,
    "DaemonSet": Resource("apps", "v1", "daemonsets", "DaemonSet"),
}


class Announcer:
    """``run`` while leading.

    Args:
        look: everything as it is mirrored now.
        client: finds the UIDs of our own Deployments and of the DaemonSet, without which ``kubectl describe`` shows no event.
        recorder: of the leader.
        clock: a clock that does not jump, seconds.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[Snapshot]],
        client: Client,
        recorder: EventRecorder,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._client, self._recorder, self._clock = look, client, recorder, clock
        self._news = FindingNews()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        self._news = FindingNews()
        while True:
            began = self._clock()
            try:
                await self.tell()
            except Exception as error:
                # An object that confuses a diagnosis must not end the leader, who has more to do than to tell of it.
                log.change("look", repr(error), "nothing is told of what is wrong", error=repr(error))
            else:
                log.change("look", "", "what is wrong is told again")
            await asyncio.sleep(max(INTERVAL_S, REST * (self._clock() - began)))

    async def tell(self) -> None:
        """Look once, and write what is news."""
        snapshot = await self._look()
        facts, findings = await asyncio.to_thread(_judge, snapshot)
        for about, reason, note in self._news.of(findings, facts):
            self._recorder.warning(await self._refer(about, snapshot), reason, note, action="Diagnosing")

    async def _refer(self, about: About, snapshot: Snapshot) -> Reference:
        resource = _RESOURCES[about.kind]
        mirrored: dict[str, Iterable[Object]] = {
            "Pod": snapshot.pods,
            "AppGroup": snapshot.groups,
            "Node": snapshot.nodes,
            "NetworkTopology": snapshot.topologies,
        }
        of_name = (found.metadata for found in mirrored.get(about.kind, ()) if found.metadata.name == about.name)
        known = next((meta for meta in of_name if meta.namespace == about.namespace), None)
        if known is None:
            known = ObjectMeta(name=about.name, namespace=about.namespace, uid=await self._uid_of(about, snapshot))
        return reference(resource, known)

    async def _uid_of(self, about: About, snapshot: Snapshot) -> str:
        """Empty where it cannot be read."""
        with contextlib.suppress(KubekitError):
            if about.kind == "Deployment":
                found = await self._client.list(DEPLOYMENTS, Object, namespace=about.namespace)
                return next((made.metadata.uid for made in found if made.metadata.name == about.name), "")
            if about.kind == "DaemonSet" and snapshot.agent_pods:
                # Its pods name it; nobody else here may read it.
                one = f"metadata.name={snapshot.agent_pods[0].name}"
                pods = await self._client.list(
                    PODS,
                    Object,
                    namespace=about.namespace,
                    label_selector=AGENT_POD_SELECTOR,
                    field_selector=one,
                )
                owners = (owner for pod in pods for owner in pod.metadata.owner_references or ())
                return next((owner.uid for owner in owners if owner.controller), "")
        return ""


def _judge(snapshot: Snapshot) -> tuple[Facts, tuple[Finding, ...]]:
    """Facts and what they mean. Pure; at 10,000 nodes this takes a second, which the event loop does not have."""
    facts = read_facts(snapshot, build_network(snapshot, "", ""), build_agents(snapshot))
    return facts, diagnose(facts)
