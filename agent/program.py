"""Runs the agent (``agent run``), or removes what it wrote (``--cleanup``)."""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from agent.capacity.instances import find_firmware_instance_type
from agent.capacity.link_reader import LinkReader
from agent.capacity.metrics import CapacityMetrics
from agent.capacity.publication import plan_withdrawal
from agent.capacity.publisher import Publisher, execute_writes
from agent.capacity.sysfs import NetDirectory, read_machine
from agent.config import AgentConfig
from agent.kernel_events import KernelEvents
from agent.node import OwnNode, OwnNodeWatch
from kubekit import logs, runtime
from kubekit.client import Client
from kubekit.config import load_cluster_config
from kubekit.errors import KubekitError
from kubekit.events import EventRecorder
from kubekit.health import InformerMetrics, describe_stale_stores
from kubekit.http import HealthChecks, Server
from kubekit.reflector import Reflector
from kubekit.version import installed_version
from kubekit.wire import NODES, PODS, Pod
from netperf.contract import AGENT

log = logs.get("agent")

TLS_BUFFER_BYTES = 32 << 10
"""Read buffer of a TLS connection; each watch has a connection. asyncio's default is 256 KiB, a TLS record has at most 16 KiB."""


async def run_agent(config: AgentConfig) -> None:
    """Run until cancelled.

    Raises:
        ConfigError: the cluster's configuration, or the listen address, cannot be used.
        BaseExceptionGroup: a task failed or ended; the others were cancelled.
    """
    cluster = load_cluster_config(config.credentials)
    # Changes all TLS connections of this process; asyncio has no option for one connection.
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
    disable_created_metrics()  # type: ignore[no-untyped-call] # they double the series of counters
    async with Client(cluster, user_agent=f"{AGENT}/{installed_version()}") as client:
        parts = _AgentParts(client, config)
        log.info("agent starts", node=config.node_name, version=installed_version(), server=cluster.server)
        async with Server(config.listen, checks=parts.checks, registry=parts.registry).running():
            await runtime.supervise(parts.tasks)


class _AgentParts:
    """The enabled parts of the agent: their tasks by name, checks and metrics. Other parts are not imported, to save memory."""

    def __init__(self, client: Client, config: AgentConfig) -> None:
        self._client, self._config = client, config
        self._node_watch, self._kernel_events = OwnNodeWatch(), KernelEvents()
        self._stores: dict[str, Reflector[Any]] = {}
        self.tasks: dict[str, Coroutine[Any, Any, None]] = {"kernel-events": self._kernel_events.run()}
        self.checks, self.registry = HealthChecks(), CollectorRegistry()
        self.checks.ready["informers"] = lambda: describe_stale_stores(self._stores.values())
        ProcessCollector(registry=self.registry)
        self.registry.register(InformerMetrics(lambda: self._stores))
        self._add_node()
        on_throughput = self._add_capacity()
        if config.bandwidth != "off" or config.traffic != "off":
            pods = Reflector(client, PODS, Pod, field_selector=f"spec.nodeName={config.node_name}")
            self._add_store("pods", pods)
            if config.bandwidth != "off":
                self._add_bandwidth(pods)
            if config.traffic != "off":
                self._add_traffic(pods)
        if config.is_probing:
            self._add_probing(on_throughput)

    def _add_store(self, name: str, store: Reflector[Any]) -> None:
        self._stores[name], self.tasks[name] = store, store.run()

    def _add_node(self) -> None:
        name = self._config.node_name
        store = Reflector(self._client, NODES, OwnNode, field_selector=f"metadata.name={name}")
        store.subscribe(self._node_watch.on_change)
        self._add_store("node", store)
        self.checks.ready["node"] = lambda: "" if self._node_watch.node is not None else f"node {name} was not read yet"

    def _add_capacity(self) -> Callable[[float], None]:
        """Publish the node's capacity; returns the handler of measured throughput."""
        config = self._config
        publisher = Publisher(
            self._client,
            self._node_watch,
            config,
            LinkReader(config.sys, config.proc).read,
            instance_type=find_firmware_instance_type(read_machine(config.sys, config.proc)),
            registry=self.registry,
        )
        self._kernel_events.link_listeners.append(publisher.on_link_change)
        CapacityMetrics(config.node_name, NetDirectory(config.sys), lambda: publisher.node_capacity, self.registry)
        self.tasks["capacity"] = publisher.run()
        return publisher.on_throughput

    def _add_bandwidth(self, pods: Reflector[Pod]) -> None:
        from agent.bandwidth.manager import BandwidthManager

        instance = self._config.node_name
        recorder = EventRecorder(self._client, component=AGENT, instance=instance, registry=self.registry)
        manager = BandwidthManager(self._config, recorder, self.registry, pods)
        self._kernel_events.tc_listeners.append(manager.on_kernel_change)
        self.tasks |= {"events": recorder.run(), **manager.tasks()}

    def _add_traffic(self, pods: Reflector[Pod]) -> None:
        from agent.traffic.collector import TrafficCollector

        collector = TrafficCollector(lambda: node.zone if (node := self._node_watch.node) else "", self._config.proc)
        self.registry.register(collector)
        self.tasks |= collector.tasks(pods)

    def _add_probing(self, on_throughput: Callable[[float], None]) -> None:
        from agent.probing.manager import ProbingManager

        manager = ProbingManager(self._client, self._node_watch, self._config, self.registry, on_throughput)
        self.checks.ready["probing"] = lambda: manager.problem
        self.checks.warnings["probing"] = lambda: manager.warning
        self.tasks |= manager.tasks()


async def clean_up(config: AgentConfig, *, stay: bool) -> None:
    """Remove the limits that the agent set (only with ``--bandwidth enforce``), and what it wrote on its node (``--cleanup``).

    With ``stay``, serve /readyz afterwards until cancelled, because a rollout waits for ready pods.

    Raises:
        ExceptionGroup: the kernel or the API server refused or did not answer; the other part was tried anyway.
    """
    failures: list[KubekitError] = []
    for remove in (_remove_limits, _remove_node_writes):
        try:
            await remove(config)
        except KubekitError as error:
            failures.append(error)
    if failures:
        raise ExceptionGroup("cleanup failed", failures)
    if stay:
        async with Server(config.listen, checks=HealthChecks(), registry=CollectorRegistry()).running():
            log.info("idle until this pod is deleted", node=config.node_name)
            await asyncio.Event().wait()


async def _remove_limits(config: AgentConfig) -> None:
    if config.bandwidth == "enforce":
        from agent.bandwidth import manager

        log.info("limits removed", count=await manager.remove_limits())


async def _remove_node_writes(config: AgentConfig) -> None:
    async with Client(load_cluster_config(config.credentials), user_agent=f"{AGENT}/{installed_version()}") as client:
        writes = plan_withdrawal(await client.get(NODES, config.node_name, OwnNode))
        await execute_writes(client, config.node_name, writes)
    message = "removed the agent's annotations, capacity and condition" if writes else "nothing to remove"
    log.info(message, node=config.node_name)
