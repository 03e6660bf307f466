"""A client of Prometheus' HTTP API for instant queries."""

from __future__ import annotations

import asyncio
import math
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from kubekit.errors import ConfigError, KubekitError
from kubekit.wire import DECODE_ERRORS

QUERY_TIMEOUT_S = 10.0


class PrometheusError(KubekitError):
    """A query failed or was rejected; the message names the address and the reason."""


class VectorSample(msgspec.Struct, frozen=True):
    """A sample of an instant vector: labels (with ``__name__`` if the expression keeps it), value, and time in unix seconds."""

    labels: dict[str, str]
    value: float
    at_s: float = 0.0


class _Result(msgspec.Struct):
    value: tuple[float, str]
    metric: dict[str, str] = {}


class _Data(msgspec.Struct):
    result: list[_Result] = []


class _Response(msgspec.Struct):
    status: str = ""
    data: _Data | None = None
    error: str = ""


_decode_response = msgspec.json.Decoder(_Response).decode


class PrometheusClient:
    """Queries Prometheus, with a connection for each query, because a kept one would mostly be idle.

    Args:
        url: base URL; a path prefix is kept. ``user:password@`` in it is sent as basic authentication.
        token: bearer token; empty for none.
        timeout_s: time limit of a query.
        field: name of the setting with the URL, for errors.

    Raises:
        ConfigError: the URL is not an http(s) URL, or has a user beside a token.
    """

    def __init__(
        self, url: str, *, token: str = "", timeout_s: float = QUERY_TIMEOUT_S, field: str = "--prometheus"
    ) -> None:
        require_http_url(url, field)
        if token and urlsplit(url).username is not None:
            raise ConfigError(field, "there is a user and a token", "remove one of them")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s

    @property
    def redacted_url(self) -> str:
        """The URL without user and password, for messages."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    async def query(
        self, expression: str, *, at_s: float | None = None, finite_only: bool = True
    ) -> list[VectorSample]:
        """Evaluate an expression that gives an instant vector, now or at ``at_s`` (unix seconds).

        NaN and infinite values are omitted, unless ``finite_only`` is False.

        Raises:
            PrometheusError: there is no response in time, or Prometheus rejects the expression.
        """
        params = {"query": expression} | ({} if at_s is None else {"time": f"{at_s:.3f}"})
        timeout = aiohttp.ClientTimeout(self._timeout_s)
        try:
            # POST, because an expression may be too long for a URL.
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                session.post(f"{self.url}/api/v1/query", data=params) as response,
            ):
                body, status = await response.read(), response.status
        except TimeoutError as error:
            raise PrometheusError(f"{self.redacted_url}: no answer in {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a token with a line break.
            reason = str(error).replace(self.url, self.redacted_url) or type(error).__name__
            raise PrometheusError(f"{self.redacted_url}: {reason}") from error
        return await asyncio.to_thread(_decode_samples, body, status, self.redacted_url, finite_only=finite_only)


def require_http_url(url: str, field: str) -> None:
    """Raise ConfigError for ``field``, without user and password, if ``url`` is not an http(s) URL with a host."""
    try:
        parts = urlsplit(url)
        # `port` raises ValueError if it is not a number up to 65,535.
        is_http_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_http_url = False
    if not is_http_url:
        raise ConfigError(field, f"{url.rpartition('@')[2]!r} is not an http(s) address", "write http://HOST:PORT")


def _decode_samples(body: bytes, status: int, url: str, *, finite_only: bool) -> list[VectorSample]:
    try:
        response = _decode_response(body)
        if response.status == "success" and response.data is not None:
            samples = (VectorSample(r.metric, float(r.value[1]), r.value[0]) for r in response.data.result)
            return [sample for sample in samples if not finite_only or math.isfinite(sample.value)]
    except (*DECODE_ERRORS, ValueError) as error:
        excerpt = body[:80].decode("utf-8", "replace")
        reason = f"HTTP {status}, and the body is not an instant vector of Prometheus: {excerpt!r}"
        raise PrometheusError(f"{url}: {reason}") from error
    raise PrometheusError(f"{url}: {response.error or f'HTTP {status} without data'}")
