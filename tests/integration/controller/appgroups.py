"""Creates AppGroups and pods of their workloads, and waits for the conditions that the manager writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, WORKLOAD_LABEL, AppGroup
from kubekit.client import MERGE_PATCH, Client
from kubekit.conditions import find_condition
from kubekit.wire import PODS, Object
from lab.polling import poll_until
from tests.support.bodies import make_appgroup_body

GROUP = "g"


def make_group(
    callees: Mapping[str, str], *, name: str = GROUP, members: int = 1, algorithm: str = "KahnSort", max_cost: int = 15
) -> dict[str, Any]:
    """An AppGroup; ``callees`` has the selectors on which each workload depends, separated by spaces."""
    limits = {"maxNetworkCost": max_cost, "minBandwidth": "10M"}
    dependencies = {caller: dict.fromkeys(selectors.split(), limits) for caller, selectors in callees.items()}
    return make_appgroup_body(name, dependencies, members=members, algorithm=algorithm)


class AppGroupNamespace:
    """A namespace with AppGroups, and with pods of the workloads of the group `GROUP`."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    async def create_group(self, body: dict[str, Any]) -> None:
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

    async def create_pod(self, workload: str, node_name: str, pod_name: str = "") -> Object:
        """Create a pod of a workload, which is bound to a node; its default name is that of the workload."""
        labels = {APPGROUP_LABEL: GROUP, WORKLOAD_LABEL: workload}
        spec = {
            "nodeName": node_name,
            "containers": [{"name": "c", "image": "none"}],
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
        }
        body = {"metadata": {"name": pod_name or workload, "labels": labels}, "spec": spec}
        return await self.client.create(PODS, body, Object, namespace=self.namespace)

    async def delete_pod(self, name: str) -> None:
        await self.client.delete(PODS, name, namespace=self.namespace, grace_period_s=0)
