"""The kernel's state, indexed, and whose work each part of it is."""

from __future__ import annotations

from collections.abc import Iterable

from agent.bandwidth.state import (
    ALIAS_PREFIX,
    HOOK_MARK,
    HOOKS_HANDLE,
    OUR_HANDLE,
    ROOT,
    BandwidthSnapshot,
    BpfAttachment,
    Device,
    Filter,
    Hook,
)
from agent.bandwidth.tbf import TbfParams

PLUGIN_PREFIX = "bwp"
"""Of the CNI bandwidth plugin's intermediate devices, and of ours."""
_UPLINKS = frozenset({"", "bond", "team", "vlan"})


def pod_ends(devices: Iterable[Device]) -> dict[int, list[Device]]:
    """Devices that lead to pods, by the number of the network namespace at their other end."""
    found: dict[int, list[Device]] = {}
    for device in devices:
        if device.kind in {"veth", "netkit"} and device.namespace_id is not None:
            found.setdefault(device.namespace_id, []).append(device)
    return found


class View:
    """A snapshot, indexed."""

    def __init__(self, snapshot: BandwidthSnapshot) -> None:
        kernel = snapshot.kernel
        self.network = snapshot.network
        self.devices = {device.index: device for device in kernel.devices}
        self.by_name = {device.name: device for device in kernel.devices}
        self.ends = pod_ends(kernel.devices)
        self.roots = {qdisc.device: qdisc for qdisc in kernel.qdiscs if qdisc.parent == ROOT}
        self._below: dict[int, list[str]] = {}
        for qdisc in kernel.qdiscs:
            if qdisc.parent != ROOT and qdisc.handle != HOOKS_HANDLE:
                self._below.setdefault(qdisc.device, []).append(qdisc.kind)
        self.shared_blocks = {q.device: q.shared_block for q in kernel.qdiscs if q.shared_block}
        self._filters: dict[tuple[int, Hook], list[Filter]] = {}
        for one in sorted(kernel.filters, key=lambda f: f.priority):
            self._filters.setdefault((one.device, one.hook), []).append(one)
        self._programs: dict[tuple[int, Hook], list[BpfAttachment]] = {}
        for program in kernel.programs:
            self._programs.setdefault((program.device, program.hook), []).append(program)
        self.programs_unknown = kernel.programs_unknown
        self.cilium = snapshot.cilium
        self.has_cilium = self.cilium.installed or "cilium_host" in self.by_name
        self.paced_uplinks = any(
            qdisc.kind == "fq" and self.devices[qdisc.device].kind in _UPLINKS
            for qdisc in kernel.qdiscs
            if qdisc.device in self.devices
        )
        self.hooked = {qdisc.device for qdisc in kernel.qdiscs if qdisc.handle == HOOKS_HANDLE}

    def params_at(self, device: int) -> TbfParams | None:
        """Of the token bucket, or of the plugin's HTB class, at a device's root."""
        root = self.roots.get(device)
        return root.params if root is not None else None

    def is_our_root(self, device: int) -> bool:
        """Whether we set the token bucket at a device's root."""
        root = self.roots.get(device)
        return root is not None and root.handle == OUR_HANDLE

    def below_root(self, device: int) -> list[str]:
        """Kinds of the queueing disciplines below a device's root."""
        return self._below.get(device, [])

    def redirect_of(self, device: int) -> Filter | None:
        """The filter by which everything from a pod goes elsewhere."""
        return next((f for f in self.filters(device) if f.matches_all and f.redirects_to is not None), None)

    def redirect_target(self, device: int) -> Device | None:
        """The device that everything from a pod goes to, by `redirect_of`; None without one, or when it is gone."""
        redirect = self.redirect_of(device)
        return self.devices.get(redirect.redirects_to or 0) if redirect is not None else None

    def filters(self, device: int, hook: Hook = "ingress") -> list[Filter]:
        """Those at a device's hook, in the order in which they see packets."""
        return self._filters.get((device, hook), [])

    def used(self) -> set[int | None]:
        """Indexes of the devices that something is redirected to."""
        return {f.redirects_to for filters in self._filters.values() for f in filters}

    def foreign_attachments(self, device: Device, hook: Hook) -> list[Filter | BpfAttachment]:
        """Filters and programs on a device that are neither the plugin's nor ours."""
        filters = [f for f in self.filters(device.index, hook) if not self._leads_to_limit(f)]
        return [*self._programs.get((device.index, hook), ()), *filters]

    def _leads_to_limit(self, one: Filter) -> bool:
        """Whether a filter leads to a limit of the plugin's structure, or did before the intermediate device was deleted."""
        if one.kind not in {"u32", "matchall"} or one.redirects_to is None:
            return False
        target = self.devices.get(one.redirects_to)
        return is_limit_device(target) if target is not None else one.matches_all

    def filters_passed_over(self, device: Device) -> list[Filter | BpfAttachment]:
        """Filters of others that no longer see what a pod sends, because a filter of ours takes it before them."""
        ours, through = self.redirect_of(device.index), self.redirect_target(device.index)
        if ours is None or through is None or not is_ours(through):
            return []
        others = self.foreign_attachments(device, "ingress")
        return [one for one in others if isinstance(one, Filter) and one.priority > ours.priority]


def is_limit_device(device: Device) -> bool:
    """Whether a device is an intermediate one of the plugin's or of ours."""
    return device.kind == "ifb" and (device.name.startswith(PLUGIN_PREFIX) or is_ours(device))


def is_ours(device: Device) -> bool:
    """Whether we made an intermediate device."""
    return device.kind == "ifb" and device.alias.startswith(ALIAS_PREFIX)


def owner_of(device: Device) -> str:
    """Uid of the pod that we made an intermediate device for."""
    return device.alias.removeprefix(ALIAS_PREFIX).removesuffix(HOOK_MARK)


def describe(device: Device, foreign_attachments: list[Filter | BpfAttachment]) -> str:
    """What is attached to a device, for a person who looks for it with ``tc`` and ``bpftool``."""
    parts = []
    for one in foreign_attachments:
        if isinstance(one, BpfAttachment):
            parts.append(f"{one.kind} program{'s' * (len(one.ids) > 1)} {', '.join(str(id_) for id_ in one.ids)}")
        else:
            name = f" {one.name}" if one.name else ""
            parts.append(f"a {one.kind} filter{name} with preference {one.priority}")
    hook = foreign_attachments[0].hook
    return f"{' and '.join(parts)} on what {device.name} {'receives' if hook == 'ingress' else 'sends'}"
