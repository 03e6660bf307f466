"""What the installed definitions can do: ours have a status subresource and conditions, upstream's have neither.

Asked of discovery, which everybody may read, so that no permission on CustomResourceDefinitions is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from kubekit.client import Client
from kubekit.wire import Resource, Wire

_ASK_AGAIN_S = 120.0


class _ApiResource(Wire, frozen=True):
    name: str = ""


class _ApiResourceList(Wire, frozen=True):
    resources: list[_ApiResource] = []


class Capabilities:
    """Answers about definitions, remembered for two minutes."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._known: dict[Resource, tuple[float, bool]] = {}

    async def has_status(self, resource: Resource) -> bool:
        """Whether the resource has a status subresource, and with it our conditions.

        Raises:
            KubekitError: discovery could not be read; ApiError 404 when the group is not installed.
        """
        asked_at, answer = self._known.get(resource, (float("-inf"), False))
        if self._clock() - asked_at < _ASK_AGAIN_S:
            return answer
        body = await self._client.request("GET", f"/apis/{resource.api_version}")
        served = msgspec.json.decode(body, type=_ApiResourceList).resources
        answer = any(entry.name == f"{resource.plural}/status" for entry in served)
        self._known[resource] = (self._clock(), answer)
        return answer
