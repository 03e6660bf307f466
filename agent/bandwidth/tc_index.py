"""A snapshot's qdiscs and filters by device, and who set them."""

from __future__ import annotations

from agent.bandwidth.state import (
    ALIAS_PREFIX,
    INGRESS_HANDLE,
    OUR_HANDLE,
    BandwidthSnapshot,
    Device,
    Filter,
    Hook,
    PodSandbox,
)
from agent.rtnetlink import ROOT, TbfParams

IFB_PREFIX = "bwp"
"""Name prefix of ifbs, both the CNI bandwidth plugin's and ours."""


class TcIndex:
    """Devices, qdiscs and filters of a snapshot, by device.

    Attributes:
        network: the CNI network.
        device_by_index, device_by_name: all devices of the host's namespace.
        root_by_device, kinds_below_root: root qdiscs, and kinds of the qdiscs below, by the index of their device.
        devices_with_ingress_qdisc: indexes of the devices with an ``ingress`` or ``clsact`` qdisc, which filters need.
    """

    def __init__(self, snapshot: BandwidthSnapshot) -> None:
        tc_state, qdiscs = snapshot.tc_state, snapshot.tc_state.qdiscs
        self.network = snapshot.network
        self.device_by_index = {device.index: device for device in tc_state.devices}
        self.device_by_name = {device.name: device for device in tc_state.devices}
        self.root_by_device = {qdisc.device_index: qdisc for qdisc in qdiscs if qdisc.parent == ROOT}
        self.kinds_below_root: dict[int, set[str]] = {}
        for qdisc in qdiscs:
            if qdisc.parent != ROOT and qdisc.handle != INGRESS_HANDLE:
                self.kinds_below_root.setdefault(qdisc.device_index, set()).add(qdisc.kind)
        self.devices_with_ingress_qdisc = {qdisc.device_index for qdisc in qdiscs if qdisc.handle == INGRESS_HANDLE}
        self._pod_devices_by_namespace: dict[int, list[Device]] = {}
        for device in tc_state.devices:
            if device.kind in {"veth", "netkit"} and device.namespace_id is not None:
                self._pod_devices_by_namespace.setdefault(device.namespace_id, []).append(device)
        self._filters_by_hook: dict[tuple[int, Hook], list[Filter]] = {}
        for filter_ in sorted(tc_state.filters, key=lambda f: f.priority):
            self._filters_by_hook.setdefault((filter_.device_index, filter_.hook), []).append(filter_)

    def pod_device(self, sandbox: PodSandbox) -> Device | None:
        """The host's end of a pod's eth0; None if eth0 is not an end of a veth or netkit pair.

        A pod with several networks has several devices. If the index of eth0, or that of a device's peer, is unknown, the oldest
        counts, because a meta plugin sets up the cluster's network first.
        """
        if sandbox.namespace_id is None:
            return None
        devices = self._pod_devices_by_namespace.get(sandbox.namespace_id, ())
        if sandbox.pod_interface_index is not None and all(device.peer_index is not None for device in devices):
            return next((device for device in devices if device.peer_index == sandbox.pod_interface_index), None)
        return min(devices, key=lambda device: (device.peer_index or 0, device.index), default=None)

    def root_tbf_params(self, device_index: int) -> TbfParams | None:
        """Parameters of the token bucket at a device's root; None if there is no token bucket."""
        root = self.root_by_device.get(device_index)
        return root.params if root is not None else None

    def is_our_root(self, device_index: int) -> bool:
        """Whether we set the token bucket at a device's root."""
        root = self.root_by_device.get(device_index)
        return root is not None and root.handle == OUR_HANDLE

    def redirect_filter(self, device_index: int) -> Filter | None:
        """The first filter that redirects all packets of a pod; None if there is none."""
        return next((f for f in self.filters_at(device_index) if f.matches_all and f.target_index is not None), None)

    def redirect_device(self, device_index: int) -> Device | None:
        """The device that `redirect_filter` redirects to; None if there is no redirect or the device is gone."""
        redirect = self.redirect_filter(device_index)
        target_index = redirect.target_index if redirect is not None else None
        return self.device_by_index.get(target_index) if target_index is not None else None

    def filters_at(self, device_index: int, hook: Hook = "ingress") -> list[Filter]:
        """Filters at a device's hook, in the order in which they run."""
        return self._filters_by_hook.get((device_index, hook), [])

    def describe_foreign_filters(self, device: Device, hook: Hook) -> str:
        """Describe filters, neither ours nor the CNI bandwidth plugin's, in words that help to find them with ``tc``; empty without any."""
        parts = [
            f"a {f.kind} filter{f' {f.program_name}' if f.program_name else ''} with preference {f.priority}"
            for f in self.filters_at(device.index, hook)
            if not self._redirects_to_limit(f)
        ]
        return f"{' and '.join(parts)} at {hook} of {device.name}" if parts else ""

    def _redirects_to_limit(self, filter_: Filter) -> bool:
        """Whether a filter redirects to the ifb of a limit, or did before that ifb was deleted."""
        if filter_.kind not in {"u32", "matchall"} or filter_.target_index is None:
            return False
        target = self.device_by_index.get(filter_.target_index)
        return is_limit_ifb(target) if target is not None else filter_.matches_all


def is_limit_ifb(device: Device) -> bool:
    """Whether a device is an ifb of the CNI bandwidth plugin or of ours."""
    return device.kind == "ifb" and (device.name.startswith(IFB_PREFIX) or is_our_ifb(device))


def is_our_ifb(device: Device) -> bool:
    """Whether a device is an ifb that we created."""
    return device.kind == "ifb" and device.alias.startswith(ALIAS_PREFIX)
