"""Finds, builds or downloads the programs of a real node, which are kept in the user's cache.

Most are built from pinned Go modules. runc is the distribution's, because a static build has no libseccomp and refuses the default
seccomp profile. nft, which kube-proxy runs, is the distribution's too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.build import Module, UpstreamModule, build_kubernetes_link_flags, find_or_build_binaries
from lab.debian import UnpackedPackages, find_or_unpack_packages
from lab.errors import UnsupportedError

NODE = Module(
    name="node",
    folder=Path(__file__).parents[1] / "node",
    programs={
        "kubelet": "k8s.io/kubernetes/cmd/kubelet",
        "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
        "coredns": "./coredns",
        "pause": "./pause",
    },
    version_module="k8s.io/kubernetes",
    link_flags=build_kubernetes_link_flags,
)
APP = Module(
    name="app",
    folder=Path(__file__).parents[1] / "app",
    programs={"app": "."},
    version_module="github.com/prometheus/client_golang",
    link_flags=lambda _: "-s -w",
)
CONTAINERD = UpstreamModule(
    name="containerd",
    programs={
        "containerd": "./cmd/containerd",
        "containerd-shim-runc-v2": "./cmd/containerd-shim-runc-v2",
        "ctr": "./cmd/ctr",
    },
    path="github.com/containerd/containerd/v2",
    version="v2.4.2",
    checksum="h1:p6Qg+xbEz8lvwdhHDx0U469xENvp4LgGBx+E7djXkGw=",
    go_version=(1, 26, 6),
    tags="no_btrfs no_devmapper no_zfs",
)
METRICS_SERVER = UpstreamModule(
    name="metrics-server",
    programs={"metrics-server": "./cmd/metrics-server"},
    path="sigs.k8s.io/metrics-server",
    version="v0.9.0",
    checksum="h1:nlqqZ2H0Xfko8eJC/1qaNVVT17hu4rxndkOi22KTZ4w=",
    go_version=(1, 26, 4),
)
_CNI_PLUGINS = ("main/bridge", "main/loopback", "meta/bandwidth", "meta/portmap", "ipam/host-local")
CNI = UpstreamModule(
    name="cni-plugins",
    programs={plugin.split("/")[1]: f"./plugins/{plugin}" for plugin in _CNI_PLUGINS},
    path="github.com/containernetworking/plugins",
    version="v1.9.1",
    checksum="h1:8oU6WsIsU3bpnNZuvHp74a6cE1MJwbj2P7s4/yTUNlA=",
    go_version=(1, 24, 2),
)
_PACKAGES = ("runc", "nftables")


@dataclass(frozen=True)
class NodeBinaries:
    """Files of a real node's programs.

    Attributes:
        node: folder of kubelet, kube-proxy, coredns and pause.
        containerd: folder of containerd, its shim and ctr.
        cni: folder of the CNI plugins.
        metrics_server, app: files of metrics-server and of the application (``lab/app``).
        debian: the unpacked packages with runc and nft.
    """

    node: Path
    containerd: Path
    cni: Path
    metrics_server: Path
    app: Path
    debian: UnpackedPackages


def find_or_build_node_binaries() -> NodeBinaries:
    """Find, build or download all programs of a real node.

    Raises BuildError if a build fails, and UnsupportedError if the distribution's packages cannot be downloaded or lack runc or nft.
    """
    debian = find_or_unpack_packages("node", _PACKAGES)
    for name in ("runc", "nft"):
        if debian.find_program(name) is None:
            raise UnsupportedError(f"{name} is not in {', '.join(_PACKAGES)} of this distribution")
    node = find_or_build_binaries(NODE)
    containerd = find_or_build_binaries(CONTAINERD)
    metrics = find_or_build_binaries(METRICS_SERVER)
    app = find_or_build_binaries(APP)
    return NodeBinaries(
        node=node["kubelet"].parent,
        containerd=containerd["containerd"].parent,
        cni=find_or_build_binaries(CNI)["bridge"].parent,
        metrics_server=metrics["metrics-server"],
        app=app["app"],
        debian=debian,
    )
