"""Changes the cluster while it is measured: rollouts, and the failure of a zone."""

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

ROLLOUT_INTERVAL_S = 5.0


class ClusterChanges:
    """Rolls out Deployments, and lets a zone fail.

    Attributes:
        deployments: namespace and name of each Deployment that is rolled out.
        unreachable_zones: names of zones that have failed now.
        counts: number of changes by kind, ``rollouts`` and ``zone_failures``.
    """

    def __init__(self, client: Client, nodes_by_zone: Sequence[Sequence[str]]) -> None:
        self._client, self._nodes_by_zone = client, nodes_by_zone
        self.deployments: Sequence[tuple[str, str]] = ()
        self.unreachable_zones: set[str] = set()
        self.counts = {"rollouts": 0, "zone_failures": 0}

    async def roll_out(self) -> None:
        """Restart one Deployment after the other until cancelled."""
        for namespace, name in itertools.cycle(self.deployments):
            await asyncio.sleep(ROLLOUT_INTERVAL_S)
            annotations = {"kubectl.kubernetes.io/restartedAt": f"{time.time():.0f}"}
            patch = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
            with suppress(KubekitError):  # the API server is busy
                await self._client.patch(
                    DEPLOYMENTS, name, patch, Object, patch_type=STRATEGIC_PATCH, namespace=namespace
                )
                self.counts["rollouts"] += 1

    async def fail_zone(self, zone: int, delay_s: float, duration_s: float) -> None:
        """After a delay, let a zone fail for a time: its nodes are not Ready, and agents cannot reach it."""
        await asyncio.sleep(delay_s)
        self.unreachable_zones.add(zone_name(zone))
        await self._set_ready(self._nodes_by_zone[zone], "Unknown")
        self.counts["zone_failures"] += 1
        await asyncio.sleep(duration_s)
        self.unreachable_zones.discard(zone_name(zone))
        await self._set_ready(self._nodes_by_zone[zone], "True")

    async def _set_ready(self, node_names: Sequence[str], status: str) -> None:
        condition = {"type": "Ready", "status": status, "reason": "Scale", "message": "set by the scale run"}
        patch = {"status": {"conditions": [condition]}}
        for name in node_names:
            with suppress(KubekitError):
                await self._client.patch(NODES, name, patch, Node, patch_type=STRATEGIC_PATCH, subresource="status")
