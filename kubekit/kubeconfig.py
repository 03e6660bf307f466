"""Kubeconfigs, read as kubectl reads them: several files merged, every way to log in, proxies, other names, acting as others.

What kubectl understands and we do not is refused by name: to leave out ``as`` without a word would be to act as oneself.
"""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kubekit import tls
from kubekit.config import ClusterConfig
from kubekit.credentials import EXEC_VERSIONS, INTERACTIVE_MODES, Plugin, PluginCredentials, TokenFile
from kubekit.errors import ConfigError
from kubekit.proxies import http_proxy

_EXEC_EXTENSION = "client.authentication.k8s.io/exec"


class _Entry(NamedTuple):
    """One cluster, user or context, and the file that it stands in, to which its paths are relative."""

    file: Path
    section: str
    values: Mapping[str, Any]

    def field(self, name: str) -> str:
        return f"{self.file}: {self.section}[].{self.section.removesuffix('s')}.{name}"

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return "" if value is None else str(value)

    def content(self, name: str) -> bytes:
        """Inline ``<name>-data`` in base64, or the content of the file ``<name>``; inline wins."""
        inline = self.values.get(f"{name}-data")
        if inline:
            try:
                return base64.b64decode("".join(str(inline).split()), validate=True)
            except binascii.Error as error:
                raise ConfigError(self.field(f"{name}-data"), "is not base64") from error
        if not self.values.get(name):
            return b""
        path = self.file.parent / str(self.values[name])
        try:
            return path.read_bytes()
        except OSError as error:
            raise ConfigError(self.field(name), f"{path}: {error.strerror}") from error


def read_kubeconfigs(paths: Sequence[Path], context_name: str | None = None) -> ClusterConfig:
    """The cluster of one context; of several files, the first that sets something wins, as with kubectl.

    Raises:
        ConfigError: a file cannot be read, or what it says cannot be used; names file and field.
    """
    documents = [(path, _document(path)) for path in paths]
    chosen = context_name or next((str(d["current-context"]) for _, d in documents if d.get("current-context")), "")
    context = _named(documents, "contexts", chosen)
    cluster = _named(documents, "clusters", context.text("cluster"))
    user = (
        _named(documents, "users", context.text("user"))
        if context.values.get("user")
        else _Entry(context.file, "users", {})
    )
    server = cluster.text("server").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise ConfigError(cluster.field("server"), f"{server!r} is not a URL", "write https://HOST:PORT")
    secure = server.startswith("https")
    return ClusterConfig(
        server=server,
        token=_token_source(user),
        tls=_client_context(cluster, user) if secure else None,
        namespace=context.text("namespace") or "default",
        context=chosen,
        plugin=_plugin_credentials(cluster, user, server, secure=secure),
        proxy=_proxy(cluster),
        server_name=cluster.text("tls-server-name"),
        headers=(*_impersonation(user), *_compression(cluster)),
    )


