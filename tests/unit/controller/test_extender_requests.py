"""Requests to the extender: unusual and undecodable bodies, limits, and readiness."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from prometheus_client import generate_latest

from controller.scheduler.extender import handler
from tests.unit.controller.extender_service import ALL_NODES, ExtenderService, make_pod_body, serve_extender

LIMIT_BYTES = 4096


@pytest.fixture
async def service() -> AsyncIterator[ExtenderService]:
    async with serve_extender() as service:
        yield service


@pytest.mark.parametrize(
    ("nodes", "passed", "refused"), [([], [], set()), (None, [], set()), (["n1", "n1", "n3", "n3"], ["n1"], {"n3"})]
)
async def test_unusual_lists_of_nodes_are_answered(
    nodes: list[str] | None, passed: list[str], refused: set[str], service: ExtenderService
) -> None:
    answer = await service.ask("filter", make_pod_body(), nodes)
    assert answer["nodenames"] == passed
    assert answer["error"] == ""
    assert set(answer["failedAndUnresolvableNodes"]) == refused
    assert (await service.read_scores(make_pod_body(), nodes)).keys() == set(nodes or ())


@pytest.mark.parametrize("keys", ["Pod NodeNames", "pod nodenames", "POD NODENAMES", "NodeNames Pod"])
async def test_keys_may_have_any_case_as_in_go(keys: str, service: ExtenderService) -> None:
    values = {"pod": make_pod_body(), "nodenames": ALL_NODES}
    status, answer = await service.post("filter", {key: values[key.lower()] for key in keys.split()})
    assert status == 200
    assert answer["nodenames"] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("verbs", "body", "status", "message"),
    [
        ("filter prioritize", b"", 400, "no ExtenderArgs"),
        ("filter prioritize", b"{", 400, "no ExtenderArgs"),
        ("filter prioritize", b"[]", 400, "no ExtenderArgs"),
        ("filter prioritize", b'{"pod": 3, "nodenames": []}', 400, "no ExtenderArgs"),
        ("filter prioritize", b'{"pod": {"metadata": {"labels": {"a": 1}}}, "nodenames": []}', 400, "no ExtenderArgs"),
        ("filter prioritize", b'{"pod": {}, "nodes": {"items": []}}', 400, "nodeCacheCapable"),
        ("filter prioritize", b'{"pod": {}, "nodenames": "n1"}', 400, "nodenames"),
        ("filter prioritize", msgspec.json.encode({"pod": make_pod_body(), "nodenames": ["n1", 3]}), 400, "nodenames"),
        ("filter prioritize", b'{"pod": {}, "nodenames": "' + b"x" * LIMIT_BYTES + b'"}', 413, "larger than 4096 bytes"),
        ("preempt", msgspec.json.encode({"Pod": make_pod_body(), "NodeNameToVictims": {}}), 400, "nodeCacheCapable"),
        ("preempt", b'{"x":' + b"[" * 1_500, 400, "no ExtenderPreemptionArgs"),
    ],
)  # fmt: skip
async def test_undecodable_requests_get_an_error_with_the_reason(
    verbs: str, body: bytes, status: int, message: str, monkeypatch: pytest.MonkeyPatch, service: ExtenderService
) -> None:
    monkeypatch.setattr(handler, "MAX_REQUEST_BYTES", LIMIT_BYTES)
    for verb in verbs.split():
        actual_status, answer = await service.post(verb, body)
        assert actual_status == status
        assert message in answer["error"]
        metrics = generate_latest(service.registry).decode()
        assert f'netaware_extender_errors_total{{status="{status}",verb="{verb}"}} 1.0' in metrics
    assert await service.list_passed(make_pod_body()) == ["n1", "n2"], "the next request is answered"


async def test_a_body_of_unknown_length_is_refused_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch, service: ExtenderService
) -> None:
    monkeypatch.setattr(handler, "MAX_REQUEST_BYTES", LIMIT_BYTES)

    async def stream_body() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 1024

    async with service.session.post(f"{service.url}/filter", data=stream_body()) as answer:
        assert answer.status == 413


async def test_requests_are_refused_before_the_stores_are_listed(service: ExtenderService) -> None:
    service.unready_reason = "not listed yet: pods"
    status, answer = await service.post("filter", {"pod": make_pod_body(), "nodenames": ALL_NODES})
    assert status == 503
    assert "not listed yet: pods" in answer["error"]
