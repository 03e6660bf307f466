"""Where the API server is and who we are: in-cluster files or a kubeconfig.

Tokens, client certificates and CA bundles are read here without the official client; only ``exec`` and ``auth-provider``
credentials (cloud log-ins) need it, and it is imported when one is met.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kubekit.errors import ConfigError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_MAX_AGE_S = 60.0


class TokenFile:
    """A bearer token on disk, read again at least every minute, since bound tokens rotate (hourly by default)."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._token, self._read_at = "", -TOKEN_MAX_AGE_S

    def __call__(self) -> str:
        """Return the token; a file that cannot be read now keeps the last token that could."""
        if self._clock() - self._read_at >= TOKEN_MAX_AGE_S or not self._token:
            try:
                self._token = self._path.read_text().strip()
            except OSError as error:
                if not self._token:
                    raise ConfigError(str(self._path), f"token cannot be read: {error.strerror}") from error
            self._read_at = self._clock()
        return self._token


@dataclass(frozen=True)
class ClusterConfig:
    """How to reach one API server.

    Attributes:
        server: ``https://host:port``, without a trailing slash.
        token: returns the bearer token, or ``None`` when certificates authenticate.
        tls: context for the connection, or ``None`` for plain http.
        namespace: the default namespace of this identity.
        context: name of the kubeconfig context, empty in a cluster.
    """

    server: str
    token: Callable[[], str] | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    namespace: str = "default"
    context: str = ""


def load_cluster(
    kubeconfig: str | None = None, *, context: str | None = None, environ: Mapping[str, str] = os.environ
) -> ClusterConfig:
    """Find the cluster: the given kubeconfig, else ``$KUBECONFIG``, else in-cluster files, else ``~/.kube/config``.

    Raises:
        ConfigError: nothing was found, or what was found cannot be used; names the file and field.
    """
    if kubeconfig:
        return _from_kubeconfig(Path(kubeconfig), context)
    if environ.get("KUBECONFIG"):
        # kubectl merges several files; we take the first that exists.
        found = [p for p in environ["KUBECONFIG"].split(os.pathsep) if p and Path(p).exists()]
        if not found:
            raise ConfigError("KUBECONFIG", f"no such file: {environ['KUBECONFIG']}", "check the variable")
        return _from_kubeconfig(Path(found[0]), context)
    if environ.get("KUBERNETES_SERVICE_HOST") and SERVICE_ACCOUNT_DIR.exists():
        return _in_cluster(environ)
    home = Path(environ.get("HOME", "/nonexistent")) / ".kube" / "config"
    if home.exists():
        return _from_kubeconfig(home, context)
    raise ConfigError("--kubeconfig", "no cluster found", "give --kubeconfig FILE, set KUBECONFIG, or run in a pod")


def _in_cluster(environ: Mapping[str, str]) -> ClusterConfig:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace_file = SERVICE_ACCOUNT_DIR / "namespace"
    return ClusterConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        token=TokenFile(SERVICE_ACCOUNT_DIR / "token"),
        tls=ssl.create_default_context(cafile=str(SERVICE_ACCOUNT_DIR / "ca.crt")),
        namespace=namespace_file.read_text().strip() if namespace_file.exists() else "default",
    )


def _from_kubeconfig(path: Path, context_name: str | None) -> ClusterConfig:
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError("--kubeconfig", f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError("--kubeconfig", f"{path} is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError("--kubeconfig", f"{path} holds no kubeconfig")
    chosen = context_name or document.get("current-context") or ""
    context = _named(document, path, "contexts", "context", chosen)
    cluster = _named(document, path, "clusters", "cluster", str(context.get("cluster", "")))
    user = _named(document, path, "users", "user", str(context.get("user", ""))) if context.get("user") else {}
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise ConfigError(f"{path}: clusters[].cluster.server", f"{server!r} is not a URL")
    return ClusterConfig(
        server=server,
        token=_token_source(user, path, chosen),
        tls=_tls_context(cluster, user, path) if server.startswith("https") else None,
        namespace=str(context.get("namespace") or "default"),
        context=chosen,
    )


def _named(document: Mapping[str, Any], path: Path, section: str, inner: str, name: str) -> Mapping[str, Any]:
    for entry in document.get(section) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            value = entry.get(inner) or {}
            if isinstance(value, dict):
                return value
    raise ConfigError(f"{path}: {section}", f"no entry named {name!r}", "check current-context or give --context")


def _token_source(user: Mapping[str, Any], path: Path, context: str) -> Callable[[], str] | None:
    if user.get("token"):
        token = str(user["token"])
        return lambda: token
    if user.get("tokenFile"):
        return TokenFile(path.parent / str(user["tokenFile"]))
    if user.get("exec") or user.get("auth-provider"):
        return _official_credentials(path, context)
    return None


def _official_credentials(path: Path, context: str) -> Callable[[], str]:
    """Run ``exec`` credentials through the official client, which knows their protocol and caching."""
    try:
        from kubernetes import client as official_client
        from kubernetes import config as official_config
    except ImportError as error:
        raise ConfigError(
            f"{path}: users[].user", "exec credentials need the package kubernetes", "install netaware[controller]"
        ) from error
    configuration = official_client.Configuration()
    try:
        official_config.load_kube_config(str(path), context=context or None, client_configuration=configuration)
    except official_config.ConfigException as error:
        raise ConfigError(f"{path}: users[].user", str(error)) from error

    def token() -> str:
        return str(configuration.get_api_key_with_prefix("authorization") or "").removeprefix("Bearer ")

    return token


def _tls_context(cluster: Mapping[str, Any], user: Mapping[str, Any], path: Path) -> ssl.SSLContext:
    ca = _bytes_of(cluster, "certificate-authority", path)
    context = ssl.create_default_context(cadata=ca.decode() if ca else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = _bytes_of(user, "client-certificate", path), _bytes_of(user, "client-key", path)
    if certificate and key:
        # ssl reads certificate chains from files only; the file exists for this moment and for us alone.
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            try:
                context.load_cert_chain(file.name)
            except ssl.SSLError as error:
                raise ConfigError(f"{path}: users[].user.client-certificate", f"cannot be used: {error}") from error
    return context


def _bytes_of(section: Mapping[str, Any], name: str, path: Path) -> bytes:
    """Inline ``<name>-data`` in base64, or the content of the file ``<name>`` relative to the kubeconfig."""
    inline = section.get(f"{name}-data")
    if inline:
        try:
            return base64.b64decode(str(inline), validate=True)
        except binascii.Error as error:
            raise ConfigError(f"{path}: {name}-data", "is not base64") from error
    if section.get(name):
        file = path.parent / str(section[name])
        try:
            return file.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: {name}", f"{file}: {error.strerror}") from error
    return b""
