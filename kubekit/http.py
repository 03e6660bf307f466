"""The HTTP server of a program: /metrics, /healthz, /readyz, and further routes; its address; and a check against DNS rebinding.

/healthz fails if a restart would help; /readyz fails if the program cannot work. Both name the failed checks.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kubekit import logs
from kubekit.addresses import parse_address
from kubekit.errors import ConfigError
from kubekit.http_limits import (
    MAX_HANDSHAKES,
    MAX_HANDSHAKES_PER_PEER,
    BoundSite,
    ConnectionLimiter,
    Handler,
    enforce_body_timeout,
)

log = logs.get("kubekit.http")

HealthCheck = Callable[[], str]
"""Returns the problem, or an empty text if everything works."""

MAX_REQUEST_BYTES = 64 << 10
MAX_PORT = 65535
_CLUSTER_SUFFIXES = (".svc", ".cluster.local", ".localhost")
ALL_ADDRESSES = "::"
"""Stands for all IPv6 and IPv4 addresses of the host."""


class HealthChecks:
    """Checks by name: ``live`` for /healthz, ``ready`` for /readyz, and ``warnings``, which /readyz shows without failing."""

    def __init__(self) -> None:
        self.live: dict[str, HealthCheck] = {}
        self.ready: dict[str, HealthCheck] = {}
        self.warnings: dict[str, HealthCheck] = {}


def parse_listen(text: str, field: str = "--listen") -> tuple[str, int]:
    """Parse ``HOST:PORT``. HOST is an IP address, also in brackets, ``localhost``, or empty for `ALL_ADDRESSES`; port 0 is any free port.

    Raises:
        ConfigError: the text is invalid; the message names ``field``.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > MAX_PORT:
        raise ConfigError(field, f"{text!r} has no valid port", "write HOST:PORT, such as 0.0.0.0:9850")
    if host and host != "localhost" and parse_address(host) is None:
        raise ConfigError(field, f"{host!r} is not an address", "write HOST:PORT with an IP address")
    return host or ALL_ADDRESSES, int(port)


def _open_listener(host: str, port: int) -> socket.socket:
    """Listen on an address; on all IPv4 addresses for `ALL_ADDRESSES` if the host has no IPv6."""
    if host != ALL_ADDRESSES:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server((ALL_ADDRESSES, port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            # IPv6 may be disabled in this network namespace.
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                raise
    return socket.create_server(("", port))


class Server:
    """An HTTP server with health checks and metrics. Further routes are added to ``app`` before `running`.

    Args:
        listen: ``HOST:PORT``, see `parse_listen`; error messages call it ``listen_field``.
        checks: for /healthz and /readyz.
        registry: metrics for /metrics.
        ssl_context: None for plain HTTP.
        public_hosts: public DNS names of this server, see `allow_hosts`; None, for servers without browsers, accepts every Host.
    """

    def __init__(
        self,
        listen: str,
        *,
        listen_field: str = "--listen",
        checks: HealthChecks | None = None,
        registry: CollectorRegistry = REGISTRY,
        ssl_context: ssl.SSLContext | None = None,
        public_hosts: Collection[str] | None = None,
    ) -> None:
        self.checks = checks or HealthChecks()
        host_check = [] if public_hosts is None else [allow_hosts(public_hosts)]
        middlewares: list[Middleware] = [*host_check, enforce_body_timeout]
        self.app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=middlewares)
        self.connection_limiter = ConnectionLimiter()
        self.handshake_limiter = ConnectionLimiter(MAX_HANDSHAKES, MAX_HANDSHAKES_PER_PEER)
        self._listen_field = listen_field
        self._host, self._port = parse_listen(listen, listen_field)
        self._registry, self._ssl_context = registry, ssl_context
        self.app.router.add_get("/metrics", self._serve_metrics)
        self.app.router.add_get("/healthz", _make_health_handler(self.checks.live, {}))
        self.app.router.add_get("/readyz", _make_health_handler(self.checks.ready, self.checks.warnings))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve while the block runs; yields ``HOST:PORT`` as bound.

        Raises:
            ConfigError: the address cannot be bound.
        """
        runner = web.AppRunner(self.app, access_log=None, handle_signals=False, shutdown_timeout=2.0)
        await runner.setup()
        try:
            try:
                listener = _open_listener(self._host, self._port)
                await BoundSite(
                    runner, listener, self.connection_limiter, self.handshake_limiter, self._ssl_context
                ).start()
            except OSError as error:
                problem = f"cannot bind {self._host}:{self._port}: {error.strerror}"
                raise ConfigError(self._listen_field, problem) from error
            port = runner.addresses[0][1]
            log.info("listening", host=self._host, port=port, tls=self._ssl_context is not None)
            yield f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        finally:
            await runner.cleanup()

    async def serve(self) -> None:
        """Serve until cancelled."""
        async with self.running():
            await asyncio.Event().wait()

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        names = request.query.getall("name[]", [])
        registry = self._registry.restricted_registry(names) if names else self._registry
        # A controller of 100 zones has 50,000 series. Collectors copy the data that the event loop may change meanwhile.
        body = await asyncio.to_thread(encode, registry)
        return web.Response(body=body, headers={"Content-Type": content_type})


def _make_health_handler(
    checks: dict[str, HealthCheck], warnings: dict[str, HealthCheck]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve_health(_: web.Request) -> web.Response:
        if failures := _describe_failures(checks):
            return web.Response(status=503, text=failures)
        return web.Response(text=f"ok\n{_describe_failures(warnings)}")

    return serve_health


def _describe_failures(checks: dict[str, HealthCheck]) -> str:
    """One line for each check that finds a problem."""
    return "".join(f"{name}: {problem}\n" for name, check in checks.items() if (problem := check()))


def allow_hosts(hosts: Collection[str]) -> Middleware:
    """Middleware against DNS rebinding: it refuses (421) requests whose Host is a public DNS name that is not in ``hosts``.

    Addresses, names without a dot, and names inside a cluster are always allowed.
    """
    allowed_hosts = {host.lower() for host in hosts}

    @web.middleware
    async def check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = _parse_host_name(request.host)
        if (
            name in allowed_hosts
            or "." not in name
            or name.endswith(_CLUSTER_SUFFIXES)
            or parse_address(name) is not None
        ):
            return await handler(request)
        return web.Response(status=421, text=f"not served under the name {name!r}: see page.allowedHosts\n")

    return check_host


def _parse_host_name(host: str) -> str:
    """The name or address in a Host header: without port, brackets and final dot, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")
