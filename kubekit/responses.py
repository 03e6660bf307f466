"""Decodes the API server's responses: watch events, list pages, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import aiohttp
import msgspec

from kubekit.errors import ApiError, MalformedObjectError, NotLeaderError, SilentWatchError, UnreachableError
from kubekit.waiting import CooperativeYield
from kubekit.wire import DECODE_ERRORS, ListMeta, Wire

T = TypeVar("T")

MAX_RETRY_AFTER_S = 60.0
"""Limit of Retry-After, so that the value of a misconfigured proxy does not pause watches and work queues for hours."""


class WatchEvent(msgspec.Struct, gc=False, frozen=True):
    """One line of a watch: the type (ADDED, MODIFIED, DELETED, BOOKMARK or ERROR) and the undecoded object."""

    type: str
    object: msgspec.Raw

    def to_error(self) -> ApiError:
        """Convert an ERROR event to an exception."""
        return _decode_status(self.object).to_error(500)


class _Cause(Wire, frozen=True):
    reason: str = ""


class _Details(Wire, frozen=True):
    causes: list[_Cause] | None = None
    retry_after_seconds: int = 0


class Status(Wire, frozen=True):
    """metav1.Status, the body of an error response."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None

    def to_error(self, fallback_code: int, retry_after: str | None = None) -> ApiError:
        """Convert to an exception, with ``fallback_code`` if the body has no code. ``retry_after`` is the HTTP header, ignored if it is a date."""
        details = self.details or _Details()
        wait_s = float(retry_after) if retry_after and retry_after.isdigit() else float(details.retry_after_seconds)
        wait_s = min(wait_s, MAX_RETRY_AFTER_S)
        return ApiError(
            self.code or fallback_code,
            self.reason,
            self.message,
            retry_after_s=wait_s or None,
            causes=tuple(c.reason for c in details.causes or ()),
        )


_decode_status = msgspec.json.Decoder(Status).decode


class RawPage(msgspec.Struct, gc=False, frozen=True):
    """One page of a list. Its items are undecoded, so that a malformed object does not make the whole page fail."""

    items: list[msgspec.Raw] = []
    metadata: ListMeta = ListMeta()


async def read_events(response: aiohttp.ClientResponse, max_silence_s: float) -> AsyncIterator[WatchEvent]:
    """Yield the events of a watch as they arrive, until the response ends.

    Raises:
        SilentWatchError: nothing arrived for ``max_silence_s``.
    """
    decoder, maybe_yield = msgspec.json.Decoder(WatchEvent), CooperativeYield()
    while True:
        # readline() does not yield while lines are buffered, and thousands may be buffered.
        await maybe_yield()
        try:
            async with asyncio.timeout(max_silence_s):
                line = await response.content.readline()
        except TimeoutError as error:
            raise SilentWatchError(f"WATCH {response.url.path}: silent for {max_silence_s:.0f} s") from error
        if not line:
            return
        if line.strip():
            yield decoder.decode(line)


def decode_response(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    """Decode a response or an object of a list.

    Raises:
        MalformedObjectError: ``data`` is not an object of this type.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except DECODE_ERRORS as error:
        raise MalformedObjectError(f"cannot read {type_.__name__}: {error}") from error


def decode_error(response: aiohttp.ClientResponse, data: bytes) -> ApiError:
    """The exception for a response with an error status."""
    try:
        status = _decode_status(data)
    except DECODE_ERRORS:
        status = Status(response.status, "", data[:200].decode("utf-8", "replace").strip() or str(response.reason))
    if response.status >= 500:
        # The outcome of a write is then unknown, whatever code the body has.
        status = msgspec.structs.replace(status, code=response.status)
    return status.to_error(response.status, response.headers.get("Retry-After"))


@contextmanager
def translate_errors(method: str, path: str) -> Iterator[None]:
    """Raise errors of connections and timeouts as UnreachableError, and of decoding as MalformedObjectError, with method and path.

    A NotLeaderError that aiohttp wrapped is raised unchanged.
    """
    request = f"{method} {path}"
    try:
        yield
    except TimeoutError as error:
        raise UnreachableError(f"{request}: no response in time") from error
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        if isinstance(error, aiohttp.ClientConnectionError) and isinstance(error.__cause__, NotLeaderError):
            raise error.__cause__ from None
        raise UnreachableError(f"{request}: {str(error) or type(error).__name__}") from error
    except DECODE_ERRORS as error:
        raise MalformedObjectError(f"{request}: {error}") from error
    except ValueError as error:  # aiohttp raises it for a line longer than its buffer
        if "chunk" not in str(error).lower():
            raise
        raise UnreachableError(f"{request}: {error}") from error
