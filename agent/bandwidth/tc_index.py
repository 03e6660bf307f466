"""A snapshot's qdiscs and filters by device, and who set them."""

from __future__ import annotations

from agent.bandwidth.state import (
    ALIAS_PREFIX,
    INGRESS_HANDLE,
    OUR_HANDLE,
    ROOT,
    BandwidthSnapshot,
    Device,
    Filter,
    Hook,
    PodSandbox,
)
from agent.bandwidth.tbf import TbfParams

PLUGIN_PREFIX = "bwp"
"""Name prefix of ifbs, both the CNI bandwidth plugin's and ours."""


class TcIndex:
    """Devices, qdiscs and filters of a snapshot, by device.

    Attributes:
        network: the CNI network.
        devices, devices_by_name: all devices of the host's namespace, by index and by name.
        roots, kinds_below_root: root qdiscs, and kinds of the qdiscs below, by the index of their device.
        devices_with_ingress_qdisc: indexes of the devices with an ``ingress`` or ``clsact`` qdisc, which filters need.
    """

    def __init__(self, snapshot: BandwidthSnapshot) -> None:
        tc_state, qdiscs = snapshot.tc_state, snapshot.tc_state.qdiscs
        self.network = snapshot.network
        self.devices = {device.index: device for device in tc_state.devices}
        self.devices_by_name = {device.name: device for device in tc_state.devices}
        self.roots = {qdisc.device_index: qdisc for qdisc in qdiscs if qdisc.parent == ROOT}
        self.devices_with_ingress_qdisc = {qdisc.device_index for qdisc in qdiscs if qdisc.handle == INGRESS_HANDLE}
        self._pod_devices: dict[int, list[Device]] = {}
        for device in tc_state.devices:
            if device.kind in {"veth", "netkit"} and device.namespace_id is not None:
                self._pod_devices.setdefault(device.namespace_id, []).append(device)
        self.kinds_below_root: dict[int, list[str]] = {}
        for qdisc in qdiscs:
            if qdisc.parent != ROOT and qdisc.handle != INGRESS_HANDLE:
                self.kinds_below_root.setdefault(qdisc.device_index, []).append(qdisc.kind)
        self._filters: dict[tuple[int, Hook], list[Filter]] = {}
        for filter_ in sorted(tc_state.filters, key=lambda f: f.priority):
            self._filters.setdefault((filter_.device_index, filter_.hook), []).append(filter_)

    def pod_device(self, sandbox: PodSandbox) -> Device | None:
        """The host's end of the pod's eth0; None if eth0 is not an end of a veth or netkit pair.

        A pod with several networks has several devices. If the index of its eth0 is unknown, the oldest counts, because a meta plugin
        sets up the cluster's network first.
        """
        if sandbox.namespace_id is None:
            return None
        devices = self._pod_devices.get(sandbox.namespace_id, ())
        if sandbox.eth0_index is not None and all(device.peer is not None for device in devices):
            return next((device for device in devices if device.peer == sandbox.eth0_index), None)
        return min(devices, key=lambda device: (device.peer or 0, device.index), default=None)

    def params_at(self, device_index: int) -> TbfParams | None:
        """Parameters of the token bucket at a device's root; None without one."""
        root = self.roots.get(device_index)
        return root.params if root is not None else None

    def is_our_root(self, device_index: int) -> bool:
        """Whether we set the token bucket at a device's root."""
        root = self.roots.get(device_index)
        return root is not None and root.handle == OUR_HANDLE

    def redirect_filter(self, device_index: int) -> Filter | None:
        """The filter that redirects all packets of a pod."""
        return next((f for f in self.filters(device_index) if f.matches_all and f.redirects_to is not None), None)

    def redirect_device(self, device_index: int) -> Device | None:
        """The device that `redirect_filter` redirects to; None if there is no redirect or the device is gone."""
        redirect = self.redirect_filter(device_index)
        return self.devices.get(redirect.redirects_to or 0) if redirect is not None else None

    def filters(self, device_index: int, hook: Hook = "ingress") -> list[Filter]:
        """Filters at a device's hook, in the order in which they run."""
        return self._filters.get((device_index, hook), [])

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


def describe_filters(device: Device, filters: list[Filter]) -> str:
    """Names filters at one hook of a device, so that a user finds them with ``tc``; empty without any."""
    parts = [f"a {f.kind} filter{f' {f.name}' if f.name else ''} with preference {f.priority}" for f in filters]
    return f"{' and '.join(parts)} at {filters[0].hook} of {device.name}" if filters else ""
