"""Finds the API server and its credentials in the pod's ServiceAccount or in kubeconfigs, which the ``kubernetes`` package reads.

Fields that kubectl supports and the package ignores are errors: if ``as`` were ignored, commands would run as another user.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubekit import tls
from kubekit.config import SERVICE_ACCOUNT_DIR, ClusterConfig, load_cluster_config
from kubekit.credentials import Credential
from kubekit.errors import ConfigError, CredentialError, KubekitError

_UNSUPPORTED_FIELDS = ("as", "as-uid", "as-groups", "as-user-extra")
_SUPPORTED_PROVIDERS = ("gcp", "oidc")


def find_cluster_config(kubeconfig: str | None = None, context: str | None = None) -> ClusterConfig:
    """The API server and log-in of ``--kubeconfig``, else ``$KUBECONFIG``, else of the pod itself, else ``~/.kube/config``.

    Raises:
        ConfigError: there is no kubeconfig, or a field cannot be used; names the file or field.
        CredentialError: a log-in plugin gave no credential.
    """
    paths = kubeconfig or os.environ.get("KUBECONFIG", "")
    if not paths and os.environ.get("KUBERNETES_SERVICE_HOST") and SERVICE_ACCOUNT_DIR.exists():
        return load_cluster_config()
    paths = paths or str(Path(os.environ.get("HOME", "/nonexistent")) / ".kube" / "config")
    if not any(Path(path).exists() for path in paths.split(os.pathsep) if path):
        raise ConfigError(
            "--kubeconfig", f"{paths}: no such file", "give --kubeconfig FILE, set KUBECONFIG, or run in a pod"
        )
    return KubeconfigLogin(paths, context).cluster_config()


class KubeconfigLogin:
    """The log-in of a context (None for the current one) in kubeconfigs; a `kubekit.credentials.CredentialProvider`.

    ``paths`` are separated as in ``$KUBECONFIG``.
    """

    def __init__(self, paths: str, context: str | None) -> None:
        """Load the kubeconfigs, and log in; raises as `find_cluster_config` does."""
        self._paths, self._context = paths, context
        self._lock = asyncio.Lock()
        self._credential: Credential | None = None  # The last one of the loaded kubeconfigs.
        self._load_kubeconfigs()

    def cluster_config(self) -> ClusterConfig:
        """Address and credentials of the API server."""
        return ClusterConfig(
            server=self._configuration.host,
            ssl_context=self._ssl_context,
            namespace=str(self._context_entry.get("namespace") or "default"),
            kubeconfig_context=self._context or "",
            credential_provider=self,
            proxy_url=self._find_proxy(),
            tls_server_name=self._configuration.tls_server_name or "",
        )

    async def get_credential(self) -> Credential:
        """See `kubekit.credentials.CredentialProvider`. Runs a plugin in a thread, for one caller at a time."""
        async with self._lock:
            return await asyncio.to_thread(self._load_credential)

    def discard(self, credential: Credential) -> None:
        """See `kubekit.credentials.CredentialProvider`. A refusal of an older credential is ignored: a later log-in replaced it."""
        if credential == self._credential:
            self._is_credential_refused = True

    def _load_credential(self) -> Credential:
        if self._is_credential_refused:
            try:
                self._load_kubeconfigs()
            except ConfigError as error:
                # The file may be readable again soon, for example after a log-in that is rewriting it.
                raise CredentialError(str(error)) from error
        with _collect_errors() as messages:
            value = str(self._configuration.auth_settings().get("BearerToken", {}).get("value") or "")
        if messages:
            raise CredentialError(f"{self._user_field('exec')}: {'; '.join(messages)}")
        self._credential = Credential(value.removeprefix("Bearer "), self._ssl_context)
        return self._credential

    def _load_kubeconfigs(self) -> None:
        """Load the kubeconfigs, and run the log-in plugin if the user has one."""
        # Imported here, because the package is large and other log-ins do not need it.
        try:
            from kubernetes.client import Configuration
            from kubernetes.config import ConfigException
            from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
        except ImportError as error:
            raise ConfigError("--kubeconfig", "needs the package kubernetes", "pip install 'netaware[cli]'") from error
        import yaml

        configuration = Configuration()
        try:
            merged = KubeConfigMerger(self._paths)
            # kubectl uses the first file's current-context, the package the last one's.
            current_contexts = (file.get("current-context") for file in merged.config_files.values())
            self._context = self._context or next((str(name) for name in current_contexts if name), None)
            loader = KubeConfigLoader(merged.config, active_context=self._context, config_base_path=None)
            self._context_entry: Mapping[str, Any] = loader.current_context["context"]
            self._user = self._find_entry(merged.config, "users", "user")
            self._cluster = self._find_entry(merged.config, "clusters", "cluster")
            self._check_user_fields()
            with _collect_errors() as messages:
                loader.load_and_set(configuration)
            self._ssl_context = _create_ssl_context(configuration) if configuration.host.startswith("https") else None
        except KubekitError:
            raise
        except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            # The package does not validate files: an entry of a wrong type raises any of these.
            raise ConfigError("--kubeconfig", f"{self._paths}: {' '.join(str(error).split())}") from error
        except Exception as error:
            # An auth-provider renews an expired token over HTTP, and the package passes on the errors of its HTTP libraries.
            raise CredentialError(f"{self._user_field('auth-provider')}: {error}") from error
        if self._user.get("exec") and not (configuration.api_key or configuration.cert_file):
            raise CredentialError(f"{self._user_field('exec')}: {'; '.join(messages) or 'it gave no credential'}")
        if str(configuration.api_key.get("BearerToken", "")).startswith("Basic "):
            raise ConfigError(self._user_field("username"), "is not supported", "use a token or a client certificate")
        self._configuration, self._credential, self._is_credential_refused = configuration, None, False

    def _find_entry(self, merged: Any, section: str, kind: str) -> Mapping[str, Any]:
        """The content of the context's entry in ``users`` or ``clusters``; empty if there is no entry."""
        name = self._context_entry.get(kind)
        entry = merged[section].get_with_name(name, safe=True) if name else None
        value = entry.value.get(kind) if entry is not None else None
        return value if isinstance(value, dict) else {}

    def _check_user_fields(self) -> None:
        for name in _UNSUPPORTED_FIELDS:
            if self._user.get(name):
                raise ConfigError(self._user_field(name), "is not supported", "remove it; log in as that user")
        provider = self._user.get("auth-provider")
        if provider and provider.get("name") not in _SUPPORTED_PROVIDERS:
            raise ConfigError(self._user_field("auth-provider"), "is not supported", "use your provider's exec plugin")

    def _find_proxy(self) -> str:
        """The URL of the HTTP proxy that kubectl would use; empty for none."""
        from kubernetes.client.rest import should_bypass_proxies

        configuration, has_proxy_url = self._configuration, bool(self._cluster.get("proxy-url"))
        hostname = (urllib.parse.urlsplit(configuration.host).hostname or "").strip("[]")
        if not has_proxy_url and (hostname in {"localhost", "::1"} or hostname.startswith("127.")):
            return ""  # kubectl also ignores the environment's proxy for a loopback address
        url = configuration.proxy or ""
        if not url or (not has_proxy_url and should_bypass_proxies(configuration.host, configuration.no_proxy or "")):
            return ""
        url = url if "://" in url else f"http://{url}"
        if not url.startswith(("http://", "https://")):
            field = "proxy-url" if has_proxy_url else "HTTPS_PROXY"
            raise ConfigError(field, f"{url!r} is not an HTTP proxy", "use an HTTP proxy; SOCKS is not supported")
        return url

    def _user_field(self, name: str) -> str:
        """Path of a user's field, for error messages."""
        return f"{self._paths}: users[].user.{name}"


def _create_ssl_context(configuration: Any) -> ssl.SSLContext:
    authorities = Path(configuration.ssl_ca_cert).read_bytes() if configuration.ssl_ca_cert else None
    context = tls.create_client_context(authorities)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        # Without `password`, OpenSSL would prompt for a passphrase on the terminal.
        context.load_cert_chain(configuration.cert_file, configuration.key_file, password=lambda: "")
    return context


@contextmanager
def _collect_errors() -> Iterator[list[str]]:
    """Collects the errors that the package logs in this thread, instead of printing them; it only logs the failure of a plugin."""
    messages: list[str] = []
    thread_id = threading.get_ident()

    def collect(record: logging.LogRecord) -> bool:
        is_of_this_thread = record.thread == thread_id
        if is_of_this_thread:
            messages.append(record.getMessage())
        return not is_of_this_thread

    # The package calls `logging.error`. A filter of the root logger sees only records that were logged with it directly.
    root = logging.getLogger()
    root.addFilter(collect)
    try:
        yield messages
    finally:
        root.removeFilter(collect)
