"""The snapshot's kernel state, indexed by device, with the owner of each qdisc and filter."""

from __future__ import annotations

from collections.abc import Iterable

from agent.bandwidth.state import (
    ALIAS_PREFIX,
    HOOK_MARK,
    HOOKS_HANDLE,
    OUR_HANDLE,
    ROOT,
    BandwidthSnapshot,
    Device,
    Filter,
    Hook,
)
from agent.bandwidth.tbf import TbfParams

PLUGIN_PREFIX = "bwp"
"""Name prefix of intermediate devices, both the CNI bandwidth plugin's and ours."""


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
        devices_with_hook_qdisc: indexes of the devices with the qdisc (ingress or clsact) that filters at hooks need.
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
            if qdisc.parent != ROOT and qdisc.handle != HOOKS_HANDLE:
                self._below.setdefault(qdisc.device, []).append(qdisc.kind)
        self._filters: dict[tuple[int, Hook], list[Filter]] = {}
        for one in sorted(kernel.filters, key=lambda f: f.priority):
            self._filters.setdefault((one.device, one.hook), []).append(one)
        self.devices_with_hook_qdisc = {qdisc.device for qdisc in kernel.qdiscs if qdisc.handle == HOOKS_HANDLE}

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
        """The filter that redirects everything a pod sends."""
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
        return [f for f in self.filters(device.index, hook) if not self._leads_to_limit(f)]

    def _leads_to_limit(self, one: Filter) -> bool:
        """Whether a filter redirects to an intermediate device with a limit, or did before that device was deleted."""
        if one.kind not in {"u32", "matchall"} or one.redirects_to is None:
            return False
        target = self.devices.get(one.redirects_to)
        return is_limit_device(target) if target is not None else one.matches_all


def is_limit_device(device: Device) -> bool:
    """Whether a device is an intermediate device of the CNI bandwidth plugin or of ours."""
    return device.kind == "ifb" and (device.name.startswith(PLUGIN_PREFIX) or is_ours(device))


def is_ours(device: Device) -> bool:
    """Whether a device is an intermediate device that we created."""
    return device.kind == "ifb" and device.alias.startswith(ALIAS_PREFIX)


def pod_uid_of(device: Device) -> str:
    """Uid of the pod that our intermediate device was created for."""
    return device.alias.removeprefix(ALIAS_PREFIX).removesuffix(HOOK_MARK)


def describe(device: Device, foreign_filters: list[Filter]) -> str:
    """Names the filters on a device, so that a person finds them with ``tc``."""
    parts = []
    for one in foreign_filters:
        name = f" {one.name}" if one.name else ""
        parts.append(f"a {one.kind} filter{name} with preference {one.priority}")
    hook = foreign_filters[0].hook
    return f"{' and '.join(parts)} on what {device.name} {'receives' if hook == 'ingress' else 'sends'}"
