"""Evictions: what the API server's answers mean, and a dry-run that books budgets; against a simulated API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from controller.descheduler.decision import Move
from controller.descheduler.evict import evict, why_outdated
from kubekit.client import Client
from kubekit.config import ClusterConfig
from tests.unit.controller.descheduling import node, pod

Answer = tuple[int, dict[str, Any], dict[str, str]]
FINE: Answer = (201, {"kind": "Status", "status": "Success"}, {})


def status(code: int, reason: str = "", message: str = "", cause: str = "", retry: str = "") -> Answer:
    details = {"causes": [{"reason": cause}]} if cause else {}
    headers = {"Retry-After": retry} if retry else {}
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}, headers


def move(name: str = "p") -> Move:
    return Move(
        pod=f"default/{name}",
        uid=f"uid-default-{name}",
        workload="default/Deployment/w",
        node="n",
        target="m",
        strategy="LowNodeLoad",
        reason="r",
    )


@asynccontextmanager
async def api(answer: Callable[[], Answer]) -> AsyncIterator[tuple[Client, list[tuple[str, dict[str, Any]]]]]:
    """A simulated API server's eviction subresource, and the requests that it got."""
    seen: list[tuple[str, dict[str, Any]]] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append((str(request.rel_url), await request.json()))
        code, body, headers = answer()
        return web.Response(
            status=code, body=msgspec.json.encode(body), headers=headers, content_type="application/json"
        )

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(ClusterConfig(f"http://127.0.0.1:{runner.addresses[0][1]}"), timeout_s=2) as client:
            yield client, seen
    finally:
        await runner.cleanup()


async def test_an_eviction_names_the_uid_that_was_planned() -> None:
    async with api(lambda: FINE) as (client, seen):
        result = await evict(client, move())
    assert result.kind == "evicted"
    ((path, body),) = seen
    assert path == "/api/v1/namespaces/default/pods/p/eviction"
    assert body["deleteOptions"] == {"preconditions": {"uid": "uid-default-p"}}


@pytest.mark.parametrize(
    ("answer", "kind", "ends_round"),
    [
        (status(429, "TooManyRequests", "budget", cause="DisruptionBudget", retry="10"), "disruption-budget", False),
        (status(429, "TooManyRequests", "busy", retry="7"), "throttled", True),
        (status(503, "ServiceUnavailable", "", retry="3"), "throttled", True),
        (status(404, "NotFound"), "gone", False),
        (status(409, "Conflict", "the UID in the precondition does not match"), "gone", False),
        (status(403, "Forbidden"), "forbidden", False),
        (status(500, "InternalError", "This pod has more than one PodDisruptionBudget"), "refused", False),
    ],
)
async def test_what_the_answers_mean(answer: Answer, kind: str, *, ends_round: bool) -> None:
    async with api(lambda: answer) as (client, _):
        result = await evict(client, move())
    assert (result.kind, result.ends_round) == (kind, ends_round)


async def test_no_answer_is_neither_done_nor_refused() -> None:
    async with api(lambda: FINE) as (client, _):
        pass
    async with Client(client.config, timeout_s=1) as alone:
        assert (await evict(alone, move())).kind == "unknown"


async def test_a_dry_run_asks_the_api_server_without_evicting() -> None:
    async with api(lambda: FINE) as (client, seen):
        assert (await evict(client, move(), dry_run=True)).kind == "dry-run"
    assert [path for path, _ in seen] == ["/api/v1/namespaces/default/pods/p/eviction?dryRun=All"]
    async with api(lambda: status(403, "Forbidden", "no")) as (client, _):
        assert (await evict(client, move(), dry_run=True)).kind == "forbidden"


@pytest.mark.parametrize(("unschedulable", "ready"), [(True, True), (False, False)])
def test_a_move_whose_target_takes_no_pods_any_more_is_none(unschedulable: bool, ready: bool) -> None:
    pods, nodes = {"default/p": pod("p", "n")}, {"n": node("n"), "m": node("m")}
    assert why_outdated(move(), pods, nodes) == ""
    nodes["m"] = node("m", unschedulable=unschedulable, ready=ready)
    assert why_outdated(move(), pods, nodes) == "node m, where it was to go, takes no pods any more"
