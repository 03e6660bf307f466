"""The snapshot's kernel state, indexed by device, with the owner of each qdisc and filter."""

from __future__ import annotations

from collections.abc import Iterable

from agent.bandwidth.state import (
    ALIAS_PREFIX,
    INGRESS_HANDLE,
    INGRESS_QDISC_SUFFIX,
    OUR_HANDLE,
    ROOT,
    BandwidthSnapshot,
    Device,
    Filter,
    Hook,
)
from agent.bandwidth.tbf import TbfParams

PLUGIN_PREFIX = "bwp"
"""Name prefix of ifbs, both the CNI bandwidth plugin's and ours."""


def devices_by_namespace(devices: Iterable[Device]) -> dict[int, list[Device]]:
    """Veth and netkit devices by the id of the network namespace at their other end."""
    by_namespace: dict[int, list[Device]] = {}
    for device in devices:
        if device.kind in {"veth", "netkit"} and device.namespace_id is not None:
            by_namespace.setdefault(device.namespace_id, []).append(device)
    return by_namespace


class TcIndex:
    """Devices, qdiscs and filters of a snapshot, by device.

    Attributes:
        devices_with_ingress_qdisc: indexes of the devices with an ``ingress`` or ``clsact`` qdisc, which filters need.
    """

    def __init__(self, snapshot: BandwidthSnapshot) -> None:
        kernel = snapshot.kernel
        self.network = snapshot.network
        self.devices = {device.index: device for device in kernel.devices}
        self.by_name = {device.name: device for device in kernel.devices}
        self.pod_devices = devices_by_namespace(kernel.devices)
        self.roots = {qdisc.device: qdisc for qdisc in kernel.qdiscs if qdisc.parent == ROOT}
        self._below: dict[int, list[str]] = {}
        for qdisc in kernel.qdiscs:
            if qdisc.parent != ROOT and qdisc.handle != INGRESS_HANDLE:
                self._below.setdefault(qdisc.device, []).append(qdisc.kind)
        self._filters: dict[tuple[int, Hook], list[Filter]] = {}
        for filter_ in sorted(kernel.filters, key=lambda f: f.priority):
            self._filters.setdefault((filter_.device, filter_.hook), []).append(filter_)
        self.devices_with_ingress_qdisc = {qdisc.device for qdisc in kernel.qdiscs if qdisc.handle == INGRESS_HANDLE}

    def params_at(self, device: int) -> TbfParams | None:
        """Parameters of the token bucket at a device's root; None without one."""
        root = self.roots.get(device)
        return root.params if root is not None else None

    def is_our_root(self, device: int) -> bool:
        """Whether we set the token bucket at a device's root."""
        root = self.roots.get(device)
        return root is not None and root.handle == OUR_HANDLE

    def below_root(self, device: int) -> list[str]:
        """Kinds of the queueing disciplines below a device's root."""
        return self._below.get(device, [])

    def redirect_filter(self, device: int) -> Filter | None:
        """The filter that redirects all packets of a pod."""
        return next((f for f in self.filters(device) if f.matches_all and f.redirects_to is not None), None)

    def redirect_device(self, device: int) -> Device | None:
        """The device that `redirect_filter` redirects to; None if there is no redirect or the device is gone."""
        redirect = self.redirect_filter(device)
        return self.devices.get(redirect.redirects_to or 0) if redirect is not None else None

    def filters(self, device: int, hook: Hook = "ingress") -> list[Filter]:
        """Filters at a device's hook, in the order in which they see packets."""
        return self._filters.get((device, hook), [])

    def redirect_indexes(self) -> set[int | None]:
        """Indexes of the devices that filters redirect to."""
        return {f.redirects_to for filters in self._filters.values() for f in filters}

    def foreign_filters(self, device: Device, hook: Hook) -> list[Filter]:
        """Filters on a device that are neither ours nor the CNI bandwidth plugin's."""
        return [f for f in self.filters(device.index, hook) if not self._redirects_to_limit(f)]

    def _redirects_to_limit(self, filter_: Filter) -> bool:
        """Whether a filter redirects to the ifb of a limit, or did before that ifb was deleted."""
        if filter_.kind not in {"u32", "matchall"} or filter_.redirects_to is None:
            return False
        target = self.devices.get(filter_.redirects_to)
        return is_limit_ifb(target) if target is not None else filter_.matches_all


def is_limit_ifb(device: Device) -> bool:
    """Whether a device is an ifb of the CNI bandwidth plugin or of ours."""
    return device.kind == "ifb" and (device.name.startswith(PLUGIN_PREFIX) or is_our_ifb(device))


def is_our_ifb(device: Device) -> bool:
    """Whether a device is an ifb that we created."""
    return device.kind == "ifb" and device.alias.startswith(ALIAS_PREFIX)


def pod_uid_of(device: Device) -> str:
    """Uid of the pod that our ifb was created for."""
    return device.alias.removeprefix(ALIAS_PREFIX).removesuffix(INGRESS_QDISC_SUFFIX)


def describe(device: Device, foreign_filters: list[Filter]) -> str:
    """Names the filters on a device, so that a user finds them with ``tc``."""
    parts = [f"a {f.kind} filter{f' {f.name}' if f.name else ''} with preference {f.priority}" for f in foreign_filters]
    return (
        f"{' and '.join(parts)} on what {device.name} {'receives' if foreign_filters[0].hook == 'ingress' else 'sends'}"
    )
