"""Reads what netlink lacks about devices from sysfs and psutil.

A file that is missing or cannot be read gives None, "", 0 or False: reading ``speed`` of a device that is down gives EINVAL.
"""

from __future__ import annotations

import re
from pathlib import Path

from agent.capacity.links import Machine


class NetDirectory:
    """``/sys/class/net`` of one network namespace."""

    def __init__(self, sys: Path) -> None:
        self._root = sys / "class" / "net"

    def speed_mbps(self, name: str) -> int | None:
        """The file ``speed`` as it reads, -1 included."""
        try:
            return int((self._root / name / "speed").read_text())
        except (OSError, ValueError):
            return None

    def is_physical(self, name: str) -> bool:
        """Whether there is a device behind it."""
        return (self._root / name / "device").exists()

    def driver(self, name: str) -> str:
        """Name of the device's kernel driver."""
        try:
            return (self._root / name / "device" / "driver").readlink().name
        except OSError:
            return ""

    def is_virtual_function(self, name: str) -> bool:
        """Whether it is a virtual function of an SR-IOV device."""
        return (self._root / name / "device" / "physfn").exists()

    def counters(self, name: str) -> tuple[int, int] | None:
        """Bytes sent and received so far."""
        statistics = self._root / name / "statistics"
        try:
            return int((statistics / "tx_bytes").read_text()), int((statistics / "rx_bytes").read_text())
        except (OSError, ValueError):
            return None


_VIRTUAL_VENDOR = re.compile(
    "QEMU|Amazon EC2|Google|VMware|Xen|innotek GmbH|DigitalOcean|Alibaba Cloud|OpenStack|Hetzner|Nutanix|Bochs|Parallels|"
    "Tencent Cloud|Vultr|Linode|UpCloud|KubeVirt|Scaleway"
)
"""DMI vendors of virtual machines, used if the CPU has no hypervisor flag (arm64). Amazon's bare-metal types contain ``.metal``."""


def read_machine(sys: Path, proc: Path) -> Machine:
    """Read the machine's identity from firmware and processor."""
    directory = sys / "class" / "dmi" / "id"

    def field(name: str) -> str:
        try:
            return (directory / name).read_text().strip()
        except OSError:
            return ""

    vendor, product = field("sys_vendor"), field("product_name")
    return Machine(
        vendor=vendor,
        product=product,
        asset_tag=field("chassis_asset_tag"),
        hypervisor=_hypervisor(sys, proc, vendor, product),
    )


def _hypervisor(sys: Path, proc: Path, vendor: str, product: str) -> str:
    try:
        with (proc / "cpuinfo").open() as file:
            for line in file:
                if line.startswith("flags") and " hypervisor" in line:
                    return f"the processor says so, firmware {vendor} {product}".strip()
                if not line.strip():
                    break  # one processor is enough
    except OSError:
        pass
    if (sys / "hypervisor" / "type").exists():
        return "Xen"
    if ".metal" not in product and (_VIRTUAL_VENDOR.match(vendor) or "Virtual Machine" in product):
        return f"firmware says {vendor} {product}".strip()
    return ""


def psutil_speeds() -> dict[str, int]:
    """Psutil's speed by device name, Mbit/s, 0 for unknown: an ioctl, where sysfs is not mounted."""
    import psutil  # 1 MB and seldom needed

    return {name: int(stats.speed) for name, stats in psutil.net_if_stats().items()}
