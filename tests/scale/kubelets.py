"""Played kubelets: a stand-in for ten thousand of them, with one watch for all.

What is bound to a node is reported Running and Ready at once, what is to go is gone at once, and every node's status is reported
now and then. They hold one watch on all pods instead of one each, and no Leases. kwok would list the pods of each node by
itself when it meets the node: 0.4 s of the API server's time for each of ten thousand, more than an hour.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from kubekit.client import STRATEGIC_PATCH, Client
from kubekit.errors import ApiError, KubekitError
from kubekit.reflector import Reflector
from kubekit.wire import NODES, PODS, Object, Wire
from kubekit.workqueue import WorkQueue
from tests.scale.objects import CONDITIONS, running_status

STATUS_EVERY_S = 1200.0
"""Of each node. A kubelet reports an unchanged status every 5 minutes, which are 33 writes of 5 kB a second of ten thousand."""
_WORKERS = 4
_LOOK_AGAIN_S = 2.0
_BASE_S, _CAP_S = 0.2, 5.0


class _Container(Wire, frozen=True):
    name: str = ""
    image: str = ""


class _Spec(Wire, frozen=True):
    node_name: str = ""
    containers: list[_Container] = []


class _Status(Wire, frozen=True):
    phase: str = ""


class BoundPod(Object, frozen=True):
    """What a kubelet reads of a pod."""

    spec: _Spec = _Spec()
    status: _Status = _Status()


class Task(msgspec.Struct, frozen=True):
    """What a pod's kubelet has to do: end it, or start it."""

    namespace: str
    name: str
    uid: str
    node: str
    containers: tuple[tuple[str, str], ...]
    ends: bool


def task_of(pod: BoundPod) -> Task | None:
    """What is to be done for a pod on a node; nothing for one that runs, or has ended."""
    ends = bool(pod.metadata.deletion_timestamp)
    if not pod.spec.node_name or (not ends and pod.status.phase != "Pending"):
        return None
    return Task(
        pod.metadata.namespace,
        pod.metadata.name,
        pod.metadata.uid,
        pod.spec.node_name,
        tuple((c.name, c.image) for c in pod.spec.containers),
        ends,
    )


class Kubelets:
    """All of them.

    Args:
        client: with the rights of kubelets; its own, since what it sends waits for nothing else.
        nodes: names, as they are now.
        silent: whether a node is out of reach, so that its kubelet does nothing that anybody sees.
    """

    def __init__(self, client: Client, nodes: Callable[[], list[str]], silent: Callable[[str], bool]) -> None:
        self._client, self._nodes, self._silent = client, nodes, silent
        self._queue = WorkQueue()
        self._store: Reflector[Task] = Reflector(
            client, PODS, BoundPod, field_selector="spec.nodeName!=", transform=task_of
        )
        self._store.subscribe(lambda key, _old, new: None if new is None else self._queue.add(key))
        self._numbers = itertools.count()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._store.run())
            group.create_task(self._report())
            for _ in range(_WORKERS):
                group.create_task(self._queue.work(self._do, name="kubelets", base_s=_BASE_S, cap_s=_CAP_S))

    async def _do(self, key: str) -> float | None:
        task = self._store.get(key)
        if task is None:
            return None
        if self._silent(task.node):
            return _LOOK_AGAIN_S
        if task.ends:
            await self._client.delete(PODS, task.name, namespace=task.namespace, grace_period_s=0)
            return None
        number = next(self._numbers)
        address = f"10.{64 + (number >> 16 & 63)}.{number >> 8 & 255}.{number & 255}"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # The uid, so that a pod of the same name that came meanwhile is not meant.
        body = {"metadata": {"uid": task.uid}, "status": running_status(task.containers, address, now)}
        try:
            await self._client.patch(
                PODS, task.name, body, Object, kind=STRATEGIC_PATCH, namespace=task.namespace, subresource="status"
            )
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise
        return None

    async def _report(self) -> None:
        """One node after the other, evenly."""
        for turn in itertools.count():
            nodes = self._nodes()
            await asyncio.sleep(STATUS_EVERY_S / max(1, len(nodes)))
            node = nodes[turn % len(nodes)] if nodes else ""
            if not node or self._silent(node):
                continue
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            body: dict[str, Any] = {
                "status": {"conditions": [{"type": kind, "lastHeartbeatTime": now} for kind in CONDITIONS]}
            }
            # It was replaced meanwhile, or nobody answers; the next report is due anyway.
            with suppress(KubekitError):
                await self._client.patch(NODES, node, body, Object, kind=STRATEGIC_PATCH, subresource="status")
