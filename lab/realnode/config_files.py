"""Builds the configuration files of a real node, as text. Paths in them are those inside the node."""

from __future__ import annotations

import json
from typing import Any

import yaml

_PKI = "/etc/kubernetes/pki"
_CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "registry.k8s.io/pause:3.10.1"


def build_containerd_config(*, snapshotter: str) -> str:
    """Return the configuration of containerd, with the usual paths of CNI and registries."""
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{_CONTAINERD_SOCKET}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"
  discard_unpacked_layers = true
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  # Some machines do not allow a container to lower this value.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "/opt/debian/usr/sbin/runc"
"""


def build_registry_hosts(url: str) -> str:
    """Return the hosts.toml that redirects pulls from all registries to the lab's registry."""
    return f'server = "{url}"\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'


def build_cni_config(pod_range: str) -> str:
    """Return the CNI configuration for pods with addresses of a CIDR range, with host ports and bandwidth limits, and without NAT."""
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pod_range}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    plugins = [
        bridge,
        {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "lab", "plugins": plugins}, indent=1)


def build_kubelet_config(*, dns: str, max_pods: int, reserved: dict[str, str]) -> str:
    """Return the kubelet's configuration; ``reserved`` amounts of resources are not allocatable."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": f"unix://{_CONTAINERD_SOCKET}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{_PKI}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{_PKI}/kubelet-serving.crt",
            "tlsPrivateKeyFile": f"{_PKI}/kubelet-serving.key",
            "clusterDNS": [dns],
            "clusterDomain": "cluster.local",
            "resolvConf": "/etc/resolv.conf",
            "maxPods": max_pods,
            "systemReserved": reserved,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "serializeImagePulls": False,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "shutdownGracePeriod": "0s",
            # Report changes within seconds, and neither evict pods nor delete images if the machine's disk is full.
            "nodeStatusUpdateFrequency": "5s",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        }
    )


def build_proxy_config(*, node: str, cluster_pod_range: str) -> str:
    """Return kube-proxy's configuration. Traffic to Services is masqueraded unless it is from the cluster's pods."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": node,
            "clusterCIDR": cluster_pod_range,
            "clientConnection": {"kubeconfig": "/etc/kubernetes/kube-proxy.kubeconfig"},
            # 0 leaves the machine's limits of connection tracking as they are.
            "conntrack": {"maxPerCore": 0, "min": 0},
            "oomScoreAdj": 0,
            "nftables": {"syncPeriod": "30s", "minSyncPeriod": "200ms"},
        }
    )
