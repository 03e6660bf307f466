"""``agent capacity`` and ``agent bandwidth``: print the links or the limits of this node.

For ``kubectl exec``: decides as the running agent does, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from agent.capacity.links import Link
from agent.capacity.node_bandwidth import choose_bandwidth
from agent.capacity.rules import find_capacity, pick_uplinks
from agent.config import AgentConfig
from agent.node import OwnNode
from kubekit.client import Client
from kubekit.config import load_cluster
from kubekit.errors import KubekitError
from kubekit.wire import NODES, PODS, Pod
from netperf.contract import BANDWIDTH

TIMEOUT_S = 5.0


async def show_capacity(config: AgentConfig, *, as_json: bool) -> None:
    """Print the node's links and its capacity.

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
            "devices": list(node_bandwidth.counted_devices),
            "links": [msgspec.to_builtins(link) for link in snapshot.links],
        }
        _print_json(document)
        return
    roles = dict.fromkeys(standby, "standby") | dict.fromkeys(uplinks, "uplink")
    print(_link_table(snapshot.links, names, roles, node_bandwidth.counted_devices), end="\n\n")
    print(f"capacity   {_format_rate(node_bandwidth.rate_bps)}")
    print(f"source     {node_bandwidth.source}: {node_bandwidth.explanation}")
    for warning in node_bandwidth.warnings:
        print(f"warning    {warning}")
    print(f"node       not read: {problem}" if node is None else f"node says  {published or 'nothing'}")


async def show_bandwidth(config: AgentConfig, *, as_json: bool) -> None:
    """Print the verdict on each annotated pod of this node.

    Raises:
        ConfigError: the cluster's configuration cannot be used.
        KubekitError: the pods, or traffic control, cannot be read.
    """
    async with Client(load_cluster(config.credentials), timeout_s=TIMEOUT_S) as client:
        pods = await client.list(PODS, Pod, field_selector=f"spec.nodeName={config.node}")
    specs = tuple(spec_of(pod) for pod in pods if not pod.is_finished)
    snapshot = await take_snapshot(config.proc, network_of(config), specs, ResultCache())
    plan = plan_limits(snapshot, Policy())
    if as_json:
        _print_json({"verdicts": [_verdict(status) for status in plan.statuses], "unlocated": plan.unlocated})
        return
    rows = [_bandwidth_row(status) for status in plan.statuses]
    rows += [(key, "-", "-", "-", "-", "-", "-", "-", reason) for key, reason in sorted(plan.unlocated.items())]
    header = ("POD", "DIRECTION", "VERDICT", "DEVICE", "WANTED", "EFFECTIVE", "BURST", "QUEUE", "DETAIL")
    print(_table([header, *rows]) if rows else "no pod on this node has a bandwidth annotation")


async def _read_node(config: AgentConfig) -> tuple[OwnNode | None, str]:
    """The node, or None and why it is unknown; the command also works without a cluster."""
    if not config.node:
        return None, "no --node-name"
    try:
        async with Client(load_cluster(config.credentials), timeout_s=TIMEOUT_S) as client:
            return await client.get(NODES, config.node, OwnNode), ""
    except KubekitError as error:
        return None, str(error)


def _link_table(
    links: Sequence[Link], names: Mapping[int, str], roles: Mapping[int, str], counted_devices: Sequence[str]
) -> str:
    rows = [("DEVICE", "KIND", "DRIVER", "STATE", "SPEED", "ON", "ROLE")]
    for link in links:
        role = roles.get(link.index, "")
        if link.loopback or (link.kind == "veth" and role != "uplink"):
            continue
        rows.append(
            (
                link.name,
                link.kind or ("hardware" if link.physical else "-"),
                link.driver or "-",
                "up" if link.up else "down",
                "-" if link.sysfs_mbps is None else str(link.sysfs_mbps),
                _lower_device(link, names),
                ", ".join(part for part in (role, "counted" if link.name in counted_devices else "") if part),
            )
        )
    return _table(rows)


def _lower_device(link: Link, names: Mapping[int, str]) -> str:
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
        _format_rate(status.wanted_bps, "-"),
        _format_rate(None if status.rate_bytes_per_s is None else status.rate_bytes_per_s * 8, "-"),
        "-" if status.burst_bytes is None else f"{status.burst_bytes} B",
        "-" if status.queue_s is None else f"{status.queue_s * 1000:.0f} ms",
        status.detail,
    )


def _format_rate(rate_bps: int | None, unknown: str = "unknown") -> str:
    if rate_bps is None:
        return unknown
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
