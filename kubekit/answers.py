"""Decodes the API server's answers: watch events, list pages, errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import aiohttp
import msgspec

from kubekit.errors import ApiError, MalformedObjectError, NotLeaderError, SilentWatchError, UnreachableError
from kubekit.waiting import CooperativeYield
from kubekit.wire import DECODE_ERRORS, ListMeta, Wire

T = TypeVar("T")


class WatchEvent(msgspec.Struct, gc=False, frozen=True):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, with the object undecoded."""

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
    """metav1.Status, the API server's way to say what went wrong."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None

    def to_error(self, fallback_code: int, retry_after: str | None = None) -> ApiError:
        """Convert to an exception; ``retry_after`` is the HTTP header, in seconds."""
        details = self.details or _Details()
        wait = float(retry_after) if retry_after and retry_after.isdigit() else details.retry_after_seconds
        return ApiError(
            self.code or fallback_code,
            self.reason,
            self.message,
            retry_after_s=float(wait) if wait else None,
            causes=tuple(c.reason for c in details.causes or ()),
        )


_decode_status = msgspec.json.Decoder(Status).decode


class RawPage(msgspec.Struct, gc=False, frozen=True):
    """One page of a list, items undecoded, so that one malformed object fails alone."""

    items: list[msgspec.Raw] = []
    metadata: ListMeta = ListMeta()


async def read_events(answer: aiohttp.ClientResponse, silence_s: float) -> AsyncIterator[WatchEvent]:
    """The events of a watch, as they come.

    Raises:
        SilentWatchError: nothing came for so long.
    """
    decoder, maybe_yield = msgspec.json.Decoder(WatchEvent), CooperativeYield()
    while True:
        # A line that is there already is read without a pause, and there may be a thousand of them.
        await maybe_yield()
        try:
            async with asyncio.timeout(silence_s):
                line = await answer.content.readline()
        except TimeoutError as error:
            raise SilentWatchError(f"WATCH {answer.url.path}: silent for {silence_s:.0f} s") from error
        if not line:
            return
        if line.strip():
            yield decoder.decode(line)


def decode_answer(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    """An object of the asked type.

    Raises:
        MalformedObjectError: it is none.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except DECODE_ERRORS as error:
        msg = f"cannot read {type_.__name__}: {error}"
        raise MalformedObjectError(msg) from error


def error_of(answer: aiohttp.ClientResponse, data: bytes) -> ApiError:
    """The exception for an answer with an error status."""
    try:
        status = _decode_status(data)
    except DECODE_ERRORS:
        status = Status(answer.status, "", data[:200].decode("utf-8", "replace").strip() or str(answer.reason))
    if answer.status >= 500:
        # After a server error, a refusal in the body is ignored: the outcome of a write is unknown.
        status = msgspec.structs.replace(status, code=answer.status)
    return status.to_error(answer.status, answer.headers.get("Retry-After"))


@contextmanager
def translated(method: str, path: str) -> Iterator[None]:
    """Turn errors of aiohttp and asyncio into UnreachableError, with the request's name."""
    what = f"{method} {path}"
    try:
        yield
    except TimeoutError as error:
        raise UnreachableError(f"{what}: no answer in time") from error
    except (aiohttp.ClientError, ssl.SSLError, OSError, asyncio.IncompleteReadError) as error:
        if isinstance(error, aiohttp.ClientConnectionError) and isinstance(error.__cause__, NotLeaderError):
            raise error.__cause__ from None
        raise UnreachableError(f"{what}: {str(error) or type(error).__name__}") from error
    except DECODE_ERRORS as error:
        raise MalformedObjectError(f"{what}: {error}") from error
    except ValueError as error:
        if "chunk" not in str(error).lower():
            raise
        raise UnreachableError(f"{what}: {error}") from error
