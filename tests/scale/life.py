"""Changes of the cluster while it is measured: rollouts, and a zone that fails."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import suppress

from kubekit.client import STRATEGIC_PATCH, Client
from kubekit.errors import KubekitError
from kubekit.wire import DEPLOYMENTS, NODES, Node, Object
from tests.scale.objects import zone_name

ROLLOUT_EVERY_S = 5.0


class Life:
    """Changes of the cluster.

    Args:
        client: the administrator's.
        nodes: names by index of the zone.

    Attributes:
        deployments: (namespace, name) of those that are rolled out in turn.
        dead: zones that are out of reach now.
        done: how many of what was done.
    """

    def __init__(self, client: Client, nodes: Sequence[Sequence[str]]) -> None:
        self._client, self._nodes = client, nodes
        self.deployments: Sequence[tuple[str, str]] = ()
        self.dead: set[str] = set()
        self.done = {"rollouts": 0, "zone_failures": 0}

    async def rollouts(self) -> None:
        """Restart one Deployment after the other until cancelled."""
        for namespace, name in itertools.cycle(self.deployments):
            await asyncio.sleep(ROLLOUT_EVERY_S)
            stamp = {"kubectl.kubernetes.io/restartedAt": f"{time.time():.0f}"}
            body = {"spec": {"template": {"metadata": {"annotations": stamp}}}}
            with suppress(KubekitError):  # the API server is busy
                await self._client.patch(
                    DEPLOYMENTS, name, body, Object, patch_type=STRATEGIC_PATCH, namespace=namespace
                )
                self.done["rollouts"] += 1

    async def fail_zone(self, zone: int, begins_s: float, lasts_s: float) -> None:
        """A zone fails and comes back: its nodes are not Ready and cannot be reached."""
        await asyncio.sleep(begins_s)
        self.dead.add(zone_name(zone))
        await self._set_ready(self._nodes[zone], "Unknown")
        self.done["zone_failures"] += 1
        await asyncio.sleep(lasts_s)
        self.dead.discard(zone_name(zone))
        await self._set_ready(self._nodes[zone], "True")

    async def _set_ready(self, nodes: Sequence[str], status: str) -> None:
        condition = {"type": "Ready", "status": status, "reason": "Scale", "message": "set by the scale run"}
        body = {"status": {"conditions": [condition]}}
        for node in nodes:
            with suppress(KubekitError):
                await self._client.patch(NODES, node, body, Node, patch_type=STRATEGIC_PATCH, subresource="status")
