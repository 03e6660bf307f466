"""`propose --apply --one-by-one`: who is patched when, and what stops it; how a workload rolls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from controller.cli import propose
from controller.cli.session import Session
from controller.cli.templates import Controller
from controller.traffic.proposals import Proposal

READY = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}
ROLLING = {**READY, "replicas": 3, "updatedReplicas": 1}
STUCK = {**ROLLING, "conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]}
STALE = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}
PATCH = {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}
PROPOSAL = Proposal("shop", "shop", {}, (("Deployment", "web", PATCH), ("Deployment", "cart", PATCH)), ())


def controller(name: str, status: dict[str, Any], **spec: Any) -> Controller:
    metadata = {"name": name, "namespace": "shop", "generation": 2}
    return msgspec.convert({"metadata": metadata, "spec": {"replicas": 2, **spec}, "status": status}, Controller)


class Api:
    """Answers with one status after the other."""

    def __init__(self, *statuses: dict[str, Any], **spec: Any) -> None:
        self.statuses, self.spec, self.asked = list(statuses), spec, list[str]()

    async def apply(self, *_: Any, **__: Any) -> None:
        self.asked.append("apply")

    async def patch(self, _: Any, name: str, *__: Any, **___: Any) -> Controller:
        self.asked.append(f"patch {name}")
        return controller(name, STALE, **self.spec)

    async def get(self, _: Any, name: str, *__: Any, **___: Any) -> Controller:
        self.asked.append(f"get {name}")
        return controller(name, self.statuses.pop(0))


async def write(api: Api, *, one_by_one: bool = True) -> list[str]:
    session = cast("Session", SimpleNamespace(client=api))
    await propose.write(session, [PROPOSAL], one_by_one=one_by_one)
    return api.asked


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propose, "_POLL_S", 0.0)


async def test_the_next_workload_is_patched_once_the_one_before_is_ready() -> None:
    asked = await write(Api(STALE, ROLLING, READY, READY))
    assert asked == ["apply", "patch web", "get web", "get web", "get web", "patch cart", "get cart"]


async def test_all_at_once_waits_for_nobody() -> None:
    assert await write(Api(), one_by_one=False) == ["apply", "patch web", "patch cart"]


async def test_a_workload_that_nothing_rolls_is_not_waited_for() -> None:
    assert await write(Api(paused=True)) == ["apply", "patch web", "patch cart"]
    assert await write(Api(updateStrategy={"type": "OnDelete"})) == ["apply", "patch web", "patch cart"]


async def test_a_rollout_that_fails_leaves_the_others_alone() -> None:
    api = Api(ROLLING, STUCK)
    with pytest.raises(propose.RolloutError, match=r"shop/web does not get ready: ProgressDeadlineExceeded"):
        await write(api)
    assert "patch cart" not in api.asked


@pytest.mark.parametrize(
    ("replicas", "spec", "room"),
    [
        (2, {}, (1, 0)),
        (10, {}, (3, 2)),
        (10, {"strategy": {"rollingUpdate": {"maxSurge": "15%", "maxUnavailable": "0%"}}}, (2, 0)),
        (3, {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}}}, (0, 2)),
        (3, {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "1%"}}}, (0, 1)),
        (3, {"strategy": {"type": "Recreate"}}, (0, 3)),
        (3, {"updateStrategy": {"type": "RollingUpdate"}}, (0, 1)),
    ],
)
def test_how_many_pods_more_and_less_there_are_while_it_rolls(
    replicas: int, spec: dict[str, Any], room: tuple[int, int]
) -> None:
    assert controller("web", READY, **{**spec, "replicas": replicas}).room == room
