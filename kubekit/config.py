"""Reads the API server's address and the program's credentials from a directory, such as a pod's mounted ServiceAccount."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kubekit import tls
from kubekit.credentials import CredentialProvider, TokenFile
from kubekit.errors import ConfigError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class ClusterConfig:
    """Address and credentials of an API server.

    Attributes:
        server: ``https://host:port`` or ``http://host:port``, without a trailing slash.
        token: returns the bearer token; None without token authentication.
        ssl_context: TLS settings of connections; None for plain HTTP.
        namespace: the namespace to use by default.
        kubeconfig_context: name of the kubeconfig context, empty in a cluster.
        credential_provider: provides credentials, which have precedence over ``token`` and ``ssl_context``.
        proxy_url: URL of an HTTP proxy, empty for none.
        tls_server_name: the name in the server's certificate, if that is not the host of ``server``; else empty.
    """

    server: str
    token: Callable[[], str] | None = field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    namespace: str = "default"
    kubeconfig_context: str = ""
    credential_provider: CredentialProvider | None = field(default=None, repr=False)
    proxy_url: str = ""
    tls_server_name: str = ""


def load_cluster_config(
    directory: str | Path | None = None, *, environ: Mapping[str, str] = os.environ
) -> ClusterConfig:
    """Read ``ca.crt``, ``token`` and ``namespace`` of a directory, by default that of the pod's ServiceAccount.

    The file ``server`` has the API server's URL; without this file, ``KUBERNETES_SERVICE_HOST`` and
    ``KUBERNETES_SERVICE_PORT`` name the server. The pair ``tls.crt`` and ``tls.key`` is the client certificate.

    Raises:
        ConfigError: the directory or a file is missing or cannot be used; the message names it (``tls.crt`` also for a fault of ``tls.key``).
    """
    directory = Path(directory) if directory else SERVICE_ACCOUNT_DIR
    if not directory.is_dir():
        raise ConfigError(
            "--credentials", f"{directory} is not a directory", "set it to a directory with server, ca.crt and token"
        )
    server = _read_server_url(directory, environ)
    token_file = directory / "token"
    return ClusterConfig(
        server=server,
        token=TokenFile(token_file) if token_file.exists() else None,
        ssl_context=_load_ssl_context(directory) if server.startswith("https") else None,
        namespace=_read_text(directory / "namespace") or "default",
    )


def _load_ssl_context(directory: Path) -> ssl.SSLContext:
    file = directory / "ca.crt"
    try:
        context = tls.create_client_context(file.read_bytes())
        file = directory / "tls.crt"
        if file.exists():
            # Without `password`, OpenSSL would prompt for the passphrase of an encrypted key.
            context.load_cert_chain(file, directory / "tls.key", password=lambda: "")
    except OSError as error:  # ssl.SSLError is a subclass
        raise ConfigError(str(file), f"cannot be used: {error}") from error
    return context


def _read_server_url(directory: Path, environ: Mapping[str, str]) -> str:
    if url := _read_text(directory / "server"):
        if not url.startswith(("https://", "http://")):
            raise ConfigError(str(directory / "server"), f"{url!r} is not a URL", "write https://HOST:PORT")
        return url.rstrip("/")
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError(str(directory / "server"), "is missing", "write https://HOST:PORT into it")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from error
