"""Looks up the bandwidth of clouds' instance types in the table instances.json, which names the date and source of each part.

Of burstable types the table has the baseline, because reserved bandwidth must always be available. Google's bandwidth depends on
series and processors, so ``n2-*-8`` stands for ``n2-standard-8`` and similar types, with or without local disks, but not for custom
types. Of Amazon's types with several network cards the table has the bandwidth of one card, because a pod uses one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import msgspec

from agent.capacity.links import Machine

_AMAZON_TYPE = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")


class InstanceBandwidth(msgspec.Struct, frozen=True):
    """Bandwidth of an instance type in bits per second, and the table's source."""

    rate_bps: int
    explanation: str


class _CloudTable(msgspec.Struct):
    """A part of the table: one cloud's instance types from one source."""

    cloud: str
    date: str
    source: str
    mbps: dict[str, int]


_decode_clouds = msgspec.json.Decoder(list[_CloudTable]).decode


@lru_cache(maxsize=4)
def find_instance_bandwidth(instance_type: str) -> InstanceBandwidth | None:
    """Find the bandwidth of an instance type; None if it is not in the table. Results are cached, the table is not, to save memory."""
    for cloud in _decode_clouds(Path(__file__).with_name("instances.json").read_bytes()):
        mbps = cloud.mbps.get(instance_type) or cloud.mbps.get(_size_pattern(instance_type))
        if mbps is not None:
            return InstanceBandwidth(mbps * 1_000_000, f"{cloud.cloud} {instance_type} ({cloud.source}, {cloud.date})")
    return None


def find_firmware_instance_type(machine: Machine) -> str:
    """Find the instance type in the firmware of a virtual machine of Amazon; empty for other machines."""
    is_amazon_instance = machine.vendor == "Amazon EC2" and bool(machine.hypervisor_evidence)
    return machine.product if is_amazon_instance and _AMAZON_TYPE.fullmatch(machine.product) else ""


def _size_pattern(instance_type: str) -> str:
    """Return Google's pattern, such as ``n2-*-8`` for ``n2-highmem-8`` and ``n2-standard-8-lssd``; empty for names of another form."""
    parts = instance_type.split("-")
    return f"{parts[0]}-*-{parts[2]}" if len(parts) in {3, 4} and parts[1] not in {"", "custom"} else ""
