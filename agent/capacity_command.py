"""``agent capacity``: prints this node's links and capacity as JSON, for ``kubectl exec``. It changes nothing."""

from __future__ import annotations

import msgspec

from agent.capacity.instances import find_firmware_instance_type
from agent.capacity.link_reader import LinkReader
from agent.capacity.node_capacity import choose_capacity
from agent.capacity.rules import find_capacity
from agent.config import AgentConfig
from agent.node import OwnNode
from kubekit.client import Client
from kubekit.config import load_cluster_config
from kubekit.errors import KubekitError
from kubekit.wire import NODES
from netperf.contract import BANDWIDTH_RESOURCE

_REQUEST_TIMEOUT_S = 5.0


async def show_capacity(config: AgentConfig) -> None:
    """Print the node's links and the capacity that the running agent would publish, except a measured one.

    Raises:
        KernelError: the links cannot be read.
    """
    node, problem = await _read_node(config)
    snapshot = await LinkReader(config.sys, config.proc).read()
    node_capacity = choose_capacity(
        node, config, find_capacity(snapshot), None, find_firmware_instance_type(snapshot.machine)
    )
    document = {
        "node": node.metadata.name if node is not None else None,
        "node_problem": problem,
        "published": (node.status.capacity or {}).get(BANDWIDTH_RESOURCE) if node is not None else None,
        **msgspec.structs.asdict(node_capacity),
        "links": snapshot.links,
    }
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


async def _read_node(config: AgentConfig) -> tuple[OwnNode | None, str]:
    """Read the node; or None and the reason, because the command works without a cluster too."""
    if not config.node_name:
        return None, "no --node-name"
    try:
        async with Client(load_cluster_config(config.credentials), timeout_s=_REQUEST_TIMEOUT_S) as client:
            return await client.get(NODES, config.node_name, OwnNode), ""
    except KubekitError as error:
        return None, str(error)
