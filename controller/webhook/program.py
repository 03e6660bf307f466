"""The webhook's server, which loads certificate and key again when tls.crt changes."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.webhook.gate import WEBHOOK_PATH, answer_review
from kubekit import logs
from kubekit.errors import ConfigError
from kubekit.http import Server
from kubekit.http_limits import BODY_TIMEOUT_S, BodyTooLargeError, read_body
from kubekit.runtime import supervise
from kubekit.wire import DECODE_ERRORS

log = logs.get("controller.webhook")

CERTIFICATE_CHECK_INTERVAL_S = 30.0
"""Time between checks whether the certificate has changed."""
MAX_BODY_BYTES = 4 << 20
"""The API server accepts objects of 3 MB. With failurePolicy Ignore, a larger pod is created without a gate."""


async def run_webhook(certificate_dir: Path, *, listen: str) -> None:
    """Answer AdmissionReviews over TLS until cancelled.

    Args:
        certificate_dir: folder with ``tls.crt`` and ``tls.key``.
        listen: ``HOST:PORT``.

    Raises:
        ConfigError: the address cannot be bound, or the certificate cannot be read.
    """
    tls = _load_certificate(certificate_dir)
    server = Server(listen, registry=CollectorRegistry(), ssl_context=tls)

    async def handle_review(request: web.Request) -> web.Response:
        try:
            body = answer_review(await read_body(request, MAX_BODY_BYTES, BODY_TIMEOUT_S))
        except BodyTooLargeError as error:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, request.content_length or 0) from error
        except TimeoutError as error:
            raise web.HTTPRequestTimeout from error
        except DECODE_ERRORS as error:
            raise web.HTTPBadRequest(text=f"not an AdmissionReview of a Pod: {error}") from error
        return web.Response(body=body, content_type="application/json")

    server.app.router.add_post(WEBHOOK_PATH, handle_review)
    await supervise({"http": server.serve(), "certificate": _watch_certificate(tls, certificate_dir)})


def _load_certificate(certificate_dir: Path) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        tls.load_cert_chain(certificate_dir / "tls.crt", certificate_dir / "tls.key")
    except (OSError, ssl.SSLError) as error:
        problem = f"{certificate_dir}: cannot read tls.crt and tls.key: {error}"
        fix = "create them with: python -m controller webhook-certificate | kubectl apply --server-side -f -"
        raise ConfigError("--certificate-dir", problem, fix) from error
    return tls


async def _watch_certificate(tls: ssl.SSLContext, certificate_dir: Path) -> None:
    """Load certificate and key when tls.crt changes; later handshakes use them. If loading fails, the previous ones stay.

    Each load makes a new context. A failed load into the server's context would leave that without a key, for example between the
    writes of tls.crt and tls.key. The server keeps its context, so a callback gives each handshake the newest one.
    """
    current_tls = tls

    def use_current_tls(connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        connection.context = current_tls

    tls.sni_callback = use_current_tls
    loaded_at = _modified_at(certificate_dir)
    while True:
        await asyncio.sleep(CERTIFICATE_CHECK_INTERVAL_S)
        modified_at = _modified_at(certificate_dir)
        if modified_at == loaded_at:
            continue
        try:
            current_tls = _load_certificate(certificate_dir)
        except ConfigError as error:
            message = "cannot load the new certificate, so the previous certificate stays"
            log.log_change("certificate", str(error), message, error=error)
            continue
        loaded_at = modified_at
        log.log_change("certificate", "", "the certificate was replaced")


def _modified_at(certificate_dir: Path) -> float:
    """Time of the last change of tls.crt, unix seconds; 0 if it cannot be read."""
    try:
        return (certificate_dir / "tls.crt").stat().st_mtime
    except OSError:
        return 0.0
