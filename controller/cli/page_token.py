"""A short-lived token for the page, from the API server's TokenRequest, renewed before it expires."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from kubekit.client import Client
from kubekit.errors import ApiError, KubekitError
from kubekit.wire import DECODE_ERRORS, SERVICE_ACCOUNTS, Wire
from netperf.contract import PAGE_ACCOUNT, PAGE_AUDIENCE

LIFE_S = 600.0
"""The shortest that the API server issues."""
RENEWED_AFTER = 0.6


class _Status(Wire, frozen=True):
    token: str = ""


class _TokenRequest(Wire, frozen=True):
    status: _Status = _Status()


_decode_token_request = msgspec.json.Decoder(_TokenRequest).decode


class PageToken:
    """The token of a ServiceAccount for the page.

    Attributes:
        refused: why there is none; empty when there is one, or when the installation needs none.

    Args:
        client: of whoever asks; needs the right to ``create serviceaccounts/token`` of the account.
        namespace: netaware's own.
        clock: monotonic seconds.
    """

    def __init__(self, client: Client, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._namespace, self._clock = client, namespace, clock
        self._token, self._renew_at = "", float("-inf")
        self._lock = asyncio.Lock()
        self.refused = ""

    async def get(self) -> str:
        """The token; empty when there is none to be had, and then the page says whether it needs one."""
        async with self._lock:
            if self._clock() >= self._renew_at:
                await self._ask()
            return self._token

    async def _ask(self) -> None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [PAGE_AUDIENCE], "expirationSeconds": int(LIFE_S)},
        }
        path = SERVICE_ACCOUNTS.path(self._namespace, PAGE_ACCOUNT, "token")
        try:
            data = await self._client.request("POST", path, body=body)
            token = _decode_token_request(data).status.token
        except (KubekitError, *DECODE_ERRORS) as error:
            # An installation without this account needs no token.
            self.refused = "" if isinstance(error, ApiError) and error.not_found else str(error)
            self._renew_at = self._clock() + 30.0
            return
        self._token, self.refused = token, ""
        self._renew_at = self._clock() + LIFE_S * RENEWED_AFTER
