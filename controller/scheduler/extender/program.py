"""The extender's program: its stores and its HTTP server."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
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
from kubekit.wire import NAMESPACES, NODES, PODS, SERVICES, Node, Object
from netperf.contract import NETAWARE_NAMESPACE

log = logs.get("controller.scheduler.extender.program")


async def run_extender(
    cluster: ClusterConfig,
    config: SchedulerConfig,
    *,
    listen: str,
    metrics_listen: str | None = None,
    netaware_namespace: str = NETAWARE_NAMESPACE,
) -> None:
    """Run the extender until cancelled.

    Args:
        cluster: which API server to watch.
        config: the section ``scheduler``.
        listen: ``HOST:PORT`` of the extender, metrics and health checks.
        metrics_listen: ``HOST:PORT`` where metrics and health checks are served too, because Prometheus and the kubelet's probes cannot
            reach loopback; None to serve them only at ``listen``.
        netaware_namespace: the last namespace in which a NetworkTopology is searched.

    Raises:
        ConfigError: the address cannot be bound.
    """
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    async with Client(cluster, user_agent="netaware-extender") as client:
        service = ExtenderService(
            client, config, listen=listen, netaware_namespace=netaware_namespace, registry=registry
        )
        tasks = service.tasks()
        if metrics_listen is not None:
            metrics_server = Server(
                metrics_listen, listen_field="--metrics-listen", checks=service.server.checks, registry=registry
            )
            tasks["metrics"] = metrics_server.serve()
        await supervise(tasks)


class ExtenderService:
    """The extender with its stores and its HTTP server.

    Attributes:
        state: the cluster, for the rules.
        server: serves the extender, metrics and health checks while its task runs.
    """

    def __init__(
        self,
        client: Client,
        config: SchedulerConfig,
        *,
        listen: str,
        netaware_namespace: str,
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
        self.state = State(config, netaware_namespace)
        self.state.subscribe_to(nodes, pods, groups, topologies, namespaces=namespaces, services=services)
        checks = HealthChecks()
        checks.ready["stores"] = self.describe_unlisted_stores
        checks.ready["informers"] = lambda: describe_stale_stores(self._stores.values())
        registry.register(InformerMetrics(lambda: self._stores))
        self._loop_monitor = EventLoopMonitor(registry)
        self.server = Server(listen, checks=checks, registry=registry)
        extender = Extender(self.state, config, ExtenderMetrics(registry), self.describe_unlisted_stores)
        extender.add_routes(self.server.app)

    def describe_unlisted_stores(self) -> str:
        """A message with the stores that are not listed yet; empty if all are listed, or their CRDs are not installed."""
        unlisted = [name for name, store in self._stores.items() if not store.ready.is_set()]
        return f"not listed yet: {', '.join(unlisted)}" if unlisted else ""

    def store_tasks(self) -> dict[str, Awaitable[None]]:
        """Endless tasks that keep the stores up to date, by store name."""
        return {name: store.run() for name, store in self._stores.items()}

    def tasks(self) -> dict[str, Awaitable[None]]:
        """Endless tasks, for `kubekit.runtime.supervise`."""
        return {
            **self.store_tasks(),
            "http": self.server.serve(),
            "gc": self._compact_memory_after_sync(),
            "loop": self._loop_monitor.run(),
        }

    async def _compact_memory_after_sync(self) -> None:
        for store in self._stores.values():
            await store.ready.wait()
        log.info("ready", **{name.replace("-", "_"): len(store) for name, store in self._stores.items()})
        await run_memory_compaction()
