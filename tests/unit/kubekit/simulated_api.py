"""A simulated API server: real HTTP, list and watch with versions, and objects with optimistic concurrency.

It has faults that a real API server does not produce on demand: a version that is too old, a malformed object, a server
that accepts requests and never responds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, ConfigMap, Resource
from lab.polling import poll_until
from tests.support.tasks import running_tasks

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def run_server(handler: Handler) -> AsyncIterator[ClusterConfig]:
    """Serve all requests by a handler, on a free port of the loopback."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield ClusterConfig(server=f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


@asynccontextmanager
async def run_server_with_client(handler: Handler) -> AsyncIterator[Client]:
    """A client of a server that `run_server` starts."""
    async with run_server(handler) as config, Client(config) as client:
        yield client


class SimulatedApi:
    """The objects of one resource, its watches, and simulated faults.

    Attributes:
        objects: by name, as plain data with metadata.resourceVersion.
        requests: method and path with query of every request, oldest first; without streamed lists that are refused.
        fail_lists, fail_watches, fail_writes: error statuses of the next requests, in this order.
        may_respond: while cleared, the server accepts requests without a response.
        unresponsive_to: user agents that get no response.
        streams_lists: whether WatchList is served; else its status is 422.
        events_during_lists: events that a streamed list sends before its end.
    """

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.version = 100
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.fail_lists: list[int] = []
        self.fail_watches: list[int] = []
        self.fail_writes: list[int] = []
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.unresponsive_to: set[str] = set()
        self.page_size = 500
        self.streams_lists = False
        self.events_during_lists: list[dict[str, Any]] = []
        self._watches: list[asyncio.Queue[bytes | None]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ClusterConfig]:
        """Serve on a free port of the loopback."""
        async with run_server(self._handle) as config:
            try:
                yield config
            finally:
                self.end_watches()
                self.may_respond.set()

    def put(self, name: str, *, event: bool = True, metadata: Mapping[str, Any] = {}, **fields: Any) -> dict[str, Any]:
        """Create or change an object, and send an event to the watches."""
        self.version += 1
        type_ = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = {"metadata": {**metadata, "name": name, "resourceVersion": str(self.version)}, **fields}
        if event:
            self.send_event(type_, self.objects[name])
        return self.objects[name]

    def delete(self, name: str, *, event: bool = True) -> None:
        """Delete an object, and send an event to the watches."""
        self.version += 1
        deleted_object = self.objects.pop(name)
        deleted_object["metadata"]["resourceVersion"] = str(self.version)
        if event:
            self.send_event("DELETED", deleted_object)

    def send_event(self, type_: str, object_: dict[str, Any]) -> None:
        """Send an event to every open watch."""
        self.send_line(json.dumps({"type": type_, "object": object_}).encode() + b"\n")

    def send_line(self, line: bytes) -> None:
        """Send a line, which may be no event, to every open watch."""
        for queue in self._watches:
            queue.put_nowait(line)

    def end_watches(self, next_status: int = 0) -> None:
        """End every open watch, as a server does after a while; ``next_status`` is an error of the next watch."""
        self.fail_watches += [next_status] if next_status else []
        for queue in self._watches:
            queue.put_nowait(None)

    @property
    def watch_count(self) -> int:
        return len(self._watches)

    def count_requests(self, text: str) -> int:
        """Number of requests whose method and path contain a text."""
        return sum(text in request for request in self.requests)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("sendInitialEvents") and not self.streams_lists:
            return _make_status(422)
        self.requests.append(f"{request.method} {request.path_qs}")
        await self.may_respond.wait()
        while request.headers.get("User-Agent") in self.unresponsive_to:
            await asyncio.sleep(0.01)
        name = request.path.removeprefix(self.resource.path("ns")).strip("/")
        if request.method == "GET" and not name and request.query.get("watch"):
            return await self._watch(request)
        if request.method == "GET" and not name:
            return self._list(request)
        if request.method == "GET":
            return web.json_response(self.objects[name]) if name in self.objects else _make_status(404)
        return await self._write(request, name)

    def _list(self, request: web.Request) -> web.Response:
        if self.fail_lists:
            return _make_status(self.fail_lists.pop(0))
        names = sorted(self.objects)
        start = int(request.query.get("continue", "0"))
        page = names[start : start + self.page_size]
        meta = {"resourceVersion": str(self.version)}
        if start + self.page_size < len(names):
            meta["continue"] = str(start + self.page_size)
        return web.json_response({"items": [self.objects[name] for name in page], "metadata": meta})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self.fail_watches:
            return _make_status(self.fail_watches.pop(0))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._watches.append(queue)
        if request.query.get("sendInitialEvents"):
            end = {"resourceVersion": str(self.version), "annotations": {"k8s.io/initial-events-end": "true"}}
            events = [{"type": "ADDED", "object": self.objects[name]} for name in sorted(self.objects)]
            for event in (*events, *self.events_during_lists, {"type": "BOOKMARK", "object": {"metadata": end}}):
                queue.put_nowait(json.dumps(event).encode() + b"\n")
        try:
            while (line := await queue.get()) is not None:
                await response.write(line)
        finally:
            self._watches.remove(queue)
        return response

    async def _write(self, request: web.Request, name: str) -> web.Response:
        if self.fail_writes:
            return _make_status(self.fail_writes.pop(0))
        body = await request.json()
        expected_version = body.get("metadata", {}).get("resourceVersion", "")
        name = name or body["metadata"]["name"]
        stored = self.objects.get(name)
        if request.method == "POST" and stored is not None:
            return _make_status(409, "AlreadyExists")
        if request.method in {"PUT", "PATCH"} and stored is None:
            return _make_status(404)
        if stored is not None and expected_version and expected_version != stored["metadata"]["resourceVersion"]:
            return _make_status(409)
        fields = {**(stored or {}), **body} if request.method == "PATCH" else body
        return web.json_response(self.put(name, **fields))


