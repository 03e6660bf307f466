"""Checks whether this machine can run real nodes, and how containerd can store images there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lab.errors import InsufficientCapacityError, UnsupportedError
from lab.network import find_missing_privilege
from lab.realnode import cgroups

_TOOLS = ("mount", "nsenter", "pivot_root", "setpriv", "unshare")
_TIMEOUT_S = 20.0
_INOTIFY_PER_NODE, _USUAL_INOTIFY_LIMIT = 10, 1024
# Rules with the features that kube-proxy needs: verdict maps, NAT and masquerading.
_NFT_RULES = """
table ip netaware-lab-probe {
  map services { type ipv4_addr . inet_proto . inet_service : verdict; }
  chain nat { type nat hook output priority -100; ip daddr . meta l4proto . th dport vmap @services; }
  chain post { type nat hook postrouting priority 100; ct mark 1 masquerade fully-random; }
}
"""
_UNSHARE = ("unshare", "--net", "--mount", "--")


def check_machine(environment: Mapping[str, str], nft: Path, *, node_count: int) -> None:
    """Check that this machine can run ``node_count`` real nodes; ``nft`` finds its libraries by ``environment``.

    Raises:
        UnsupportedError: the machine lacks something; names all that it lacks.
        InsufficientCapacityError: other programs of this user have too many inotify instances.
    """
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    missing = [f"the command {tool} (util-linux)" for tool in _TOOLS if shutil.which(tool, path=path) is None]
    if privilege := find_missing_privilege():
        missing.insert(0, privilege)
    if not missing:
        missing = _find_missing_cgroups() + _find_missing_kernel_features(environment, nft)
    inotify_setting = [] if missing else _find_inotify_setting(node_count)
    if missing or inotify_setting:
        message = f"real nodes need {'; '.join(missing + inotify_setting)}. Nodes without a kubelet need none of this: --nodes kwok"
        raise UnsupportedError(message) if missing else InsufficientCapacityError(message)


def choose_snapshotter(folder: Path) -> str:
    """Return the snapshotter that containerd can use in this folder: ``overlayfs`` if possible, else ``native``."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name in ("lower", "upper", "work", "merged"):
            (Path(scratch) / name).mkdir()
        options = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
        mount = ["mount", "-t", "overlay", "-o", options, "overlay", f"{scratch}/merged"]
        return "native" if _try_command([*_UNSHARE, *mount], {}, "") else "overlayfs"


def _find_missing_cgroups() -> list[str]:
    if _is_in_user_namespace():
        return ["to be root of the machine itself, not of a user namespace"]
    if not cgroups.ROOT.is_dir() or not cgroups.list_hierarchies():
        return [f"cgroups at {cgroups.ROOT}"]
    if missing := cgroups.find_missing_controllers():
        return [f"the cgroup controllers {', '.join(missing)}"]
    name = f"netaware-probe-{os.getpid()}"
    try:
        cgroups.create(name)
    except OSError as error:
        return [f"the right to create cgroups below {cgroups.ROOT} ({error.strerror})"]
    finally:
        cgroups.remove(name)
    return []


def _is_in_user_namespace() -> bool:
    """Whether this process is in a user namespace, in which not all user ids are mapped to themselves."""
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]


def _find_missing_kernel_features(environment: Mapping[str, str], nft: Path) -> list[str]:
    missing = []
    if failure := _try_command([*_UNSHARE, str(nft), "-f", "-"], environment, _NFT_RULES):
        missing.append(f"nftables with NAT in the kernel ({failure})")
    if not Path("/proc/sys/net/bridge").is_dir():
        # Without br_netfilter, replies from a pod of the same node bypass connection tracking.
        failure = _try_command(["modprobe", "br_netfilter"], {}, "")
        if failure or not Path("/proc/sys/net/bridge").is_dir():
            missing.append("the kernel's br_netfilter")
    return missing


def _find_inotify_setting(node_count: int) -> list[str]:
    """Return the sysctl that gives nodes enough inotify instances, which all programs of a user share; empty if there are enough."""
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    used = sum(_is_inotify_instance(fd) for fd in Path("/proc").glob("[0-9]*/fd/*"))
    needed = used + node_count * _INOTIFY_PER_NODE
    if needed <= limit:
        return []
    usage = f"{used} of {limit} are in use, and a node takes up to {_INOTIFY_PER_NODE}"
    command = f"sysctl -w fs.inotify.max_user_instances={max(_USUAL_INOTIFY_LIMIT, needed)}"
    return [f"fs.inotify.max_user_instances to be {needed} or more ({usage}): {command}"]


def _is_inotify_instance(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()) == "anon_inode:inotify"
    except OSError:
        # The descriptor has been closed since.
        return False


def _try_command(argv: list[str], environment: Mapping[str, str], text: str) -> str:
    """Run a command with this input; return the first line of its stderr, or empty if it succeeded."""
    try:
        result = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            input=text,
            env={**os.environ, **environment},
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if result.returncode == 0:
        return ""
    return (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[0]
