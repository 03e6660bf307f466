"""Finds limits that neither we nor the CNI bandwidth plugin set on a pod. Repairs never change such limits."""

from __future__ import annotations

from agent.bandwidth.annotations import Direction
from agent.bandwidth.cni import Attachment
from agent.bandwidth.state import PLUGIN_HANDLE, Device, LimitAssessment
from agent.bandwidth.tc_index import TcIndex, is_limit_ifb

_NON_LIMITING = frozenset({"noqueue", "pfifo", "pfifo_fast", "bfifo", "fq", "fq_codel", "codel", "sfq", "mq"})
"""Qdiscs that do not limit the rate; any other that is neither ours nor the CNI plugin's is another program's limit."""
_CILIUM_NAME_PREFIXES = ("lxc", "eni", "azv", "gke")
"""Prefixes of pods' devices: of Cilium alone, and of the AWS, Azure and Google CNI plugins that Cilium is chained to."""
_BANDWIDTH_PLUGIN = "bandwidth"
"""Type of the CNI plugin that sets limits."""


def find_foreign_limit(
    direction: Direction, device: Device, attachment: Attachment | None, tc: TcIndex
) -> LimitAssessment | None:
    """Return the verdict ``other-enforcer`` if another program limits this direction of a pod's device, else None."""
    if direction == "ingress":
        return _assess_root_qdisc(device, attachment, tc)
    target = tc.redirect_device(device.index)
    if target is None:
        return None
    if not is_limit_ifb(target):
        detail = f"another program's filter at ingress of {device.name} redirects to {target.name}"
        return LimitAssessment("other-enforcer", detail, target, tc.root_tbf_params(target.index))
    # Version 1.5 of the plugin sets HTB, which is not read, so it counts as another program's limit.
    return _assess_root_qdisc(target, attachment, tc) if tc.root_tbf_params(target.index) is None else None


def _assess_root_qdisc(device: Device, attachment: Attachment | None, tc: TcIndex) -> LimitAssessment | None:
    """Return ``other-enforcer`` if another program set a limiting qdisc at the root of a device or below, else None."""
    root = tc.root_by_device.get(device.index)
    if root is None or tc.is_our_root(device.index):
        return None
    if root.params is not None:  # a tbf
        plugins = attachment.plugins if attachment is not None and attachment.plugins else tc.network.plugins
        if root.handle == PLUGIN_HANDLE and (_BANDWIDTH_PLUGIN in plugins or not plugins):
            return None
        qdiscs = f"{root.kind} {root.handle >> 16:x}: on {device.name}, not the CNI plugin"
    elif root.kind not in _NON_LIMITING:
        qdiscs = f"{root.kind} on {device.name}"
    elif limiting_kinds := sorted(tc.kinds_below_root.get(device.index, set()) - _NON_LIMITING):
        qdiscs = f"{', '.join(limiting_kinds)} below the root of {device.name}"
    else:
        return None
    return LimitAssessment("other-enforcer", f"another program set {qdiscs}", device, root.params)


def describe_cilium(device: Device, tc: TcIndex) -> str:
    """Name Cilium and the device if Cilium set up this device of a pod; empty otherwise.

    Cilium's programs limit packets, or bypass a limit, and rtnetlink does not list them (pkg/datapath/linux/bandwidth).
    """
    has_cilium_name = device.name.startswith(_CILIUM_NAME_PREFIXES) or device.kind == "netkit"
    return f"Cilium on {device.name}" if has_cilium_name and "cilium_host" in tc.device_by_name else ""
