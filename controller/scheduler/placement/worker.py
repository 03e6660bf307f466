"""Plans in a separate process, so that plans do not delay the event loop, which renews the Lease.

The process stores hosts and the requests of their pods, so that a request contains only changes and the group. A message is its length and a
pickled pair of kind and content: ``hosts``, ``costs``, ``pods`` and ``plan`` to the process, ``plan`` or ``failed`` back. Hosts and pods
are sent in batches, because the event loop encodes them. A late or cancelled plan ends the process; the next request starts one.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import struct
import sys
from contextlib import suppress
from typing import Any, BinaryIO, cast

import msgspec

from controller.cluster.costs import CostTable
from controller.cluster.hosts import Host, NodeCache
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import Pod
from controller.cluster.resource_requests import Amounts
from controller.scheduler.placement.planner import Plan, PlanningError, plan_group
from controller.scheduler.placement.snapshot import GroupSnapshot
from kubekit import logs
from kubekit.runtime import compact_memory
from kubekit.stores import Store
from kubekit.wire import Node

log = logs.get("controller.scheduler.placement.worker")

BATCH_SIZE = 200
"""Hosts or pods that are encoded before the event loop runs other tasks."""
PLAN_TIME_LIMIT_S = 30.0
"""Deadline of a plan, from the request to the answer."""
START_TIMEOUT_S = 30.0
"""Time for the process to import its modules, beyond the deadline of its first plan."""
SEARCH_SHARE = 0.7
"""Share of the deadline after which the search ends at the latest, with the best placement so far."""
NICENESS = 5
"""Plans may use a whole core, which the event loop needs more."""
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
_READER_LIMIT_BYTES = 1 << 24
"""Limit of the buffer of answers; asyncio's default is smaller than the answer of a large group."""
_HEADER = struct.Struct(">I")
"""Length of a message."""


class PlanningProcess:
    """The client of the planning process: starts it when needed, and sends one request at a time.

    A request sends the changes of the node cache since the last request. ``time_limit_s`` is for one plan, from sending to the answer.
    """

    def __init__(self, node_cache: NodeCache, *, time_limit_s: float = PLAN_TIME_LIMIT_S) -> None:
        self._node_cache, self._time_limit_s = node_cache, time_limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._changed_nodes: set[str] = set()
        """Nodes whose host or requested resources the process does not have yet."""
        self._costs: CostTable | None = None
        """The costs that the process has."""
        self._lock = asyncio.Lock()

    def subscribe_to(self, nodes: Store[Node], pods: Store[PodInfo]) -> None:
        """Send later changes of these stores with the next request. The node cache must have subscribed to them before."""
        nodes.subscribe(lambda key, _old, _new: self._changed_nodes.add(key))
        pods.subscribe(self._on_pod_change)

    def _on_pod_change(self, _: str, old: PodInfo | None, new: PodInfo | None) -> None:
        self._changed_nodes.update(pod.occupied_node for pod in (old, new) if pod is not None and pod.occupied_node)

    async def plan(self, snapshot: GroupSnapshot, search_s: float = PLAN_TIME_LIMIT_S) -> Plan:
        """Plan a group, see `plan_group`. The search ends after ``search_s`` seconds, at most `SEARCH_SHARE` of the deadline.

        Raises:
            PlanningError: the deadline passed, the process ended, or the plan failed in it.
        """
        async with self._lock:
            try:
                start_s = 0.0 if self._is_running() else START_TIMEOUT_S
                process = await self._ensure_started()
                async with asyncio.timeout(start_s + self._time_limit_s):
                    search_s = min(search_s, SEARCH_SHARE * self._time_limit_s)
                    kind, answer = await self._request_plan(process, snapshot, search_s)
            except TimeoutError:
                await self.stop()
                raise PlanningError("DeadlineExceeded", f"no plan was found within {self._time_limit_s:g} s") from None
            except (OSError, EOFError) as error:
                await self.stop()
                raise PlanningError("PlannerFailed", f"the planner's process ended ({type(error).__name__})") from error
            except asyncio.CancelledError:
                # The process cannot be used any more, because part of a message may be in the pipe.
                await self.stop()
                raise
        if kind == "failed":
            log.error("a plan failed", error=answer)
            raise PlanningError("PlannerFailed", f"the planner failed: {str(answer).splitlines()[-1]}")
        return cast("Plan", answer)

    async def _request_plan(
        self, process: asyncio.subprocess.Process, snapshot: GroupSnapshot, search_s: float
    ) -> tuple[str, Any]:
        """The kind and content of the process' answer."""
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None
        names, self._changed_nodes = sorted(self._changed_nodes), set()
        hosts, requested = self._node_cache.hosts, self._node_cache.requested
        for begin in range(0, len(names), BATCH_SIZE):
            batch = [(name, hosts.get(name), requested.get(name, {})) for name in names[begin : begin + BATCH_SIZE]]
            await self._send(requests, "hosts", batch)
        if snapshot.costs is not self._costs:
            self._costs = snapshot.costs
            await self._send(requests, "costs", snapshot.costs)
        for begin in range(0, len(snapshot.pods), BATCH_SIZE):
            await self._send(requests, "pods", snapshot.pods[begin : begin + BATCH_SIZE])
        without_parts = msgspec.structs.replace(snapshot, pods=(), hosts={}, used={}, costs=CostTable())
        await self._send(requests, "plan", (without_parts, search_s))
        (size,) = _HEADER.unpack(await answers.readexactly(_HEADER.size))
        return cast("tuple[str, Any]", pickle.loads(await answers.readexactly(size)))

    def _is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _ensure_started(self) -> asyncio.subprocess.Process:
        if self._process is None or not self._is_running():
            command = (sys.executable, "-m", "controller.scheduler.placement.worker")
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, limit=_READER_LIMIT_BYTES
            )
            self._changed_nodes, self._costs = set(self._node_cache.hosts), None
        return self._process

    @staticmethod
    async def _send(stream: asyncio.StreamWriter, kind: str, content: object) -> None:
        stream.write(_encode_message(kind, content))
        await stream.drain()
        await asyncio.sleep(0)

    async def stop(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())


