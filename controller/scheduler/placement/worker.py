"""Plans in a process of their own: whatever a group asks of the planner, the event loop and the Lease go on.

The process stores the hosts and what is used of them, so that a question carries only the group; of hosts that a plan cannot
tell apart (`NodeEquivalenceClasses`) it plans over no more than the group has pods. Messages are pickled and framed by their length; large ones go
in pieces, since encoding is the one part of a plan that the event loop has to do. A plan that is not there in time ends the
process; the next question starts another.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import pickle
import signal
import struct
import sys
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO

import msgspec

from controller.cluster.costs import CostTable
from controller.cluster.hosts import FreeCapacity, Host, NodeCache
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import GroupPod, NodeSelector
from controller.cluster.requests import Amounts
from controller.scheduler.affinity import HOSTNAME_LABEL
from controller.scheduler.placement.planner import GroupSnapshot, Plan, PlanningError, plan_group
from kubekit import logs
from kubekit.runtime import compact_memory
from kubekit.stores import Store
from kubekit.wire import Node

log = logs.get("controller.scheduler.placement.worker")

PIECE = 200
"""Hosts, or entries of a list or map, that are encoded between two looks at the event loop: about 2 ms."""
FEW_ENOUGH = 0.5
"""Of all hosts, so many may a question be about, and a table of these alone is worth making."""
DEADLINE_S = 30.0
SEARCH_SHARE = 0.7
"""Of the deadline, the longest search, which then gives what it has."""
START_S = 60.0
"""For the process to begin and to learn of all hosts."""
NICENESS, PR_SET_PDEATHSIG = 5, 1
_HEADER = struct.Struct(">I")
_OWN_FIELDS = frozenset({"hosts", "used", "room"})


class PlanningProcess:
    """The event loop's end: starts the process when it is needed, keeps its store, asks one question at a time.

    Args:
        node_cache: the hosts; `follow` keeps track of what has changed since the process was told.
        deadline_s: for one plan, the way there and back included.
    """

    def __init__(self, node_cache: NodeCache, *, deadline_s: float = DEADLINE_S) -> None:
        self._node_cache, self._deadline_s = node_cache, deadline_s
        self._process: asyncio.subprocess.Process | None = None
        self._dirty: set[str] = set()
        self._costs: CostTable | None = None
        self._lock = asyncio.Lock()

    def follow(self, nodes: Store[Node], pods: Store[PodInfo]) -> None:
        """Note every change from now on; subscribe the fleet first."""
        nodes.subscribe(lambda key, _old, _new: self._dirty.add(key))
        pods.subscribe(self._mark_changed)

    def _mark_changed(self, _: str, old: PodInfo | None, new: PodInfo | None) -> None:
        self._dirty.update(pod.occupied_node for pod in (old, new) if pod is not None and pod.occupied_node)

    async def solve(self, snapshot: GroupSnapshot, search_s: float = math.inf) -> Plan:
        """Have a plan made, see `plan_group`. The search ends after ``search_s`` with what it has found.

        Raises:
            PlanningError: it was not there in time, or the process failed.
        """
        async with self._lock:
            try:
                return await self._ask(snapshot, search_s)
            except TimeoutError:
                await self.stop()
                raise PlanningError(
                    "DeadlineExceeded",
                    f"no plan was found within {self._deadline_s:g} s",
                ) from None
            except (OSError, EOFError, asyncio.IncompleteReadError) as error:
                await self.stop()
                raise PlanningError("PlannerFailed", f"the planner's process ended ({type(error).__name__})") from error
            except asyncio.CancelledError:
                # Half a message may be on its way: what is left of the process is of no use.
                await self.stop()
                raise

    async def _ask(self, snapshot: GroupSnapshot, search_s: float) -> Plan:
        fresh = self._process is None or self._process.returncode is not None
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        fields = {f: getattr(snapshot, f) for f in snapshot.__struct_fields__ if f not in _OWN_FIELDS}
        if fields["costs"] is self._costs:
            del fields["costs"]
        self._costs = snapshot.costs
        if fresh:
            # The clock of the plan runs from the question on: a process that has just begun has its modules to read first.
            async with asyncio.timeout(START_S):
                await self._tell_hosts(process.stdin)
                await self._send(process.stdin, ("ready", None))
                await _receive(process.stdout)
        async with asyncio.timeout(self._deadline_s):
            await self._tell_hosts(process.stdin)
            for name, value in fields.items():
                for piece in _pieces(value):
                    await self._send(process.stdin, ("field", (name, piece)))
            await self._send(process.stdin, ("plan", min(SEARCH_SHARE * self._deadline_s, search_s)))
            kind, answer = await _receive(process.stdout)
        if kind == "failed":
            log.error("a plan failed", error=answer)
            raise PlanningError("PlannerFailed", f"the planner failed: {str(answer).splitlines()[-1]}")
        plan: Plan = answer
        return plan

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            command = (sys.executable, "-m", "controller.scheduler.placement.worker")
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 24)
            self._dirty, self._costs = set(self._node_cache.hosts), None
        return self._process

    async def _tell_hosts(self, stream: asyncio.StreamWriter) -> None:
        names, self._dirty = sorted(self._dirty), set()
        for begin in range(0, len(names), PIECE):
            batch = [
                (name, self._node_cache.hosts.get(name), self._node_cache.used.get(name, {}))
                for name in names[begin : begin + PIECE]
            ]
            await self._send(stream, ("hosts", batch))

    @staticmethod
    async def _send(stream: asyncio.StreamWriter, message: object) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        stream.write(_HEADER.pack(len(data)) + data)
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


async def _receive(stream: asyncio.StreamReader) -> tuple[str, Any]:
    (size,) = _HEADER.unpack(await stream.readexactly(_HEADER.size))
    kind, pieces = pickle.loads(await stream.readexactly(size))
    if kind != "plan":
        return kind, pieces
    fields: dict[str, Any] = {}
    for _ in range(pieces):
        (size,) = _HEADER.unpack(await stream.readexactly(_HEADER.size))
        name, piece = pickle.loads(await stream.readexactly(size))
        _join(fields, name, piece)
        await asyncio.sleep(0)
    return kind, Plan(**fields)


def _pieces(value: object) -> Iterator[object]:
    """A value, or the parts of a long list or map, to be put together by `_join`."""
    if isinstance(value, list | tuple) and len(value) > PIECE:
        yield from (value[begin : begin + PIECE] for begin in range(0, len(value), PIECE))
    elif isinstance(value, Mapping) and len(value) > PIECE:
        items = list(value.items())
        yield from (dict(items[begin : begin + PIECE]) for begin in range(0, len(items), PIECE))
    else:
        yield value


def _join(fields: dict[str, Any], name: str, piece: Any) -> None:
    if name not in fields:
        fields[name] = piece
    elif isinstance(piece, Mapping):
        fields[name] = {**fields[name], **piece} if not isinstance(fields[name], dict) else fields[name] | piece
    else:
        fields[name] = (*fields[name], *piece)


class PlanningWorker:
    """The process's end: a store of the hosts, and one question at a time."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._used: dict[str, Amounts] = {}
        self._free_capacity: FreeCapacity | None = None
        self._fields: dict[str, Any] = {}
        self._costs = CostTable()
        self._alike = NodeEquivalenceClasses()

    def take(self, kind: str, content: Any) -> Iterable[tuple[str, Any]]:
        """Take a message; the messages to answer with."""
        match kind:
            case "hosts":
                self._take_hosts(content)
            case "ready":
                return [("ready", None)]
            case "field":
                _join(self._fields, *content)
            case "plan":
                return self._plan(content)
        return ()

    def _take_hosts(self, batch: Iterable[tuple[str, Host | None, Amounts]]) -> None:
        for name, host, used in batch:
            self._alike.take(name, host, used)
            if host is None:
                self._hosts.pop(name, None)
                self._used.pop(name, None)
                self._free_capacity = None
                continue
            if self._hosts.get(name) != host:
                self._free_capacity = None
            self._hosts[name] = host
            if self._free_capacity is not None:
                before = self._used.get(name, {})
                self._free_capacity.take(
                    name, {r: used.get(r, 0) - before.get(r, 0) for r in used.keys() | before.keys()}
                )
            self._used[name] = used

    def _plan(self, deadline_s: float) -> Iterable[tuple[str, Any]]:
        # Costs are sent when they are other than those of the question before.
        self._costs = self._fields.get("costs", self._costs)
        fields, self._fields = self._fields | {"costs": self._costs}, {}
        snapshot = self._among(GroupSnapshot(**fields, hosts=self._hosts, used=self._used))
        plan = plan_group(snapshot, deadline_s=deadline_s)
        answers = [(n, piece) for n in plan.__struct_fields__ for piece in _pieces(getattr(plan, n))]
        return [("plan", len(answers)), *answers]

    def _among(self, snapshot: GroupSnapshot) -> GroupSnapshot:
        """The question about as many hosts as it takes: those that are spoken of by name, and of each kind one more per pod."""
        count = sum(not pod.over for pod in snapshot.pods) + sum(snapshot.replicas.values())
        spoken_of = {target.node for target in (*snapshot.previous.values(), *snapshot.released.values())}
        spoken_of.update(
            *snapshot.refused.values(), snapshot.promised, (snapshot.assigned_nodes or {}).values(), snapshot.hot
        )
        spoken_of.update(pod.spec.node_name for pod in snapshot.pods)
        spoken_of.update(*(others.nodes for others in snapshot.foreign))
        volumes = [snapshot.volumes.get(pod.metadata.key, ()) for pod in snapshot.pods if pod.waiting]
        names = [] if names_hosts(snapshot.pods, volumes) else self._alike.enough(count, spoken_of)
        if not names or len(names) > FEW_ENOUGH * len(self._hosts):
            if self._free_capacity is None:
                self._free_capacity = FreeCapacity(self._hosts, self._used)
            return msgspec.structs.replace(snapshot, free_capacity=self._free_capacity)
        hosts, used = part_of(self._hosts, self._used, names)
        return msgspec.structs.replace(snapshot, hosts=hosts, used=used, free_capacity=FreeCapacity(hosts, used))


