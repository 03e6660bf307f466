"""The controller manager: runs stores on all replicas, and the controllers on the leader.

All replicas fill their stores, so that a new leader can start at once. The controllers' client checks the leadership before each write.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Awaitable

from prometheus_client import CollectorRegistry, Gauge, GCCollector, PlatformCollector, ProcessCollector

from controller.appgroups.reconciler import AppGroupController, GroupIndexes
from controller.bootstrap import Bootstrap
from controller.cluster.cluster_cache import ClusterCache
from controller.config import ControllerConfiguration
from controller.descheduler.program import Descheduler
from controller.diagnosis.events import EventReporter
from controller.page.access import PageAuthorizer
from controller.page.server import Page
from controller.page.snapshots import SnapshotReader
from controller.scheduler.gating.controller import GatingController
from controller.topology.reconciler import TopologyController
from controller.traffic.reconciler import TrafficController
from kubekit import logs
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.events import EventRecorder
from kubekit.fence import WriteFence
from kubekit.health import EventLoopMonitor, InformerMetrics, describe_stale_stores
from kubekit.http import HealthChecks, Server
from kubekit.lease import LeaderElector
from kubekit.runtime import run_memory_compaction, supervise
from kubekit.version import installed_version
from kubekit.wire import Condition
from netperf.contract import CONTROLLER

log = logs.get("controller.manager")


async def run_manager(cluster: ClusterConfig, config: ControllerConfiguration) -> None:
    """Run the controllers, and serve page, metrics and health checks, until cancelled.

    Raises:
        ConfigError: the listen address cannot be bound.
    """
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    async with Client(cluster, user_agent=f"{CONTROLLER}/{installed_version()}") as client:
        manager = Manager(client, config, registry)
        await manager.run()


class Manager:
    """Creates the controllers and runs them. ``cache`` has the stores that they share; ``elector`` decides whether they run."""

    def __init__(self, client: Client, config: ControllerConfiguration, registry: CollectorRegistry) -> None:
        # The name of this replica in the Lease and in events.
        identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self._config, self._registry = config, registry
        self.cache = ClusterCache(client, config.namespace)
        election = config.leader_election
        self.elector = LeaderElector(
            client, namespace=config.namespace, name=CONTROLLER, identity=identity, config=election.resolve()
        )
        if not election.enabled:
            self.elector.fence.extend(float("inf"))
        leader_client = client.with_fence(self.elector.fence)
        self._recorder = EventRecorder(leader_client, component=CONTROLLER, instance=identity, registry=registry)
        self._create_controllers(leader_client)
        self._create_page_and_events(client)
        self._register_metrics()

    def _create_controllers(self, leader_client: Client) -> None:
        """Create the controllers. Scheduling is first, because stores call handlers in this order, and the others read its indexes."""
        config, cache, recorder, registry = self._config, self.cache, self._recorder, self._registry
        prices = config.traffic.prices.resolve()
        scheduling = GatingController(
            leader_client, cache, config.scheduler, recorder, registry, notify=self._enqueue_group, prices=prices
        )
        self._scheduling, state = scheduling, scheduling.state
        membership, services = state.membership, None if config.scheduler.has_upstream_parity else state.services
        self._topology = TopologyController(
            leader_client, cache, config.topology, recorder, registry, membership=membership
        )
        self._app_groups = AppGroupController(
            leader_client,
            cache,
            config.app_group,
            recorder,
            registry,
            indexes=GroupIndexes(membership, state.cost_index, services),
            pods_of=scheduling.pods_of,
            extra_conditions=self._read_extra_conditions,
        )
        self._descheduler = Descheduler(
            leader_client, cache, config.descheduler, recorder, registry, scheduling=scheduling
        )
        self._traffic = TrafficController(
            leader_client, cache, config.traffic, registry, membership=membership, notify=self._enqueue_group
        )
        self._bootstrap = Bootstrap(leader_client, cache.topologies, config.bootstrap, namespace=config.namespace)

    def _create_page_and_events(self, client: Client) -> None:
        config = self._config
        policy = config.topology.resolve_cost_policy()
        snapshots = SnapshotReader(self.cache, client, config.namespace, policy=policy, scheduler=config.scheduler)
        self._page = Page(config.page, snapshots, PageAuthorizer(client, config.namespace))
        self._event_reporter = EventReporter(lambda: snapshots.read(time.time()), self._recorder)

    def _register_metrics(self) -> None:
        leader_gauge = Gauge("netaware_leader", "1 if this replica leads, else 0.", registry=self._registry)
        leader_gauge.set_function(lambda: float(self.elector.fence.is_held))
        self._sync_gauge = Gauge(
            "netaware_informer_sync_seconds", "Time until all stores had listed once.", registry=self._registry
        )
        self._registry.register(InformerMetrics(lambda: self.cache.stores_by_name))
        self._event_loop_monitor = EventLoopMonitor(self._registry)

    def _enqueue_group(self, key: str) -> None:
        self._app_groups.enqueue(key)

    async def _read_extra_conditions(self, key: str) -> list[Condition]:
        """Conditions of an AppGroup that other controllers compute."""
        return [*await self._scheduling.conditions(key), *self._traffic.conditions(key)]

    async def run(self) -> None:
        """Run until cancelled."""
        server = Server(
            self._config.listen,
            checks=self._create_health_checks(),
            registry=self._registry,
            public_hosts=self._config.page.allowed_hosts,
        )
        self._page.add_routes(server.app)
        tasks: dict[str, Awaitable[None]] = {
            **self.cache.reflector_tasks(),
            **self._scheduling.store_tasks(),
            "http": server.serve(),
            "events": self._recorder.run(),
            "memory": self._compact_memory_after_sync(),
            "loop": self._event_loop_monitor.run(),
            "election": self._run_election(),
        }
        await supervise(tasks)

    async def _run_election(self) -> None:
        if self._config.leader_election.enabled:
            await self.elector.run(self._run_controllers)
        else:
            await self._run_controllers(self.elector.fence)

    async def _run_controllers(self, _: WriteFence) -> None:
        await self.cache.wait_for_sync()
        await supervise(
            {
                "topology": self._topology.run(),
                "appgroup": self._app_groups.run(),
                "descheduler": self._descheduler.run(),
                "scheduling": self._scheduling.run(),
                "bootstrap": self._bootstrap.run(),
                "traffic": self._traffic.run(),
                "event reporter": self._event_reporter.run(),
            }
        )

    async def _compact_memory_after_sync(self) -> None:
        started_s = time.monotonic()
        await self.cache.wait_for_sync()
        self._sync_gauge.set(time.monotonic() - started_s)
        sizes = {name.replace("-", "_"): len(store) for name, store in self.cache.stores_by_name.items()}
        log.info("all stores have synced", **sizes)
        await run_memory_compaction()

    def _create_health_checks(self) -> HealthChecks:
        checks = HealthChecks()
        checks.ready["stores"] = lambda: f"not listed yet: {kinds}" if (kinds := self.cache.describe_unsynced()) else ""
        checks.ready["informers"] = lambda: describe_stale_stores(self.cache.stores_by_name.values())
        return checks
