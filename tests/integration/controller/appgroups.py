"""Creates AppGroups and pods of their workloads, and waits for the conditions that the manager writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.cluster.crds import APPGROUPS, AppGroup
from controller.cluster.pods import Pod
from kubekit.client import MERGE_PATCH
from kubekit.conditions import find_condition
from kubekit.wire import Object
from lab.polling import poll_until
from tests.integration.scheduler.harness import PodNamespace
from tests.support.bodies import make_appgroup_body

GROUP = "g"


def make_group(
    callees: Mapping[str, str], *, name: str = GROUP, members: int = 1, algorithm: str = "KahnSort", max_cost: int = 15
) -> dict[str, Any]:
    """An AppGroup; ``callees`` has the selectors on which each workload depends, separated by spaces."""
    limits = {"maxNetworkCost": max_cost, "minBandwidth": "10M"}
    dependencies = {caller: dict.fromkeys(selectors.split(), limits) for caller, selectors in callees.items()}
    return make_appgroup_body(name, dependencies, members=members, algorithm=algorithm)


class AppGroupNamespace(PodNamespace):
    """A namespace with AppGroups, and with pods of the workloads of the group `GROUP`."""

    async def create_group_from_body(self, body: dict[str, Any]) -> None:
        await self.client.create(APPGROUPS, body, Object, namespace=self.namespace)

    async def patch_group(self, patch: dict[str, Any], name: str = GROUP) -> None:
        await self.client.patch(APPGROUPS, name, patch, Object, patch_type=MERGE_PATCH, namespace=self.namespace)

    async def read_group(self, name: str = GROUP) -> AppGroup:
        return await self.client.get(APPGROUPS, name, AppGroup, namespace=self.namespace)

    async def wait_for_group_condition(self, type_: str, status: str, text: str = "", *, group: str = GROUP) -> None:
        """Wait until a condition of a group has this status, and ``text`` in its reason or message."""

        async def has_condition() -> bool:
            condition = find_condition((await self.read_group(group)).status.conditions, type_)
            if condition is None or condition.status != status:
                return False
            return text in f"{condition.reason} {condition.message}"

        await poll_until(has_condition, f"{type_} to be {status} with '{text}'")

    async def create_bound_pod(self, workload: str, node_name: str, pod_name: str = "") -> Pod:
        """Create a pod of a workload, which is bound to a node; its default name is that of the workload."""
        tolerations = [{"operator": "Exists"}]
        return await self.create_pod(
            pod_name or workload, group=GROUP, workload=workload, nodeName=node_name, tolerations=tolerations
        )