def _document(path: Path) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError("--kubeconfig", f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError("--kubeconfig", f"{path} is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError("--kubeconfig", f"{path} holds no kubeconfig")
    return document


def _named(documents: Sequence[tuple[Path, Mapping[str, Any]]], section: str, name: str) -> _Entry:
    for path, document in documents:
        for entry in document.get(section) or ():
            if isinstance(entry, dict) and entry.get("name") == name:
                values = entry.get(section.removesuffix("s")) or {}
                if isinstance(values, dict):
                    return _Entry(path, section, values)
    files = ", ".join(str(path) for path, _ in documents)
    raise ConfigError(f"{files}: {section}", f"no entry named {name!r}", "check current-context or give --context")


def _token_source(user: _Entry) -> Callable[[], str] | None:
    if user.values.get("auth-provider"):
        raise ConfigError(
            user.field("auth-provider"),
            "kubectl itself dropped these log-ins in 1.26",
            "use the plugin of your provider under users[].user.exec",
        )
    if user.values.get("username") or user.values.get("password"):
        raise ConfigError(
            user.field("username"), "API servers take no passwords since 1.19", "use a token or a client certificate"
        )
    if user.text("tokenFile"):
        return TokenFile(user.file.parent / user.text("tokenFile"))
    token = user.text("token")
    return (lambda: token) if token else None


def _plugin_credentials(cluster: _Entry, user: _Entry, server: str, *, secure: bool) -> PluginCredentials | None:
    found = user.values.get("exec")
    if not found or user.values.get("token") or user.values.get("tokenFile"):
        return None
    if not isinstance(found, dict) or not found.get("command"):
        raise ConfigError(user.field("exec.command"), "no command is named")
    version, mode = str(found.get("apiVersion", "")), str(found.get("interactiveMode") or "IfAvailable")
    if version not in EXEC_VERSIONS:
        raise ConfigError(user.field("exec.apiVersion"), f"{version!r} is not supported", f"write {EXEC_VERSIONS[0]}")
    if mode not in INTERACTIVE_MODES:
        raise ConfigError(
            user.field("exec.interactiveMode"), f"{mode!r} is unknown", f"one of {', '.join(INTERACTIVE_MODES)}"
        )
    plugin = Plugin(
        where=user.field("exec"),
        folder=user.file.parent,
        api_version=version,
        command=str(found["command"]),
        args=tuple(str(a) for a in found.get("args") or ()),
        env={str(e["name"]): str(e.get("value", "")) for e in found.get("env") or () if isinstance(e, dict)},
        install_hint=str(found.get("installHint") or ""),
        cluster=_cluster_info(cluster, server) if found.get("provideClusterInfo") else None,
        interactive_mode=mode,
    )

    def context(certificate: bytes, key: bytes) -> ssl.SSLContext:
        made = _server_context(cluster)
        _present(made, certificate, key)
        return made

    return PluginCredentials(plugin, context if secure else None)


def _cluster_info(cluster: _Entry, server: str) -> Mapping[str, Any]:
    """What client-go tells a plugin of the cluster."""
    told: dict[str, Any] = {"server": server}
    for name in ("tls-server-name", "proxy-url"):
        if cluster.text(name):
            told[name] = cluster.text(name)
    for name in ("insecure-skip-tls-verify", "disable-compression"):
        if cluster.values.get(name):
            told[name] = True
    authorities = cluster.content("certificate-authority")
    if authorities:
        told["certificate-authority-data"] = base64.b64encode(authorities).decode()
    for extension in cluster.values.get("extensions") or ():
        if isinstance(extension, dict) and extension.get("name") == _EXEC_EXTENSION:
            told["config"] = extension.get("extension")
    return told


def _client_context(cluster: _Entry, user: _Entry) -> ssl.SSLContext:
    context = _server_context(cluster)
    certificate, key = user.content("client-certificate"), user.content("client-key")
    if bool(certificate) != bool(key):
        missing = "client-key" if certificate else "client-certificate"
        raise ConfigError(user.field(missing), "is missing", "a certificate and its key go together")
    if certificate:
        try:
            _present(context, certificate, key)
        except ssl.SSLError as error:
            raise ConfigError(user.field("client-certificate"), f"cannot be used: {error}") from error
    return context


def _server_context(cluster: _Entry) -> ssl.SSLContext:
    """Whom we believe to be this cluster's API server."""
    authorities = cluster.content("certificate-authority")
    insecure = bool(cluster.values.get("insecure-skip-tls-verify"))
    if insecure and authorities:
        raise ConfigError(
            cluster.field("insecure-skip-tls-verify"), "stands beside a certificate-authority", "remove one of them"
        )
    try:
        context = tls.trust(authorities)
    except ssl.SSLError as error:
        raise ConfigError(cluster.field("certificate-authority"), f"cannot be used: {error}") from error
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _present(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # ssl reads certificate chains from files only; the file exists for this moment and for us alone.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name, password=_no_passphrase)


def _no_passphrase() -> str:
    """An encrypted key is refused; OpenSSL would ask the terminal for its passphrase."""
    return ""


def _proxy(cluster: _Entry) -> str:
    url = cluster.text("proxy-url")
    return http_proxy(cluster.field("proxy-url"), url) if url else ""


def _compression(cluster: _Entry) -> tuple[tuple[str, str], ...]:
    return (("Accept-Encoding", "identity"),) if cluster.values.get("disable-compression") else ()


def _impersonation(user: _Entry) -> list[tuple[str, str]]:
    name, uid = user.text("as"), user.text("as-uid")
    groups, extra = user.values.get("as-groups") or (), user.values.get("as-user-extra") or {}
    if not name:
        if uid or groups or extra:
            raise ConfigError(user.field("as"), "is missing", "groups, uid and extra need a user to act as")
        return []
    headers = [("Impersonate-User", name)]
    if uid:
        headers.append(("Impersonate-Uid", uid))
    headers += [("Impersonate-Group", str(group)) for group in groups]
    for key, values in extra.items():
        header = f"Impersonate-Extra-{urllib.parse.quote(str(key).lower(), safe='')}"
        headers += [(header, str(value)) for value in values or ()]
    return headers
