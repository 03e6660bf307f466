"""Reads facts about devices and the machine that netlink does not have, from sysfs, procfs and psutil.

A file that is missing or cannot be read gives None, "" or False: reading ``speed`` of a device that is down fails with EINVAL.
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
        """The number in the file ``speed``, -1 included."""
        try:
            return int((self._root / name / "speed").read_text())
        except (OSError, ValueError):
            return None

    def is_physical(self, name: str) -> bool:
        """Whether the network device has a hardware device (or a virtual one, such as virtio) behind it."""
        return (self._root / name / "device").exists()

    def driver(self, name: str) -> str:
        """Name of the device's kernel driver."""
        try:
            return (self._root / name / "device" / "driver").readlink().name
        except OSError:
            return ""

    def is_virtual_function(self, name: str) -> bool:
        """Whether the device is a virtual function of an SR-IOV device."""
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

    def dmi_field(name: str) -> str:
        try:
            return (directory / name).read_text().strip()
        except OSError:
            return ""

    vendor, product = dmi_field("sys_vendor"), dmi_field("product_name")
    return Machine(
        vendor=vendor,
        product=product,
        asset_tag=dmi_field("chassis_asset_tag"),
        hypervisor=_hypervisor(sys, proc, vendor, product),
    )


def _hypervisor(sys: Path, proc: Path, vendor: str, product: str) -> str:
    try:
        with (proc / "cpuinfo").open() as file:
            for line in file:
                if line.startswith("flags") and " hypervisor" in line:
                    return f"the processor says so, firmware {vendor} {product}".strip()
                if not line.strip():
                    break  # The first processor's section is enough.
    except OSError:
        pass
    if (sys / "hypervisor" / "type").exists():
        return "Xen"
    if ".metal" not in product and (_VIRTUAL_VENDOR.match(vendor) or "Virtual Machine" in product):
        return f"firmware says {vendor} {product}".strip()
    return ""


def psutil_speeds() -> dict[str, int]:
    """Psutil's speed by device name, in Mbit/s, 0 for unknown: read by an ioctl, also where sysfs is not mounted."""
    import psutil  # Imported late, because it is large and rarely needed.

    return {name: int(stats.speed) for name, stats in psutil.net_if_stats().items()}
