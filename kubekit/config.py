"""Where the API server is and who we are: the in-cluster files, or kubeconfigs as kubectl finds them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kubekit import tls
from kubekit.credentials import PluginCredentials, TokenFile
from kubekit.errors import ConfigError
from kubekit.proxies import proxy_from_environment

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class ClusterConfig:
    """How to reach one API server.

    Attributes:
        server: ``https://host:port``, without a trailing slash.
        token: returns the bearer token, or ``None`` when something else authenticates.
        tls: context for the connection, or ``None`` for plain http.
        namespace: the default namespace of this identity.
        context: name of the kubeconfig context, empty in a cluster.
        plugin: logs in by a command; its token and certificate win over ``token`` and ``tls``.
        proxy: URL of an HTTP proxy, empty for none.
        server_name: the name that the server's certificate must carry, if that is not the server's host.
        headers: sent along with every request: whom we act as.
    """

    server: str
    token: Callable[[], str] | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    namespace: str = "default"
    context: str = ""
    plugin: PluginCredentials | None = field(default=None, repr=False)
    proxy: str = ""
    server_name: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def load_cluster(
    kubeconfig: str | None = None, *, context: str | None = None, environ: Mapping[str, str] = os.environ
) -> ClusterConfig:
    """Find the cluster: the given kubeconfig, else ``$KUBECONFIG``, else in-cluster files, else ``~/.kube/config``.

    Where the kubeconfig names no proxy, ``HTTPS_PROXY`` and ``NO_PROXY`` are followed as Go's programs follow them, in pods too.

    Raises:
        ConfigError: nothing was found, or what was found cannot be used; names the file and field.
    """
    found = _find(kubeconfig, context, environ)
    return found if found.proxy else replace(found, proxy=proxy_from_environment(found.server, environ))


def _find(kubeconfig: str | None, context: str | None, environ: Mapping[str, str]) -> ClusterConfig:
    if kubeconfig:
        return _read([Path(kubeconfig)], context)
    if environ.get("KUBECONFIG"):
        found = [Path(p) for p in environ["KUBECONFIG"].split(os.pathsep) if p and Path(p).exists()]
        if not found:
            raise ConfigError("KUBECONFIG", f"no such file: {environ['KUBECONFIG']}", "check the variable")
        return _read(found, context)
    if environ.get("KUBERNETES_SERVICE_HOST") and SERVICE_ACCOUNT_DIR.exists():
        return _in_cluster(environ)
    home = Path(environ.get("HOME", "/nonexistent")) / ".kube" / "config"
    if home.exists():
        return _read([home], context)
    raise ConfigError("--kubeconfig", "no cluster found", "give --kubeconfig FILE, set KUBECONFIG, or run in a pod")


def _read(paths: list[Path], context: str | None) -> ClusterConfig:
    # Pods read no kubeconfig: what reads them is imported where there is one.
    from kubekit.kubeconfig import read_kubeconfigs

    return read_kubeconfigs(paths, context)


def _in_cluster(environ: Mapping[str, str]) -> ClusterConfig:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace_file, authority = SERVICE_ACCOUNT_DIR / "namespace", SERVICE_ACCOUNT_DIR / "ca.crt"
    try:
        context = tls.trust(authority.read_bytes())
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(str(authority), f"cannot be used: {error}") from error
    return ClusterConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        token=TokenFile(SERVICE_ACCOUNT_DIR / "token"),
        tls=context,
        namespace=namespace_file.read_text().strip() if namespace_file.exists() else "default",
    )