class RunningReflector:
    """A running reflector, and the changes that it reported.

    Attributes:
        changes: key of the object, and ``added``, ``changed`` or ``deleted``.
    """

    def __init__(self, reflector: Reflector[ConfigMap]) -> None:
        self.reflector = reflector
        self.changes: list[tuple[str, str]] = []
        reflector.subscribe(self._record_change)

    @property
    def values(self) -> dict[str, str]:
        """Name -> value under the key ``v`` of each stored object."""
        return {key: (item.data or {}).get("v", "") for key, item in self.reflector.items.items()}

    def _record_change(self, key: str, old: ConfigMap | None, new: ConfigMap | None) -> None:
        self.changes.append((key, "added" if old is None else "deleted" if new is None else "changed"))


@asynccontextmanager
async def run_reflector(api: SimulatedApi, **selectors: str) -> AsyncIterator[RunningReflector]:
    async with api.running() as config, Client(config) as client:
        reflector: Reflector[ConfigMap] = Reflector(client, CONFIGMAPS, ConfigMap, namespace="ns", **selectors)
        running = RunningReflector(reflector)
        async with running_tasks(reflector.run()) as (task,):
            yield running
            assert not task.done(), "the reflector ended by itself"


@asynccontextmanager
async def run_watch(api: SimulatedApi) -> AsyncIterator[RunningReflector]:
    """A reflector with an open watch."""
    async with run_reflector(api) as running:
        await poll_until(lambda: api.watch_count == 1)
        yield running


def _make_status(code: int, reason: str = "") -> web.Response:
    """A Status object, as an API server sends it with an error."""
    reason = reason or {404: "NotFound", 409: "Conflict", 410: "Expired", 422: "Invalid"}.get(code, "ServerError")
    body = {"kind": "Status", "code": code, "reason": reason, "message": "simulated"}
    return web.json_response(body, status=code)
