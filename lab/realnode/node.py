"""Starts a real node: writes its files, creates its namespaces, and runs containerd, kubelet and kube-proxy in them."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from kubekit import quantity
from lab import namespaces
from lab.certificates import KeyPair
from lab.controlplane import SERVICE_DNS, ControlPlane
from lab.credentials import save_kubeconfig
from lab.network import MAX_PODS_PER_NODE, NodeNetwork
from lab.nodes import build_topology_labels
from lab.programs import Program, Programs
from lab.realnode import cgroups, config_files
from lab.realnode.programs import NodeBinaries

_ROOT_SCRIPT = Path(__file__).with_name("root.sh")
_NEW_NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--cgroup")
_UNSHARE = ["unshare", *_NEW_NAMESPACES, "--fork", "--kill-child=KILL", "--propagation=private", "--"]
_ENTER_PATH = "/opt/node:/opt/containerd:/opt/debian/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
# A kubelet exits if containerd does not answer yet.
_WAIT_FOR_CONTAINERD_AND_EXEC = ("sh", "-c", 'until ctr version >/dev/null 2>&1; do sleep 0.2; done; exec "$@"', "sh")
_START_TIMEOUT_S = 60.0
# Files of the host's /etc that programs on the node read.
_ETC_FILES = [
    "passwd",
    "group",
    "nsswitch.conf",
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "os-release",
    "protocols",
    "services",
]


@dataclass
class RealNode:
    """A node with a real kubelet.

    Attributes:
        folder: folder of its files, with the node's ``var``, ``etc`` and ``opt``.
        lab: name of the lab, for the node's label.
        control_plane: control plane at which it registers.
        programs: running programs of the lab, to which its own are added.
        snapshotter: snapshotter of containerd.
        is_in_memory: whether ``/var``, with images and containers, is in memory and not on disk.
        cluster_pod_range: pod addresses of the whole cluster, in CIDR notation.
        running_programs: ``root``, ``containerd``, ``kubelet`` or ``kube-proxy`` -> program.
        pid: id of its first process; ``nsenter --target PID --all`` opens a shell on the node.
    """

    network: NodeNetwork
    folder: Path
    lab: str
    control_plane: ControlPlane
    programs: Programs
    binaries: NodeBinaries
    snapshotter: str
    is_in_memory: bool
    registry_url: str
    cluster_pod_range: str
    running_programs: dict[str, Program] = field(default_factory=dict)
    pid: int = 0

    @property
    def name(self) -> str:
        """Name of the Node object."""
        return self.network.node.name

    @property
    def cgroup(self) -> str:
        return self.network.netns

    def build_enter_command(self, *command: str | Path) -> list[str]:
        """Return the command that runs a command in all namespaces of the node."""
        prefix = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--uts", "--ipc"]
        prefix = [*cgroups.build_join_command(self.cgroup, "init"), *prefix, "--cgroup", "--root", "--"]
        # The kernel kills the command when the process that entered the node ends.
        return [*prefix, "/usr/bin/env", "--chdir=/", "setpriv", "--pdeathsig=KILL", "--", *map(str, command)]

    async def start(self) -> None:
        """Start containerd and the kubelet, which registers the node. Raises BootError if a program does not start."""
        await asyncio.to_thread(self._write_files)
        await self._start_root()
        await self._start_containerd()
        self._start_kubelet()

    def _start_kubelet(self) -> None:
        network = self.network
        labels = {**build_topology_labels(network.node, self.lab), "netaware.io/kubelet": "real"}
        self._start_inside(
            "kubelet",
            *_WAIT_FOR_CONTAINERD_AND_EXEC,
            "/opt/node/kubelet",
            "--config=/etc/kubernetes/kubelet.yaml",
            "--kubeconfig=/etc/kubernetes/kubelet.kubeconfig",
            f"--hostname-override={self.name}",
            f"--node-ip={network.address}",
            f"--node-labels={','.join(f'{k}={v}' for k, v in labels.items())}",
            "--root-dir=/var/lib/kubelet",
            "--cert-dir=/var/lib/kubelet/pki",
        )

    def start_proxy(self) -> None:
        """Start kube-proxy, which needs the registered node."""
        libraries = ":".join(f"/opt/debian{p}" for p in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"))
        self._start_inside(
            "kube-proxy",
            "/usr/bin/env",
            f"LD_LIBRARY_PATH={libraries}",
            "/opt/node/kube-proxy",
            "--config=/etc/kubernetes/proxy.yaml",
        )

    def _start_inside(self, name: str, *command: str) -> None:
        argv = self.build_enter_command("/usr/bin/env", f"PATH={_ENTER_PATH}", *command)
        self.running_programs[name] = self.programs.start(f"{name}-{self.name}", argv, stop_timeout_s=0.0)

    async def _start_root(self) -> None:
        binaries = self.binaries
        folders = (self.folder, binaries.node, binaries.containerd, binaries.cni, binaries.debian.root)
        command = [
            *cgroups.build_join_command(self.cgroup),
            *namespaces.build_enter_command(self.network.netns),
            "--",
            *_UNSHARE,
        ]
        command += ["sh", str(_ROOT_SCRIPT), self.name, *map(str, folders), "tmpfs" if self.is_in_memory else "disk"]
        root = self.programs.start(f"node-{self.name}", command, stop_timeout_s=0.0)
        self.running_programs["root"] = root
        parent = psutil.Process(root.pid)
        await self._wait_until(lambda: bool(parent.children()), "its first process")
        self.pid = parent.children()[0].pid
        await self._wait_until(Path(f"/proc/{self.pid}/root/var/.ready").exists, "its root directory")

    async def _start_containerd(self) -> None:
        self._start_inside("containerd", "/opt/containerd/containerd", "--config=/etc/containerd/config.toml")
        socket = Path(f"/proc/{self.pid}/root/run/containerd/containerd.sock")
        await self._wait_until(socket.exists, "containerd's socket")

    async def _wait_until(self, check: Callable[[], bool], description: str) -> None:
        await self.programs.wait_until(check, f"{description}, of node {self.name}", _START_TIMEOUT_S)

    def _write_files(self) -> None:
        etc = self.folder / "etc"
        for folder in ("kubernetes/pki", "cni/net.d", "containerd/certs.d/_default", "ssl"):
            (etc / folder).mkdir(parents=True)
        for name in _ETC_FILES:
            if (source := Path("/etc") / name).exists():
                shutil.copy(source, etc / name)
        if Path("/etc/ssl/certs").is_dir():
            shutil.copytree("/etc/ssl/certs", etc / "ssl" / "certs", symlinks=False, ignore_dangling_symlinks=True)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{self.network.address} {self.name}\n")
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "resolv.conf").write_text("")
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        (etc / "containerd/config.toml").write_text(config_files.build_containerd_config(snapshotter=self.snapshotter))
        (etc / "containerd/certs.d/_default/hosts.toml").write_text(
            config_files.build_registry_hosts(self.registry_url)
        )
        (etc / "cni/net.d/10-lab.conflist").write_text(config_files.build_cni_config(self.network.pod_range))
        node = self.network.node
        kubelet_config = config_files.build_kubelet_config(
            dns=SERVICE_DNS,
            max_pods=min(quantity.parse_int(node.pods), MAX_PODS_PER_NODE),
            reserved=compute_system_reserved(node.cpu, node.memory),
        )
        (etc / "kubernetes/kubelet.yaml").write_text(kubelet_config)
        (etc / "kubernetes/proxy.yaml").write_text(
            config_files.build_proxy_config(node=self.name, cluster_pod_range=self.cluster_pod_range)
        )
        self._write_credentials(etc / "kubernetes")

    def _write_credentials(self, folder: Path) -> None:
        authority = self.control_plane.authority
        client = authority.issue(f"node-{self.name}", f"system:node:{self.name}", organization="system:nodes")
        hosts = (self.name, self.network.address, self.network.management_address, "127.0.0.1")
        serving = authority.issue(f"node-serving-{self.name}", f"system:node:{self.name}", hosts=hosts)
        shutil.copy(authority.certificate, folder / "pki" / "ca.crt")
        shutil.copy(serving.certificate, folder / "pki" / "kubelet-serving.crt")
        shutil.copy(serving.key, folder / "pki" / "kubelet-serving.key")
        self._write_kubeconfig(folder / "kubelet.kubeconfig", client)
        proxy = authority.issue(f"proxy-{self.name}", "system:kube-proxy")
        self._write_kubeconfig(folder / "kube-proxy.kubeconfig", proxy)

    def _write_kubeconfig(self, path: Path, pair: KeyPair) -> None:
        """Write a kubeconfig with embedded credentials, because the node does not see the lab's files."""
        cluster = {
            "server": self.control_plane.server,
            "certificate-authority-data": _encode_base64(self.control_plane.authority.certificate),
        }
        user = {
            "client-certificate-data": _encode_base64(pair.certificate),
            "client-key-data": _encode_base64(pair.key),
        }
        save_kubeconfig(path, cluster, "node", user)


def compute_system_reserved(cpu: str, memory: str) -> dict[str, str]:
    """Return resource -> amount of the machine beyond the node's size, so that allocatable is the topology's amount."""
    cpus = os.cpu_count() or 1
    spare_millicores = int(cpus * 1000 - quantity.parse(cpu) * 1000)
    spare_bytes = int(psutil.virtual_memory().total - quantity.parse(memory))
    spare = {"cpu": (spare_millicores, f"{spare_millicores}m"), "memory": (spare_bytes, str(spare_bytes))}
    return {name: text for name, (amount, text) in spare.items() if amount > 0}


def _encode_base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
