"""Runs the agent (``agent run``), or removes what it wrote (``--cleanup``)."""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from collections.abc import Coroutine
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from agent.capacity.instances import find_firmware_instance_type
from agent.capacity.link_reader import LinkReader
from agent.capacity.metrics import UplinkMetrics
from agent.capacity.node_bandwidth import HardwareCapacity
from agent.capacity.publication import plan_withdrawal
from agent.capacity.publisher import Publisher, execute_writes
from agent.capacity.rules import find_capacity
from agent.capacity.sysfs import NetDirectory, read_machine
from agent.config import AgentConfig
from agent.kernel_events import KernelEvents
from agent.node import OwnNode, OwnNodeWatch
from kubekit import logs, runtime
from kubekit.client import Client
from kubekit.config import load_cluster_config
from kubekit.errors import ApiError
from kubekit.events import EventRecorder
from kubekit.health import InformerMetrics, describe_stale_stores
from kubekit.http import HealthChecks, Server
from kubekit.reflector import Reflector
from kubekit.version import installed_version
from kubekit.wire import NODES, PODS, Pod
from netperf.contract import AGENT, AGENT_ANNOTATION, BANDWIDTH_OWNER_ANNOTATION, BANDWIDTH_SOURCE_ANNOTATION

log = logs.get("agent")

TLS_BUFFER_BYTES = 32 << 10
"""Read buffer of each TLS connection; each watch has a connection. asyncio's default is 256 KiB; a TLS record has at most 16 KiB."""


async def run_agent(config: AgentConfig) -> None:
    """Run until cancelled.

    Raises:
        ConfigError: the cluster's configuration, or the listen address, cannot be used.
        BaseExceptionGroup: a task failed or ended; the others were cancelled.
    """
    cluster = load_cluster_config(config.credentials)
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
    disable_created_metrics()  # type: ignore[no-untyped-call] # they double the series of counters
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    async with Client(cluster, user_agent=f"{AGENT}/{installed_version()}") as client:
        checks, node_watch, kernel = HealthChecks(), OwnNodeWatch(), KernelEvents()
        node_store = Reflector(client, NODES, OwnNode, field_selector=f"metadata.name={config.node}")
        node_store.subscribe(node_watch.on_change)
        publisher = _capacity_publisher(client, node_watch, config, kernel, registry)
        tasks = {"node": node_store.run(), "kernel-events": kernel.run(), "capacity": publisher.run()}
        stores: dict[str, Reflector[Any]] = {"node": node_store}
        if config.bandwidth != "off" or config.traffic != "off":
            pods = Reflector(client, PODS, Pod, field_selector=f"spec.nodeName={config.node}")
            stores["pods"] = pods
            tasks |= {"pods": pods.run()} | _pod_tasks(
                client, pods, node_watch, config, kernel=kernel, registry=registry
            )
        registry.register(InformerMetrics(lambda: stores))
        checks.ready |= {
            "age": lambda: describe_stale_stores(stores.values()),
            "node": lambda: "" if node_watch.node is not None else f"node {config.node} was not read yet",
        }
        if config.probing:
            from agent.probing.manager import ProbingManager

            probing = ProbingManager(client, node_watch, config, registry, publisher.on_throughput)
            checks.ready["probing"] = lambda: probing.problem
            checks.warnings["probing"] = lambda: probing.warning
            tasks |= probing.tasks()
        log.info("agent starts", node=config.node, version=installed_version(), server=cluster.server)
        async with Server(config.listen, checks=checks, registry=registry).running():
            await runtime.supervise(tasks)


def _capacity_publisher(
    client: Client, node_watch: OwnNodeWatch, config: AgentConfig, kernel: KernelEvents, registry: CollectorRegistry
) -> Publisher:
    """Create the publisher of the node's capacity, its metrics, and its subscription to changes of links."""
    links = LinkReader(config.sys, config.proc)

    async def read_hardware() -> HardwareCapacity:
        return find_capacity(await links.read())

    instance_type = find_firmware_instance_type(read_machine(config.sys, config.proc))
    publisher = Publisher(client, node_watch, config, read_hardware, instance_type=instance_type, registry=registry)
    kernel.subscribe_to_links(publisher.on_link_change)
    UplinkMetrics(config.node, NetDirectory(config.sys), lambda: publisher.node_bandwidth, registry)
    return publisher


def _pod_tasks(
    client: Client,
    pods: Reflector[Pod],
    node_watch: OwnNodeWatch,
    config: AgentConfig,
    *,
    kernel: KernelEvents,
    registry: CollectorRegistry,
) -> dict[str, Coroutine[Any, Any, None]]:
    """Tasks that need the node's pods: bandwidth limits and traffic. Imports their packages only if enabled, to save memory."""
    tasks: dict[str, Coroutine[Any, Any, None]] = {}
    if config.bandwidth != "off":
        from agent.bandwidth.manager import BandwidthManager

        recorder = EventRecorder(client, component=AGENT, instance=config.node, registry=registry)
        bandwidth = BandwidthManager(config, recorder, registry, pods)
        kernel.subscribe_to_tc(bandwidth.on_kernel_change)
        tasks |= {"events": recorder.run(), **bandwidth.tasks()}
    if config.traffic != "off":
        from agent.traffic.manager import TrafficManager

        traffic = TrafficManager(
            pods, config, lambda: node_watch.node.zone if node_watch.node is not None else "", registry
        )
        tasks |= traffic.tasks()
    return tasks


async def clean_up(config: AgentConfig, *, stay: bool) -> None:
    """Remove what the agent wrote on its node, and with ``--bandwidth enforce`` its limits (``--cleanup``).

    With ``stay``, serve /readyz afterwards until cancelled, because a rollout waits for ready pods.

    Raises:
        ConfigError: the cluster's configuration cannot be used.
        KubekitError: the API server refused or did not answer.
    """
    async with Client(load_cluster_config(config.credentials), user_agent=f"{AGENT}/{installed_version()}") as client:
        await _remove_own_writes(client, config)
    if stay:
        async with Server(config.listen, checks=HealthChecks(), registry=CollectorRegistry()).running():
            log.info("idle until this pod is deleted", node=config.node)
            await asyncio.Event().wait()


async def _remove_own_writes(client: Client, config: AgentConfig) -> None:
    try:
        node = await client.get(NODES, config.node, OwnNode)
    except ApiError as error:
        if not error.is_not_found:
            raise
        log.info("no such node", node=config.node)
    else:
        writes = plan_withdrawal(
            node, annotations=(AGENT_ANNOTATION, BANDWIDTH_OWNER_ANNOTATION, BANDWIDTH_SOURCE_ANNOTATION)
        )
        await execute_writes(client, config.node, writes)
        message = "removed the agent's annotations, capacity and condition" if writes else "nothing to remove"
        log.info(message, node=config.node)
    if config.bandwidth == "enforce":
        from agent.bandwidth.manager import remove_limits

        log.info("limits removed", count=await remove_limits(client, config))
