"""Reads facts about devices and the machine that netlink does not have, from sysfs, procfs and psutil.

A file that is missing or cannot be read gives None, "" or False: reading ``speed`` of a device that is down fails with EINVAL.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from agent.capacity.links import Machine

_VIRTUAL_VENDOR = re.compile(
    "QEMU|Amazon EC2|Google|VMware|Xen|innotek GmbH|DigitalOcean|Alibaba Cloud|OpenStack|Hetzner|Nutanix|Bochs|Parallels|"
    "Tencent Cloud|Vultr|Linode|UpCloud|KubeVirt|Scaleway"
)
"""DMI vendors of virtual machines, used if the CPU has no hypervisor flag (arm64). Amazon's bare-metal types contain ``.metal``."""


class ByteCounters(NamedTuple):
    """Bytes that a device sent and received since it was created."""

    sent: int
    received: int


class NetDirectory:
    """``/sys/class/net`` of one network namespace."""

    def __init__(self, sys: Path) -> None:
        self._root = sys / "class" / "net"

    def read_speed_mbps(self, name: str) -> int | None:
        """Read the number in the file ``speed``, -1 included."""
        try:
            return int((self._root / name / "speed").read_text())
        except (OSError, ValueError):
            return None

    def is_physical(self, name: str) -> bool:
        """Whether the network device has a bus device behind it: hardware, or an emulated device such as virtio."""
        return (self._root / name / "device").exists()

    def read_driver(self, name: str) -> str:
        """Read the name of the device's kernel driver."""
        try:
            return (self._root / name / "device" / "driver").readlink().name
        except OSError:
            return ""

    def is_virtual_function(self, name: str) -> bool:
        """Whether the device is a virtual function of an SR-IOV device."""
        return (self._root / name / "device" / "physfn").exists()

    def read_counters(self, name: str) -> ByteCounters | None:
        """Read the device's byte counters."""
        statistics = self._root / name / "statistics"
        try:
            return ByteCounters(*(int((statistics / file).read_text()) for file in ("tx_bytes", "rx_bytes")))
        except (OSError, ValueError):
            return None


def read_machine(sys: Path, proc: Path) -> Machine:
    """Read the machine's identity from firmware and processor."""
    names = ("sys_vendor", "product_name", "chassis_asset_tag")
    vendor, product, asset_tag = (_read_start(sys / "class" / "dmi" / "id" / name).strip() for name in names)
    evidence = _find_hypervisor_evidence(sys, proc, vendor, product)
    return Machine(vendor=vendor, product=product, asset_tag=asset_tag, hypervisor_evidence=evidence)


def _find_hypervisor_evidence(sys: Path, proc: Path, vendor: str, product: str) -> str:
    if re.search(r"^flags.* hypervisor", _read_start(proc / "cpuinfo"), re.MULTILINE):
        return f"the processor says so, firmware {vendor} {product}".strip()
    if (sys / "hypervisor" / "type").exists():
        return "Xen"
    if ".metal" not in product and (_VIRTUAL_VENDOR.match(vendor) or "Virtual Machine" in product):
        return f"firmware says {vendor} {product}".strip()
    return ""


def _read_start(path: Path) -> str:
    """Read the first 8 KiB of a file, which have the first processor of cpuinfo; empty if the file cannot be read."""
    try:
        with path.open(errors="replace") as file:  # Firmware may have any bytes.
            return file.read(8192)
    except OSError:
        return ""


def read_psutil_mbps(name: str) -> int | None:
    """Read a device's speed through psutil in Mbit/s, 0 for unknown: by an ioctl, which needs no sysfs."""
    import psutil  # Imported late, because it is large and rarely needed.

    stats = psutil.net_if_stats().get(name)
    return int(stats.speed) if stats is not None else None
