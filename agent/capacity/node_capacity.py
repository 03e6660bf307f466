"""Chooses the node's capacity from all sources, and subtracts the reserve.

Precedence (docs/bandwidth.md): configuration, instance type, hardware, measurement. An unknown capacity is not published.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from agent.capacity.instances import find_instance_bandwidth
from agent.config import AgentConfig, parse_rate
from agent.node import OwnNode
from kubekit.errors import ConfigError
from netperf.contract import CAPACITY_ANNOTATION

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"

CapacitySource = Literal["annotation", "flag", "node-label", "instance-type", "hardware", "measured", "unknown"]


class HardwareCapacity(msgspec.Struct, frozen=True):
    """The capacity of the node's links.

    Attributes:
        rate_bps: bits per second of each direction, since links are full duplex; None if unknown.
        explanation: how the capacity was found, or why it is unknown; shown to users.
        counted_devices: names of the physical devices whose counters give the utilization.
    """

    rate_bps: int | None
    explanation: str
    counted_devices: tuple[str, ...] = ()


class NodeCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity to publish, with its source.

    Attributes:
        rate_bps: bits per second after the reserve; None to publish nothing.
        source: see docs/bandwidth.md.
        explanation: how the capacity was chosen; shown to users.
        warnings: configuration errors, such as an annotation that is not a quantity.
        counted_devices: as in `HardwareCapacity`.
    """

    rate_bps: int | None
    source: CapacitySource
    explanation: str
    warnings: tuple[str, ...] = ()
    counted_devices: tuple[str, ...] = ()


class _GrossCapacity(NamedTuple):
    """Bits per second before the reserve (None if unknown), their source, and how they were found."""

    rate_bps: int | None
    source: CapacitySource
    explanation: str


def choose_capacity(
    node: OwnNode | None,
    config: AgentConfig,
    hardware: HardwareCapacity,
    measured_bps: int | None,
    firmware_instance_type: str = "",
) -> NodeCapacity:
    """Choose the capacity by precedence, and subtract the reserve.

    Args:
        node: the agent's node; None if unknown, for example because the command line has no cluster.
        config: flags and file.
        hardware: from `agent.capacity.rules.find_capacity`.
        measured_bps: highest throughput of stream probes; None if there is none or the option is off.
        firmware_instance_type: instance type from the firmware, for nodes without the label.
    """
    warnings: list[str] = []
    instance_type = (node.metadata.label(INSTANCE_TYPE_LABEL) if node is not None else "") or firmware_instance_type
    candidates = [
        *_iter_configured_capacities(node, config, instance_type, warnings),
        _GrossCapacity(hardware.rate_bps, "hardware", hardware.explanation),
        _GrossCapacity(measured_bps, "measured", f"highest throughput of stream probes; {hardware.explanation}"),
    ]
    unlisted_type = f"instance type {instance_type} is not in the table; " if instance_type else ""
    unknown = _GrossCapacity(None, "unknown", unlisted_type + hardware.explanation)
    gross_bps, source, explanation = next((gross for gross in candidates if gross.rate_bps is not None), unknown)
    rate_bps = gross_bps
    if gross_bps is not None:
        rate_bps = int(gross_bps * (1 - config.reserve.ratio)) - config.reserve.rate_bps
        if rate_bps <= 0:
            warnings.append(f"--reserve: nothing is left of {gross_bps} bit/s")
            rate_bps = None
        elif rate_bps != gross_bps:
            explanation += f"; {gross_bps - rate_bps} bit/s of {gross_bps} are reserved"
    return NodeCapacity(
        rate_bps=rate_bps,
        source=source,
        explanation=explanation,
        warnings=tuple(warnings),
        counted_devices=hardware.counted_devices,
    )


def _iter_configured_capacities(
    node: OwnNode | None, config: AgentConfig, instance_type: str, warnings: list[str]
) -> Iterator[_GrossCapacity]:
    """Yield the capacity by each configurable source, in order of precedence. An invalid annotation adds to ``warnings``."""
    annotation = node.metadata.annotation(CAPACITY_ANNOTATION) if node is not None else ""
    explanation = f"annotation {CAPACITY_ANNOTATION}"
    try:
        yield _GrossCapacity(parse_rate(explanation, annotation) if annotation else None, "annotation", explanation)
    except ConfigError as error:
        warnings.append(str(error))
    yield _GrossCapacity(config.capacity_bps, "flag", "--capacity")
    for rule in config.capacity_rules:
        if node is not None and rule.selector.matches(node.metadata.labels):
            yield _GrossCapacity(rule.rate_bps, "node-label", f"configured for nodes with {rule.selector_text}")
    configured_bps = config.capacity_by_type.get(instance_type)
    yield _GrossCapacity(configured_bps, "instance-type", f"configured for {instance_type}")
    table_entry = find_instance_bandwidth(instance_type) if instance_type else None
    if table_entry is not None:
        yield _GrossCapacity(table_entry.rate_bps, "instance-type", table_entry.explanation)


def update_peak_bps(peak_bps: int | None, throughput_bps: float) -> int:
    """Return the highest throughput so far, rounded down to two significant digits, so that noise causes no writes to the node."""
    whole_bps = max(1, int(throughput_bps))
    unit_bps = int(10 ** max(0, len(str(whole_bps)) - 2))
    return max(peak_bps or 0, whole_bps // unit_bps * unit_bps)