class PlanningWorker:
    """The server in the planning process: stores hosts, their requested resources and costs, and plans one request at a time."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._requested: dict[str, Amounts] = {}
        self._costs = CostTable()
        self._pods: list[Pod] = []

    def store_part(self, kind: str, content: Any) -> None:
        """Store a part of the next snapshot: ``hosts``, ``costs`` or ``pods``."""
        match kind:
            case "hosts":
                for name, host, requested in content:
                    if host is None:
                        self._hosts.pop(name, None)
                        self._requested.pop(name, None)
                    else:
                        self._hosts[name], self._requested[name] = host, requested
            case "costs":
                self._costs = content
            case "pods":
                self._pods += content

    def plan(self, snapshot: GroupSnapshot, search_s: float) -> Plan:
        """Plan a snapshot that was sent without the stored parts; the stored pods are dropped."""
        pods, self._pods = self._pods, []
        parts = {"pods": pods, "hosts": self._hosts, "used": self._requested, "costs": self._costs}
        return plan_group(msgspec.structs.replace(snapshot, **parts), time_limit_s=search_s)


def main() -> None:
    """Answer requests from standard input until it ends."""
    # The kernel ends this process when its parent ends, because its plan then has no reader.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(NICENESS)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    # Printed text must not mix with the answers.
    sys.stdout = sys.stderr
    worker = PlanningWorker()
    while (message := _read_message(source)) is not None:
        kind, content = message
        if kind != "plan":
            worker.store_part(kind, content)
            continue
        try:
            answer = _encode_message("plan", worker.plan(*content))
        except Exception as error:
            # An error of one group must not stop the plans of others.
            answer = _encode_message("failed", f"{type(error).__name__}: {error}")
        sink.write(answer)
        sink.flush()
        # Garbage is collected between plans, because a collection within a plan takes as long as the plan.
        del answer, content, message
        compact_memory(
            everything=False
        )  # Without hosts, which have no reference cycles: the next request may wait already.


def _encode_message(kind: str, content: object) -> bytes:
    data = pickle.dumps((kind, content), pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(data)) + data


def _read_message(source: BinaryIO) -> tuple[str, Any] | None:
    header = source.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    return cast("tuple[str, Any]", pickle.loads(source.read(_HEADER.unpack(header)[0])))


if __name__ == "__main__":
    main()
