"""Checks that this machine can run real nodes, before anything is started; one error names all that is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lab.errors import InsufficientCapacityError, UnsupportedError
from lab.network import missing_privileges
from lab.realnode import cgroups

_TOOLS = ("mount", "nsenter", "pivot_root", "setpriv", "unshare")
_TIMEOUT_S = 20.0
_INOTIFY_PER_NODE = 10
# A table as kube-proxy makes them: maps of verdicts, translation of addresses, and what is not ours masqueraded.
_NFT_RULES = """
table ip netaware-lab-probe {
  map services { type ipv4_addr . inet_proto . inet_service : verdict; }
  chain nat { type nat hook output priority -100; ip daddr . meta l4proto . th dport vmap @services; }
  chain post { type nat hook postrouting priority 100; ct mark 1 masquerade fully-random; }
}
"""
_IN_NAMESPACE = ("unshare", "--net", "--mount", "--")


def require(environment: Mapping[str, str], nft: Path, state_dir: Path, *, nodes: int) -> str:
    """Check the machine; return the snapshotter that containerd can use with ``state_dir``.

    Args:
        environment: variables by which ``nft`` finds its libraries.
        nft: the program.
        state_dir: an existing folder on the file system that is to hold containers.
        nodes: how many real nodes there are to be.

    Raises:
        UnsupportedError: names everything that is missing.
        InsufficientCapacityError: nothing is, but other programs of this user hold too much of it.
    """
    missing = missing_privileges()
    missing += [f"the command {tool} (util-linux)" for tool in _TOOLS if _which(tool) is None]
    if not missing:
        missing = _missing_cgroups() + _missing_kernel_parts(environment, nft)
    room = [] if missing else _missing_inotify(nodes)
    if missing or room:
        needed = f"real nodes need {'; '.join(missing + room)}. Nodes without a kubelet need none of this: --nodes kwok"
        raise UnsupportedError(needed) if missing else InsufficientCapacityError(needed)
    return "overlayfs" if _has_overlay(state_dir) else "native"


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))


def _missing_cgroups() -> list[str]:
    if _own_user_namespace():
        return ["to be root of the machine itself, not of a user namespace"]
    if not cgroups.ROOT.is_dir() or not cgroups.hierarchies():
        return [f"cgroups at {cgroups.ROOT}"]
    lacking = cgroups.missing_controllers()
    if lacking:
        return [f"the cgroup controllers {', '.join(lacking)}"]
    name = f"netaware-probe-{os.getpid()}"
    try:
        cgroups.create(name)
    except OSError as error:
        return [f"the right to make cgroups below {cgroups.ROOT} ({error.strerror})"]
    finally:
        cgroups.remove(name)
    return []


def _own_user_namespace() -> bool:
    """Whether this process's root is not the machine's: then its user ids are mapped."""
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def _missing_kernel_parts(environment: Mapping[str, str], nft: Path) -> list[str]:
    missing = []
    if said := _failure_of([*_IN_NAMESPACE, str(nft), "-f", "-"], environment, _NFT_RULES):
        missing.append(f"nftables with NAT in the kernel ({said})")
    if not Path("/proc/sys/net/bridge").is_dir():
        # Without it an answer from a pod of the same node passes by connection tracking.
        said = _failure_of(["modprobe", "br_netfilter"], {}, "")
        if said or not Path("/proc/sys/net/bridge").is_dir():
            missing.append("the kernel's br_netfilter")
    return missing


def _missing_inotify(nodes: int) -> list[str]:
    """Kubelets, containerd and kube-proxy watch files; the machine's limit is for all programs of a user together."""
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    used = sum(_is_inotify(fd) for fd in Path("/proc").glob("[0-9]*/fd/*"))
    wanted = used + nodes * _INOTIFY_PER_NODE
    if wanted <= limit:
        return []
    return [
        (
            f"fs.inotify.max_user_instances to be {wanted} or more ({used} of {limit} are in use, and a node takes up to"
            f" {_INOTIFY_PER_NODE}): sysctl -w fs.inotify.max_user_instances={max(1024, wanted)}"
        )
    ]


def _is_inotify(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()) == "anon_inode:inotify"
    except OSError:
        # It was closed, or its process ended, meanwhile.
        return False


def _has_overlay(folder: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name in ("lower", "upper", "work", "merged"):
            (Path(scratch) / name).mkdir()
        options = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
        return not _failure_of(
            [*_IN_NAMESPACE, "mount", "-t", "overlay", "-o", options, "overlay", f"{scratch}/merged"], {}, ""
        )


def _failure_of(argv: list[str], environment: Mapping[str, str], text: str) -> str:
    """The output of a failed command; empty if it succeeded."""
    try:
        done = subprocess.run(
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
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
