"""Keeps the memory in a ConfigMap, so that a restart or another leader does not move again what was just moved."""

from __future__ import annotations

import msgspec

from controller.descheduler.memory import Memory
from controller.resources import FIELD_MANAGER
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, ConfigMap, Object

log = logs.get("controller.descheduler")

NAME, KEY = "netaware-descheduler", "memory.json"


class MemoryStore:
    """The ConfigMap ``netaware-descheduler`` in netaware's namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._written: Memory | None = None

    async def load(self) -> Memory:
        """Read it; an absent one is an empty memory, and so is one that does not read, which is said once.

        Raises:
            KubekitError: the API server does not answer, or does not allow it.
        """
        try:
            found = await self._client.get(CONFIGMAPS, NAME, ConfigMap, namespace=self._namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            return Memory()
        text = (found.data or {}).get(KEY, "{}")
        try:
            memory = msgspec.json.decode(text, type=Memory)
        except msgspec.MsgspecError as error:
            log.change("memory", str(error), "memory does not read and starts anew", configmap=NAME, error=error)
            return Memory()
        self._written = memory
        return memory

    async def save(self, memory: Memory) -> None:
        """Write it, unless it stands there already.

        Raises:
            KubekitError: it was not written.
        """
        if memory == self._written or (self._written is None and memory == Memory()):
            return
        data = {KEY: msgspec.json.encode(memory).decode()}
        metadata = {"name": NAME, "labels": {"app.kubernetes.io/part-of": "netaware"}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        await self._client.apply(CONFIGMAPS, NAME, body, Object, field_manager=FIELD_MANAGER, namespace=self._namespace)
        self._written = memory
