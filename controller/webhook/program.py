"""The webhook's TLS server, which reloads its certificate files when they change."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.webhook.gate import PATH, answer
from kubekit import logs
from kubekit.errors import ConfigError
from kubekit.http import Server
from kubekit.http_limits import BODY_TIMEOUT_S, BodyTooLargeError, read_body
from kubekit.runtime import supervise
from kubekit.wire import DECODE_ERRORS

log = logs.get("controller.webhook")

DEFAULT_LISTEN = ":9443"
RELOAD_S = 30.0
MAX_BODY_BYTES = 4 << 20
"""An API server takes objects of 3 MB. With failurePolicy Ignore, a larger pod is created without a gate."""


async def run_webhook(certificate_dir: Path, *, listen: str = DEFAULT_LISTEN) -> None:
    """Serve until cancelled.

    Args:
        certificate_dir: holds ``tls.crt`` and ``tls.key``, as a Secret of type kubernetes.io/tls is mounted.
        listen: ``HOST:PORT``.

    Raises:
        ConfigError: the address cannot be bound, or the certificate cannot be read.
    """
    tls = _load(certificate_dir)
    server = Server(listen, registry=CollectorRegistry(), ssl_context=tls)

    async def review(request: web.Request) -> web.Response:
        try:
            body = answer(await read_body(request, MAX_BODY_BYTES, BODY_TIMEOUT_S))
        except BodyTooLargeError as error:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, request.content_length or 0) from error
        except TimeoutError as error:
            raise web.HTTPRequestTimeout from error
        except DECODE_ERRORS as error:
            raise web.HTTPBadRequest(text=f"not an AdmissionReview of a Pod: {error}") from error
        return web.Response(body=body, content_type="application/json")

    server.app.router.add_post(PATH, review)
    await supervise({"http": server.serve(), "certificate": _reload_certificate(tls, certificate_dir)})


def _load(folder: Path) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    except (OSError, ssl.SSLError) as error:
        fix = "make it with: python -m controller webhook-certificate | kubectl apply --server-side -f -"
        raise ConfigError("--certificate-dir", f"{folder}: cannot read tls.crt and tls.key: {error}", fix) from error
    return tls


async def _reload_certificate(tls: ssl.SSLContext, folder: Path) -> None:
    """Load the certificate again when it has changed; later handshakes use the new one."""
    # Each load gets a new context: a certificate and a key that do not match would leave the serving context without a key.
    current = tls
    tls.sni_callback = lambda connection, _name, _context: setattr(connection, "context", current)
    loaded_at = _modified_at(folder)
    while True:
        await asyncio.sleep(RELOAD_S)
        modified_at = _modified_at(folder)
        if modified_at == loaded_at:
            continue
        try:
            current = _load(folder)
        except ConfigError as error:
            log.log_change(
                "certificate", str(error), "cannot load the new certificate, the previous one stays", error=error
            )
            continue
        loaded_at = modified_at
        log.log_change("certificate", "", "the certificate was replaced")


def _modified_at(folder: Path) -> float:
    try:
        return (folder / "tls.crt").stat().st_mtime
    except OSError:
        return 0.0
