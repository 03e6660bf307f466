"""Events for what is wrong, by the leader: each finding once on the objects that it is about, so that ``kubectl describe`` tells it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable

from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES
from controller.diagnosis.news import About, FindingNews, Kind, News
from controller.diagnosis.rules import diagnose
from controller.views.agents import build_agents
from controller.views.network import build_network
from controller.views.overview import read_facts
from controller.views.snapshot import ClusterSnapshot
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.events import EventRecorder, reference
from kubekit.runtime import run_best_effort
from kubekit.wire import DEPLOYMENTS, NODES, PODS, Object, ObjectMeta, Resource
from netperf.contract import AGENT_POD_SELECTOR

log = logs.get("controller.announcing")

INTERVAL_S = 10.0
REST = 20.0
"""Rest after a look, as a multiple of what it took: at 10,000 nodes and 30,000 pods of AppGroups half a second of a processor (bench_diagnosis)."""
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
        look: Callable[[], Awaitable[ClusterSnapshot]],
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
            # An object that confuses a diagnosis must not end the leader, who has more to do than to tell of it.
            broken, mended = "nothing is told of what is wrong", "what is wrong is told again"
            await run_best_effort(self.tell(), log, "look", broken=broken, mended=mended)
            await asyncio.sleep(max(INTERVAL_S, REST * (self._clock() - began)))

    async def tell(self) -> None:
        """Look once, and write what is news."""
        snapshot = await self._look()
        for news, known in await asyncio.to_thread(news_of, snapshot, self._news):
            about = news.about
            if known is None:
                known = ObjectMeta(name=about.name, namespace=about.namespace, uid=await self._uid_of(about, snapshot))
            regarding = reference(_RESOURCES[about.kind], known)
            self._recorder.warning(regarding, news.reason, news.note, action="Diagnosing")

    async def _uid_of(self, about: About, snapshot: ClusterSnapshot) -> str:
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


def news_of(snapshot: ClusterSnapshot, memory: FindingNews) -> list[tuple[News, ObjectMeta | None]]:
    """What to tell, and of what of it is mirrored the metadata. At 10,000 nodes this takes half a second, which the loop does not have."""
    facts = read_facts(snapshot, build_network(snapshot, "", ""), build_agents(snapshot))
    news = memory.of(diagnose(facts), facts)
    wanted = {item.about for item in news}
    mirrored: dict[Kind, Iterable[Object]] = {
        "Pod": snapshot.pods,
        "AppGroup": snapshot.groups,
        "Node": snapshot.nodes,
        "NetworkTopology": snapshot.topologies,
    }
    known: dict[About, ObjectMeta] = {}
    for kind in {about.kind for about in wanted} & mirrored.keys():
        for found in mirrored[kind]:
            about = About(kind, found.metadata.namespace, found.metadata.name)
            if about in wanted:
                known[about] = found.metadata
    return [(item, known.get(item.about)) for item in news]
