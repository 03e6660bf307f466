"""Who we are to the API server, where that changes while a program runs: token files, and plugins that log in.

Plugins follow client.authentication.k8s.io (v1 and v1beta1), as those of EKS, GKE and AKS do: a command prints an
ExecCredential with a token, a client certificate, or both, and when it expires. It is started when nothing is known, when the
credential is about to expire, and when the API server refused it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kubekit.errors import ConfigError, CredentialError
from kubekit.wire import UNREADABLE, Wire, parse_time

TOKEN_MAX_AGE_S = 60.0
EXPIRY_MARGIN_S = 10.0
"""A credential is replaced this long before it expires, so that no request is on its way with a dead one."""
PLUGIN_TIMEOUT_S, LOGIN_TIMEOUT_S = 60.0, 600.0
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
INTERACTIVE_MODES = ("IfAvailable", "Always", "Never")


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


class Credential(NamedTuple):
    """What one request carries: a bearer token, a TLS context with a client certificate, or both."""

    token: str = ""
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True)
class Plugin:
    """An entry ``users[].user.exec`` of a kubeconfig.

    Attributes:
        where: it stands, for errors.
        command: as written; a path with a slash is relative to ``folder``.
        env: variables on top of our own environment.
        cluster: what the plugin is told of the cluster; None unless it asked with ``provideClusterInfo``.
        interactive_mode: whether the plugin may use our terminal.
    """

    where: str
    folder: Path
    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None
    interactive_mode: str = "IfAvailable"


class _ExecStatus(Wire, frozen=True):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecCredential(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


_decode_exec_credential = msgspec.json.Decoder(_ExecCredential).decode


class PluginCredentials:
    """Runs a plugin when it must and remembers what it answered. Never two at a time.

    Args:
        plugin: what to run.
        tls: makes a context that presents a certificate chain and its key, both PEM; None over plain http.
    """

    def __init__(self, plugin: Plugin, tls: Callable[[bytes, bytes], ssl.SSLContext] | None = None) -> None:
        self._plugin, self._tls = plugin, tls
        self._known: Credential | None = None
        self._expires_at = float("inf")
        self._running = asyncio.Lock()

    async def current(self) -> Credential:
        """The credential for a request that starts now.

        Raises:
            CredentialError: the plugin is missing, fails, takes too long, or prints something else.
        """
        async with self._running:
            if self._known is None or time.time() >= self._expires_at - EXPIRY_MARGIN_S:
                self._known = self._accept(await self._run())
            return self._known

    def refuse(self, credential: Credential) -> None:
        """The API server did not take it: ask the plugin again, unless that happened already."""
        if credential is self._known:
            self._known = None

    async def _run(self) -> bytes:
        plugin = self._plugin
        terminal = plugin.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if plugin.interactive_mode == "Always" and not terminal:
            raise CredentialError(f"{plugin.where}: {plugin.command} asks for a terminal, and there is none")
        command = str(plugin.folder / plugin.command) if os.sep in plugin.command else plugin.command
        spec: dict[str, Any] = {"interactive": terminal}
        if plugin.cluster is not None:
            spec["cluster"] = plugin.cluster
        info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
        environment = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *plugin.args,
                stdin=None if terminal else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if terminal else asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            hint = f"\n{plugin.install_hint.strip()}" if plugin.install_hint else ""
            raise CredentialError(f"{plugin.where}: cannot run {plugin.command}: {error.strerror}{hint}") from error
        try:
            async with asyncio.timeout(LOGIN_TIMEOUT_S if terminal else PLUGIN_TIMEOUT_S):
                output, complaint = await process.communicate()
        except TimeoutError as error:
            raise CredentialError(f"{plugin.where}: {plugin.command} gave no credential in time") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            said = (complaint or b"").decode("utf-8", "replace").strip()[-300:]
            raise CredentialError(f"{plugin.where}: {plugin.command} ended with {process.returncode}: {said}")
        return output

    def _accept(self, output: bytes) -> Credential:
        plugin = self._plugin
        where = f"{plugin.where}: {plugin.command}"
        try:
            found = _decode_exec_credential(output)
        except UNREADABLE as error:
            raise CredentialError(f"{where} printed no ExecCredential: {error}") from error
        if found.kind != "ExecCredential" or found.api_version != plugin.api_version:
            raise CredentialError(f"{where} printed {found.api_version} {found.kind}, not {plugin.api_version}")
        status = found.status or _ExecStatus()
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise CredentialError(f"{where} printed a certificate without its key, or a key without its certificate")
        if not status.token and not status.client_certificate_data:
            raise CredentialError(f"{where} printed neither a token nor a client certificate")
        try:
            self._expires_at = parse_time(status.expiration_timestamp) if status.expiration_timestamp else float("inf")
        except ValueError as error:
            raise CredentialError(f"{where}: expirationTimestamp: {error}") from error
        tls = None
        if status.client_certificate_data and self._tls is not None:
            try:
                tls = self._tls(status.client_certificate_data.encode(), status.client_key_data.encode())
            except ssl.SSLError as error:
                raise CredentialError(f"{where}: its client certificate cannot be used: {error}") from error
        return Credential(status.token, tls)
