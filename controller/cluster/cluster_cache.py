"""The stores that several packages of the controller share, filled by watches. Packages read them instead of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import Pod
from controller.cluster.services import Service
from controller.cluster.volumes import CLAIMS, CLASSES, VOLUMES, PersistentVolume, PersistentVolumeClaim, StorageClass
from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.selectors import parse_selector
from kubekit.stores import FilteredStore, Handler, Store
from kubekit.wire import CONFIGMAPS, NAMESPACES, NODES, PODS, SERVICES, ConfigMap, Node, Object
from netperf.contract import AGENT_POD_SELECTOR, PLAN_LABEL, PLAN_SELECTOR

T = TypeVar("T")
AGENT_SELECTOR = parse_selector(AGENT_POD_SELECTOR)


def call_unless(is_unchanged: Callable[[T | None, T | None], bool], action: Callable[[], None]) -> Handler[T]:
    """A handler for stores that calls ``action`` after a change, unless ``is_unchanged`` is true for the old and the new object."""

    def on_change(_: str, old: T | None, new: T | None) -> None:
        if not is_unchanged(old, new):
            action()

    return on_change


class ClusterCache:
    """One store for each kind, with all objects, and two for ConfigMaps; group_pods and agent_pods are subsets of pods.

    Attributes:
        pods: in compact form.
        group_pods: pods with an AppGroup label, as the API server sent them.
        agent_pods: pods of the agent's DaemonSet in netaware's namespace.
        namespaces: their labels give consent to AppGroups of other namespaces.
        services: they decide the routing of calls.
        volumes, claims, storage_classes: PersistentVolumes, PersistentVolumeClaims and StorageClasses, which decide the nodes of a volume.
        plans: the ConfigMaps of netaware's namespace with probe plans.
        results: the other ConfigMaps of that namespace, among them those into which agents write results.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self.netaware_namespace = namespace
        self.nodes: Reflector[Node] = Reflector(client, NODES, Node)
        self.pods: Reflector[PodInfo] = Reflector(client, PODS, Pod, transform=PodReader().read)
        self.group_pods: FilteredStore[Pod] = FilteredStore(self.pods, lambda pod: pod.group_pod)
        self.agent_pods: FilteredStore[PodInfo] = FilteredStore(
            self.pods, lambda pod: pod if pod.namespace == namespace and AGENT_SELECTOR.matches(pod.labels) else None
        )
        self.app_groups: Reflector[AppGroup] = Reflector(client, APPGROUPS, AppGroup)
        self.topologies: Reflector[NetworkTopology] = Reflector(client, NETWORK_TOPOLOGIES, NetworkTopology)
        self.namespaces: Reflector[Object] = Reflector(client, NAMESPACES, Object)
        self.services: Reflector[Service] = Reflector(client, SERVICES, Service)
        self.volumes: Reflector[PersistentVolume] = Reflector(client, VOLUMES, PersistentVolume)
        self.claims: Reflector[PersistentVolumeClaim] = Reflector(client, CLAIMS, PersistentVolumeClaim)
        self.storage_classes: Reflector[StorageClass] = Reflector(client, CLASSES, StorageClass)
        config_maps = partial(Reflector, client, CONFIGMAPS, ConfigMap, namespace=namespace)
        self.plans: Reflector[ConfigMap] = config_maps(label_selector=PLAN_SELECTOR)
        self.results: Reflector[ConfigMap] = config_maps(label_selector=f"{PLAN_LABEL}!=true")

    @property
    def stores_by_name(self) -> Mapping[str, Store[Any]]:
        """Every store by its name in metrics and health checks."""
        return {
            "nodes": self.nodes,
            "pods": self.pods,
            "group-pods": self.group_pods,
            "agent-pods": self.agent_pods,
            "app-groups": self.app_groups,
            "network-topologies": self.topologies,
            "plans": self.plans,
            "results": self.results,
            "namespaces": self.namespaces,
            "services": self.services,
            "volumes": self.volumes,
            "claims": self.claims,
            "storage-classes": self.storage_classes,
        }

    def reflector_tasks(self) -> dict[str, Awaitable[None]]:
        """Coroutines that fill the stores, by task name."""
        stores = self.stores_by_name.items()
        return {f"store {name}": store.run() for name, store in stores if isinstance(store, Reflector)}

    def describe_unsynced(self) -> str:
        """The names of the stores that wait for their initial list, as text for /readyz; a missing CRD counts as an empty list."""
        return ", ".join(name for name, synced in self._sync_events.items() if not synced.is_set())

    async def wait_for_sync(self) -> None:
        """Wait until every store has its initial list; a missing CRD counts as an empty list."""
        for synced in self._sync_events.values():
            await synced.wait()

    @property
    def _sync_events(self) -> dict[str, asyncio.Event]:
        # If a CRD is missing, `synced` is never set, but `ready` is.
        crd_events = {"app-groups": self.app_groups.ready, "network-topologies": self.topologies.ready}
        return {name: store.synced for name, store in self.stores_by_name.items()} | crd_events
