"""A day's life of a large cluster in less: rollouts, nodes that come and go, a zone that fails."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress

from kubekit.client import STRATEGIC_PATCH, Client
from kubekit.errors import KubekitError
from kubekit.wire import DEPLOYMENTS, NODES, PODS, Node, Object
from lab.controlplane import PLAYED_BY_KWOK
from netperf.contract import HOME_NAMESPACE
from tests.scale.objects import agent_labels, node_body, pod_body, zone_name

CHURN_PER_HOUR = 0.05
ROLLOUT_EVERY_S = 5.0


class Life:
    """What happens to the cluster while it is measured.

    Args:
        client: the administrator's.
        nodes: names by index of the zone; kept up to date.

    Attributes:
        deployments: (namespace, name) of those that are rolled out in turn.
        dead: zones that are out of reach now.
        done: how many of what was done.
    """

    def __init__(self, client: Client, nodes: list[list[str]]) -> None:
        self._client, self._nodes = client, nodes
        self.deployments: Sequence[tuple[str, str]] = ()
        self._home = {node: zone_name(zone) for zone, names in enumerate(nodes) for node in names}
        self._rng = random.Random(1)
        self.dead: set[str] = set()
        self.done = {"nodes_replaced": 0, "rollouts": 0, "zone_failures": 0}

    @property
    def nodes(self) -> list[str]:
        """Names of all nodes there are now."""
        return [name for zone in self._nodes for name in zone]

    def is_silent(self, node: str) -> bool:
        """Whether nobody hears of this node."""
        return self._home.get(node) in self.dead

    async def churn(self) -> None:
        """Replace nodes, 5 % of all in an hour and at least one in two minutes, until cancelled."""
        count = sum(map(len, self._nodes))
        every_s = min(120.0, 3600 / (CHURN_PER_HOUR * count))
        for number in itertools.count(count):
            await asyncio.sleep(every_s)
            zone = self._rng.randrange(len(self._nodes))
            if zone_name(zone) in self.dead or not self._nodes[zone]:
                continue
            old, new = self._nodes[zone].pop(0), f"node-{zone:03}-n{number}"
            self._home[new] = zone_name(zone)
            await self._try("nodes_replaced", self._replace(old, new, zone, number))
            self._nodes[zone].append(new)

    async def _replace(self, old: str, new: str, zone: int, number: int) -> None:
        await self._client.delete(NODES, old)
        await self._client.create(NODES, node_body(new, zone=zone, number=number), Object)
        agent = pod_body(f"agent-{new}", new, agent_labels())
        await self._client.create(PODS, agent, Object, namespace=HOME_NAMESPACE)

    async def rollouts(self) -> None:
        """Restart one Deployment after the other until cancelled."""
        for namespace, name in itertools.cycle(self.deployments):
            await asyncio.sleep(ROLLOUT_EVERY_S)
            stamp = {"kubectl.kubernetes.io/restartedAt": f"{time.time():.0f}"}
            body = {"spec": {"template": {"metadata": {"annotations": stamp}}}}
            patch = self._client.patch(DEPLOYMENTS, name, body, Object, kind=STRATEGIC_PATCH, namespace=namespace)
            await self._try("rollouts", patch)

    async def fail_zone(self, zone: int, begins_s: float, lasts_s: float) -> None:
        """One zone goes and comes back: its nodes say nothing, and nobody reaches them."""
        await asyncio.sleep(begins_s)
        self.dead.add(zone_name(zone))
        await self._set_ready(self._nodes[zone], "Unknown")
        self.done["zone_failures"] += 1
        await asyncio.sleep(lasts_s)
        self.dead.discard(zone_name(zone))
        await self._set_ready(self._nodes[zone], "True")

    async def _set_ready(self, nodes: list[str], status: str) -> None:
        # kwok, where it plays these nodes, plays only those with its annotation, and would make them Ready again.
        key, value = PLAYED_BY_KWOK
        note = {"metadata": {"annotations": {key: value if status == "True" else None}}}
        condition = {"type": "Ready", "status": status, "reason": "Scale", "message": "set by the scale run"}
        for node in tuple(nodes):
            await self._try("", self._client.patch(NODES, node, note, Node))
            body = {"status": {"conditions": [condition]}}
            await self._try("", self._client.patch(NODES, node, body, Node, kind=STRATEGIC_PATCH, subresource="status"))

    async def _try(self, what: str, work: Awaitable[object]) -> None:
        # The API server is busy, or the object is gone.
        with suppress(KubekitError):
            await work
            if what:
                self.done[what] += 1
