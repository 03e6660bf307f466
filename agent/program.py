"""``agent run``: every part of the agent under one task group, so that none can die unnoticed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from agent import VERSION
from agent.bandwidth.room import BandwidthRoom, remove_limits
from agent.capacity.kernel import read_links
from agent.capacity.offer import Finding
from agent.capacity.publication import plan_withdrawal
from agent.capacity.publisher import Publisher, execute_writes
from agent.capacity.rules import find_capacity
from agent.capacity.sysfs import NetDirectory
from agent.capacity.traffic import Traffic
from agent.config import AgentConfig
from agent.kernel_events import KernelEvents
from agent.names import AGENT_ANNOTATION, COMPONENT, OWNER_ANNOTATION, SOURCE_ANNOTATION
from agent.node import NodeView, OwnNode
from agent.probing.room import ProbingRoom
from agent.probing.rounds import Outcome
from kubekit import logs, runtime
from kubekit.client import Client
from kubekit.config import load_cluster
from kubekit.errors import ApiError
from kubekit.events import EventRecorder
from kubekit.http import Checks, Server
from kubekit.reflector import Reflector
from kubekit.wire import NODES

log = logs.get("agent")


async def run_agent(config: AgentConfig) -> None:
    """Run until cancelled.

    Raises:
        ConfigError: the cluster's configuration, or the listen address, cannot be used.
        BaseExceptionGroup: a task ended that should not.
    """
    cluster = load_cluster(config.kubeconfig)
    disable_created_metrics()  # type: ignore[no-untyped-call] # one more series for each counter, which nobody reads
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    checks = Checks()
    view = NodeView()
    async with Client(cluster, user_agent=f"{COMPONENT}/{VERSION}") as client:
        server = Server(config.listen, checks=checks, registry=registry)
        node = Reflector(client, NODES, OwnNode, field_selector=f"metadata.name={config.node}")
        node.subscribe(view.take)
        recorder = EventRecorder(client, component=COMPONENT, instance=config.node, registry=registry)
        kernel = KernelEvents()
        publisher = Publisher(client, view, config, lambda: find_hardware(config), registry=registry)
        kernel.on_links(publisher.note_link_change)
        traffic = Traffic(config.node, NetDirectory(config.sys), lambda: publisher.offer, registry)
        tasks: dict[str, Coroutine[Any, Any, None]] = {
            "node": node.run(),
            "events": recorder.run(),
            "capacity": publisher.run(),
            "kernel-events": kernel.run(),
            "traffic": traffic.run(),
        }
        checks.ready["node"] = lambda: "" if view.node is not None else f"node {config.node} was not read yet"
        if config.bandwidth != "off":
            limits = BandwidthRoom(client, config, recorder, registry)
            kernel.on_shaping(limits.note_kernel_change)
            tasks |= limits.tasks()
        if config.probing:

            def note(outcome: Outcome) -> None:
                sample = outcome.sample
                if sample is not None and sample.measurement.throughput_bps is not None:
                    publisher.note_throughput(sample.measurement.throughput_bps)

            probing = ProbingRoom(client, view, config, registry, (note,))
            checks.ready["probing"] = lambda: probing.problem
            tasks |= probing.tasks()
        log.info("agent starts", node=config.node, version=VERSION, server=cluster.server)
        async with server.running():
            await runtime.supervise(tasks)


async def find_hardware(config: AgentConfig) -> Finding:
    """Read the links and apply the rules.

    Raises:
        KernelError: they cannot be read.
    """
    return find_capacity(await read_links(config.sys))


async def clean_up(config: AgentConfig) -> None:
    """Take back what the agent wrote on its node, and in ``enforce`` the limits that it set: ``--cleanup``.

    Raises:
        ConfigError: the cluster's configuration cannot be used.
        KubekitError: the API server refused or did not answer.
    """
    async with Client(load_cluster(config.kubeconfig), user_agent=f"{COMPONENT}/{VERSION}") as client:
        try:
            node = await client.get(NODES, config.node, OwnNode)
        except ApiError as error:
            if error.not_found:
                log.info("no such node, nothing to take back", node=config.node)
                return
            raise
        writes = plan_withdrawal(node, annotations=(AGENT_ANNOTATION, OWNER_ANNOTATION, SOURCE_ANNOTATION))
        await execute_writes(client, config.node, writes)
        log.info("taken back" if writes else "nothing to take back", node=config.node)
        if config.bandwidth == "enforce":
            log.info("limits removed", count=await remove_limits(client, config))
