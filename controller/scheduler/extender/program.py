"""The extender's program: its stores and its HTTP server."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from controller.cluster.crds import (
    APPGROUP_LABEL,
    APPGROUPS,
    NETWORK_TOPOLOGIES,
    SERVICES,
    AppGroup,
    NetworkTopology,
)
from controller.cluster.pods import Pod
from controller.cluster.services import Service as KubernetesService
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.extender.handler import Extender
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.state import State
from kubekit import logs
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.health import EventLoopMonitor, InformerMetrics, describe_stale_stores
from kubekit.http import HealthChecks, Server
from kubekit.reflector import Reflector
from kubekit.runtime import run_memory_compaction, supervise
from kubekit.wire import NAMESPACES, NODES, PODS, Node, Object
from netperf.contract import NETAWARE_NAMESPACE

log = logs.get("controller.scheduler.extender.program")

DEFAULT_LISTEN = "127.0.0.1:9876"


async def run_extender(
    cluster: ClusterConfig,
    config: SchedulerConfig,
    *,
    listen: str = DEFAULT_LISTEN,
    metrics_listen: str | None = None,
    namespace: str = NETAWARE_NAMESPACE,
) -> None:
    """Serve until cancelled.

    Args:
        cluster: which API server to watch.
        config: the section ``scheduler``.
        listen: ``HOST:PORT`` of the extender, metrics and health checks.
        metrics_listen: ``HOST:PORT`` that serves metrics and health checks too, because Prometheus and the kubelet's probes cannot
            reach loopback; None for none.
        namespace: netaware's own, the last in which a NetworkTopology is searched.

    Raises:
        ConfigError: the address cannot be bound.
    """
    registry = CollectorRegistry()
    for collect in (ProcessCollector, PlatformCollector, GCCollector):
        collect(registry=registry)
    async with Client(cluster, user_agent="netaware-extender") as client:
        service = ExtenderService(client, config, listen=listen, namespace=namespace, registry=registry)
        tasks = service.tasks()
        if metrics_listen is not None:
            tasks["metrics"] = Server(metrics_listen, checks=service.server.checks, registry=registry).serve()
        await supervise(tasks)


class ExtenderService:
    """The extender with its stores and its HTTP server.

    Attributes:
        state: the cluster, for the rules.
        server: serves while its task runs.
    """

    def __init__(
        self,
        client: Client,
        config: SchedulerConfig,
        *,
        listen: str,
        namespace: str,
        registry: CollectorRegistry,
    ) -> None:
        nodes: Reflector[Node] = Reflector(client, NODES, Node)
        pods: Reflector[Pod] = Reflector(client, PODS, Pod, label_selector=APPGROUP_LABEL)
        groups: Reflector[AppGroup] = Reflector(client, APPGROUPS, AppGroup)
        topologies: Reflector[NetworkTopology] = Reflector(client, NETWORK_TOPOLOGIES, NetworkTopology)
        namespaces: Reflector[Object] = Reflector(client, NAMESPACES, Object)
        services: Reflector[KubernetesService] = Reflector(client, SERVICES, KubernetesService)
        self._stores: dict[str, Reflector[Any]] = {
            "nodes": nodes,
            "group-pods": pods,
            "app-groups": groups,
            "network-topologies": topologies,
            "namespaces": namespaces,
            "services": services,
        }
        self.state = State(config, namespace)
        self.state.subscribe_to(nodes, pods, groups, topologies, namespaces=namespaces, services=services)
        checks = HealthChecks()
        checks.ready["stores"] = self.unready
        checks.ready["age"] = lambda: describe_stale_stores(self._stores.values())
        registry.register(InformerMetrics(lambda: self._stores))
        self._loop = EventLoopMonitor(registry)
        self.server = Server(listen, checks=checks, registry=registry)
        Extender(self.state, config, ExtenderMetrics(registry), self.unready).add_routes(self.server.app)

    def unready(self) -> str:
        """A message with the stores that are not listed yet, except those of CRDs that are not installed; empty if all are."""
        missing = [name for name, store in self._stores.items() if not store.ready.is_set()]
        return f"not listed yet: {', '.join(missing)}" if missing else ""

    def stores(self) -> dict[str, Awaitable[None]]:
        """Informer tasks, by store name."""
        return {name: store.run() for name, store in self._stores.items()}

    def tasks(self) -> dict[str, Awaitable[None]]:
        """Tasks to run, for `kubekit.runtime.supervise`."""
        return {
            **self.stores(),
            "http": self.server.serve(),
            "gc": self._compact_memory_after_sync(),
            "loop": self._loop.run(),
        }

    async def _compact_memory_after_sync(self) -> None:
        for store in self._stores.values():
            await store.ready.wait()
        log.info("ready", **{name.replace("-", "_"): len(store) for name, store in self._stores.items()})
        await run_memory_compaction()
