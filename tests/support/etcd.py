"""Writes objects into etcd without the API server: forty thousand in a minute instead of an hour.

The API server reads JSON from etcd besides its own encoding, and sees the objects by its watch.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import ssl
import uuid
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import aiohttp

from lab.controlplane import ControlPlane
from lab.errors import BootError

BATCH = 100
"""etcd limits a request to 128 operations and 1.5 MiB."""
_AT_ONCE = 4
_TIMEOUT_S = 60.0

Item = tuple[str, dict[str, Any]]
"""Key below ``/registry/``, and object."""


def create_client_context(plane: ControlPlane) -> ssl.SSLContext:
    pki = plane.authority.folder
    context = ssl.create_default_context(cafile=str(plane.authority.certificate))
    context.load_cert_chain(str(pki / "etcd.crt"), str(pki / "etcd.key"))
    return context


async def write_objects(plane: ControlPlane, items: Iterable[Item]) -> int:
    """Write objects; returns their number. Raises an ExceptionGroup of BootErrors if etcd refuses one."""
    batches, count = _batches(items), 0
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        context = create_client_context(plane)

        async def writer() -> None:
            nonlocal count
            for batch in batches:
                body = {
                    "success": [{"requestPut": {"key": _encode(key), "value": _encode(value)}} for key, value in batch]
                }
                async with session.post(f"{plane.etcd}/v3/kv/txn", json=body, ssl=context) as answer:
                    if answer.status != 200:
                        raise BootError(f"etcd: {answer.status} {(await answer.text())[:500]}")
                count += len(batch)

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(writer())
    return count


def _batches(items: Iterable[Item]) -> Iterator[list[tuple[str, str]]]:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    rest = iter(items)
    while batch := list(islice(rest, BATCH)):
        for _, body in batch:
            body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now}
        yield [(f"/registry/{key}", json.dumps(body)) for key, body in batch]


def _encode(value: str) -> str:
    return base64.b64encode(value.encode()).decode()
