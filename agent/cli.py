"""``agent capacity`` and ``agent bandwidth``: print what the agent finds on this node.

For ``kubectl exec``: uses the rules of the running agent, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agent.bandwidth.annotations import spec_of
from agent.bandwidth.cni import ResultCache
from agent.bandwidth.manager import network_of
from agent.bandwidth.rules import Policy, plan_limits
from agent.bandwidth.snapshot import take_snapshot
from agent.bandwidth.state import LimitStatus
from agent.capacity.instances import firmware_type
from agent.capacity.link_reader import LinkReader
from agent.capacity.links import Link, LinkSnapshot
from agent.capacity.node_bandwidth import choose_bandwidth
from agent.capacity.rules import find_capacity, pick_uplinks
from agent.config import AgentConfig
from agent.node import OwnNode
from kubekit.client import Client
from kubekit.config import load_cluster
from kubekit.errors import ConfigError, KubekitError
from kubekit.wire import NODES, PODS, Pod
from netperf.contract import BANDWIDTH

TIMEOUT_S = 5.0


async def show_capacity(config: AgentConfig, *, as_json: bool) -> None:
    """Print links, uplinks, and the capacity that follows.

    Raises:
        KernelError: the links cannot be read.
    """
    node, problem = await _read_node(config)
    snapshot = await LinkReader(config.sys, config.proc).read()
    node_bandwidth = choose_bandwidth(node, config, find_capacity(snapshot), None, firmware_type(snapshot.machine))
    by_family, standby = pick_uplinks(snapshot)
    uplinks = list(dict.fromkeys(index for indexes in by_family.values() for index in indexes))
    names = {link.index: link.name for link in snapshot.links}
    published = (node.status.capacity or {}).get(BANDWIDTH) if node is not None else None
    if as_json:
        document = {
            "node": node.metadata.name if node is not None else None,
            "node_problem": problem,
            "published": published,
            "rate_bps": node_bandwidth.rate_bps,
            "gross_bps": node_bandwidth.gross_bps,
            "source": node_bandwidth.source,
            "explanation": node_bandwidth.explanation,
            "warnings": list(node_bandwidth.warnings),
            "uplinks": [names.get(index, str(index)) for index in uplinks],
            "standby": [names.get(index, str(index)) for index in standby],
            "devices": list(node_bandwidth.devices),
            "links": [msgspec.to_builtins(link) for link in snapshot.links],
        }
        _print_json(document)
        return
    print(_link_table(snapshot, uplinks, standby, node_bandwidth.devices), end="\n\n")
    print(f"capacity   {_bits(node_bandwidth.rate_bps)}")
    print(f"source     {node_bandwidth.source}: {node_bandwidth.explanation}")
    for warning in node_bandwidth.warnings:
        print(f"warning    {warning}")
    print(f"node       not read: {problem}" if node is None else f"node says  {published or 'nothing'}")


async def show_bandwidth(config: AgentConfig, *, as_json: bool) -> None:
    """Print the verdict on each annotated pod of this node.

    Raises:
        ConfigError: no node name, or no cluster.
        KubekitError: the pods, or traffic control, cannot be read.
    """
    if not config.node:
        raise ConfigError("--node-name", "is not set", "give --node-name NAME or set NODE_NAME")
    async with Client(load_cluster(config.credentials), timeout_s=TIMEOUT_S) as client:
        pods = await client.list(PODS, Pod, field_selector=f"spec.nodeName={config.node}")
    limits = tuple(spec_of(pod) for pod in pods if not pod.is_finished)
    snapshot = await take_snapshot(config.proc, network_of(config), limits, ResultCache())
    plan = plan_limits(snapshot, Policy())
    if as_json:
        _print_json({"verdicts": [_verdict(status) for status in plan.statuses], "unlocated": plan.unlocated})
        return
    rows = [_bandwidth_row(status) for status in plan.statuses]
    rows += [(key, "-", "-", "-", "-", "-", "-", "-", why) for key, why in sorted(plan.unlocated.items())]
    header = ("POD", "DIRECTION", "VERDICT", "DEVICE", "WANTED", "EFFECTIVE", "BURST", "QUEUE", "DETAIL")
    print(_table([header, *rows]) if rows else "no pod on this node has a bandwidth annotation")


async def _read_node(config: AgentConfig) -> tuple[OwnNode | None, str]:
    """The node, or why it is unknown; the command also works without a cluster."""
    if not config.node:
        return None, "no --node-name"
    try:
        async with Client(load_cluster(config.credentials), timeout_s=TIMEOUT_S) as client:
            return await client.get(NODES, config.node, OwnNode), ""
    except KubekitError as error:
        return None, str(error)


def _link_table(snapshot: LinkSnapshot, uplinks: list[int], standby: list[int], counted: Sequence[str]) -> str:
    names = {link.index: link.name for link in snapshot.links}
    rows = [("DEVICE", "KIND", "DRIVER", "STATE", "SPEED", "ON", "ROLE")]
    for link in snapshot.links:
        if link.loopback or (link.kind == "veth" and link.index not in uplinks):
            continue
        role = "uplink" if link.index in uplinks else "standby" if link.index in standby else ""
        rows.append(
            (
                link.name,
                link.kind or ("hardware" if link.physical else "-"),
                link.driver or "-",
                "up" if link.up else "down",
                "-" if link.sysfs_mbps is None else str(link.sysfs_mbps),
                _below(link, names),
                ", ".join(part for part in (role, "counted" if link.name in counted else "") if part),
            )
        )
    return _table(rows)


def _below(link: Link, names: dict[int, str]) -> str:
    if link.master is not None:
        return f"in {names.get(link.master, link.master)}"
    if link.parent is not None and not link.parent_elsewhere:
        return names.get(link.parent, str(link.parent))
    return "-"


def _verdict(status: LimitStatus) -> dict[str, Any]:
    return {
        "namespace": status.pod.namespace,
        "pod": status.pod.name,
        "direction": status.direction,
        "verdict": status.verdict,
        "device": status.device_name,
        "wanted_bps": status.wanted_bps,
        "effective_bps": None if status.rate_bytes_per_s is None else status.rate_bytes_per_s * 8,
        "effective_burst_bytes": status.burst_bytes,
        "worst_queue_s": status.queue_s,
        "detail": status.detail,
    }


def _bandwidth_row(status: LimitStatus) -> tuple[str, ...]:
    return (
        status.pod.key,
        status.direction,
        status.verdict,
        status.device_name or "-",
        _bits(status.wanted_bps, "-"),
        _bits(None if status.rate_bytes_per_s is None else status.rate_bytes_per_s * 8, "-"),
        "-" if status.burst_bytes is None else f"{status.burst_bytes} B",
        "-" if status.queue_s is None else f"{status.queue_s * 1000:.0f} ms",
        status.detail,
    )


def _bits(rate_bps: int | None, none: str = "unknown") -> str:
    if rate_bps is None:
        return none
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if rate_bps >= size:
            return f"{rate_bps / size:g} {unit}bit/s"
    return f"{rate_bps} bit/s"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _print_json(document: dict[str, Any]) -> None:
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