def main() -> None:
    """Answer questions from standard input until it ends."""
    die_with_parent()
    os.nice(NICENESS)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    # What somebody prints must not get among the answers.
    sys.stdout = sys.stderr
    planner = PlanningWorker()
    while (message := _read(source)) is not None:
        try:
            answers = list(planner.take(*message))
        except Exception as error:
            if message[0] != "plan":
                # Nobody waits for an answer, and what it was about the cluster is lost: a new process is told everything.
                raise
            # Whatever a group made the planner fail with: the next one is answered.
            answers = [("failed", f"{type(error).__name__}: {error}")]
        for answer in answers:
            data = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
            sink.write(_HEADER.pack(len(data)) + data)
        sink.flush()
        if answers:
            # While nobody waits: in a plan, going through what it made for what may go would take as long as the plan. Hosts that
            # were known before are left out: nothing among them refers to itself, and the next plan may wait already.
            del answers
            compact_memory(everything=False)


def die_with_parent() -> None:
    """A plan that is being made is of no use to anybody once the manager is gone (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(source: BinaryIO) -> tuple[str, Any] | None:
    header = source.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    message: tuple[str, Any] = pickle.loads(source.read(_HEADER.unpack(header)[0]))
    return message


_NAMES = (HOSTNAME_LABEL.encode(), b"matchFields")


class NodeEquivalenceClasses:
    """Kinds of hosts that a plan cannot tell apart, kept up to date host by host.

    Two hosts are alike when they are in the same place, have the same labels but for their names, the same taints, and the
    same amounts, free and taken. A group of n pods can use at most n of them, so leaving out the others changes no plan's
    worth: of ten thousand hosts in a few sizes, a plan needs to look at no more of each kind than it has pods.
    """

    def __init__(self) -> None:
        self._kind_of: dict[str, Hashable] = {}
        self._members: dict[Hashable, dict[str, None]] = defaultdict(dict)

    def take(self, name: str, host: Host | None, used: Mapping[str, int]) -> None:
        """A host came, changed, or is gone (None)."""
        before = self._kind_of.pop(name, None)
        if before is not None:
            self._members[before].pop(name, None)
            if not self._members[before]:
                del self._members[before]
        if host is None:
            return
        labels = frozenset(item for item in host.labels.items() if item[1] != name)
        kind = (
            host.location,
            labels,
            host.taints,
            _fixed(host.allocatable),
            _fixed(used),
            host.schedulable,
            host.closing,
        )
        self._kind_of[name] = kind
        self._members[kind][name] = None

    def enough(self, count: int, always: Collection[str]) -> list[str]:
        """Names of those that are always to be there, and of at most so many others of each kind.

        Others, since of a host that is spoken of more is known than its kind: it was refused, or promised to another group.
        """
        spoken_of = {name for name in always if name in self._kind_of}
        found = set(spoken_of)
        for members in self._members.values():
            found.update(islice((name for name in members if name not in spoken_of), count))
        return sorted(found)


def _fixed(amounts: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset(item for item in amounts.items() if item[1])


def names_hosts(pods: Iterable[GroupPod], volumes: Iterable[Sequence[NodeSelector]] = ()) -> bool:
    """Whether any pod, or what its volumes demand, asks for hosts by name, for which no two are alike."""
    if any(name in msgspec.json.encode(demands) for demands in volumes for name in _NAMES):
        return True
    for pod in pods:
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        asked = msgspec.json.encode((pod.spec.node_selector, affinity)) if pod.spec.node_selector or affinity else b""
        if any(name in asked for name in _NAMES):
            return True
    return False


def part_of(
    hosts: Mapping[str, Host], used: Mapping[str, Amounts], names: Iterable[str]
) -> tuple[dict[str, Host], dict[str, Amounts]]:
    """The same cluster with these hosts alone."""
    chosen = {name: hosts[name] for name in names}
    return chosen, {name: used[name] for name in chosen if name in used}


if __name__ == "__main__":
    main()
