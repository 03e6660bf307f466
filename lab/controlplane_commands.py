"""Builds the command lines of etcd, kube-apiserver and kube-controller-manager."""

from __future__ import annotations

from pathlib import Path

from lab.certificates import CertificateAuthority, KeyPair

LOOPBACK = "127.0.0.1"
_DOCUMENTATION_ADDRESS = "192.0.2.1"  # RFC 5737
_FRONT_PROXY = "front-proxy-client"


def build_etcd_command(
    binary: Path, data_dir: Path, serving: KeyPair, ca_file: Path, *, client_port: int, peer_port: int
) -> list[str | Path]:
    """The command of etcd, listening on the loopback address.

    Etcd requires client certificates of the authority in ``ca_file``, because any user of the machine can connect to a loopback port.
    """
    client_url, peer_url = (f"https://{LOOPBACK}:{port}" for port in (client_port, peer_port))
    tls_flags = [
        flag
        for prefix in ("", "peer-")
        for flag in (
            f"--{prefix}cert-file={serving.certificate}",
            f"--{prefix}key-file={serving.key}",
            f"--{prefix}trusted-ca-file={ca_file}",
            f"--{prefix}client-cert-auth=true",
        )
    ]
    return [
        binary,
        "--name=lab",
        f"--data-dir={data_dir}",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=lab={peer_url}",
        # The data does not outlive the lab, so do not wait for disks.
        "--unsafe-no-fsync",
        "--log-level=warn",
        *tls_flags,
    ]


def build_api_server_command(
    binary: Path, authority: CertificateAuthority, serving: KeyPair, *, address: str, port: int, etcd: str, tokens: Path
) -> list[str | Path]:
    """The command of kube-apiserver, which listens at an address and port; ``tokens`` is the file of static tokens.

    ``authority`` signs the server's client certificates for kubelets and extension servers. Its folder has the keys of etcd and of
    service accounts.
    """
    pki, ca_file = authority.folder, authority.certificate
    to_kubelets = authority.issue("kubelet-client", "kube-apiserver", organization="system:masters")
    to_extensions = authority.issue("front-proxy", _FRONT_PROXY)
    return [
        binary,
        f"--etcd-servers={etcd}",
        f"--etcd-cafile={ca_file}",
        f"--etcd-certfile={pki / 'etcd.crt'}",
        f"--etcd-keyfile={pki / 'etcd.key'}",
        f"--bind-address={address}",
        f"--secure-port={port}",
        # The server refuses a loopback address as endpoint of the Service "kubernetes"; no node uses the endpoint in this case.
        f"--advertise-address={_DOCUMENTATION_ADDRESS if address == LOOPBACK else address}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={ca_file}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-cluster-ip-range=10.96.0.0/16",
        f"--kubelet-certificate-authority={ca_file}",
        f"--kubelet-client-certificate={to_kubelets.certificate}",
        f"--kubelet-client-key={to_kubelets.key}",
        "--kubelet-preferred-address-types=InternalIP",
        # Reach extension API servers (metrics-server) at their pods, because the host has no kube-proxy.
        "--enable-aggregator-routing=true",
        f"--requestheader-client-ca-file={ca_file}",
        f"--requestheader-allowed-names={_FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={to_extensions.certificate}",
        f"--proxy-client-key-file={to_extensions.key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'sa.key'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def build_controller_manager_command(
    binary: Path, kubeconfig: Path, authority: CertificateAuthority
) -> list[str | Path]:
    """The command of kube-controller-manager, which signs service accounts' tokens with a key in the authority's folder."""
    return [
        binary,
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--root-ca-file={authority.certificate}",
        f"--service-account-private-key-file={authority.folder / 'sa.key'}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--secure-port=0",
        # Add and remove the not-ready taint within seconds.
        "--node-monitor-period=1s",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]
