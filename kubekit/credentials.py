"""Credentials that change while a program runs: token files, and providers such as log-in plugins."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from kubekit.errors import ConfigError

MAX_TOKEN_AGE_S = 60.0
"""Time after which a token file is read again, because bound tokens rotate (hourly by default)."""


class TokenFile:
    """Reads a bearer token from a file that may change."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._token, self._read_at = "", 0.0

    def __call__(self) -> str:
        """The token, older than `MAX_TOKEN_AGE_S` only if the file cannot be read any more. Raises ConfigError if none was ever read."""
        if self._clock() - self._read_at >= MAX_TOKEN_AGE_S or not self._token:
            try:
                self._token = self._path.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                if not self._token:
                    raise ConfigError(str(self._path), f"token cannot be read: {error}") from error
            self._read_at = self._clock()
        return self._token


class Credential(NamedTuple):
    """Credentials of a request: a bearer token, an SSL context with a client certificate, or both."""

    token: str = ""
    ssl_context: ssl.SSLContext | None = None


class CredentialProvider(Protocol):
    """Provides the credential of each request."""

    async def get_credential(self) -> Credential:
        """The credential for a request that starts now. Raises CredentialError if there is none."""
        ...

    def discard(self, credential: Credential) -> None:
        """Discard a credential that the API server refused."""
        ...
