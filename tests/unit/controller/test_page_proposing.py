"""Proposals for the page: for whom the door is open, and that whatever goes wrong with the process is an answer that is kept."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from controller.cli import proposing
from controller.cli.proposing import ProposalQuestion, Proposer
from controller.cluster.caches import Caches
from controller.page import server
from controller.page.config import PageConfig
from controller.page.server import Page
from controller.scheduler.config import SchedulerConfig
from controller.topology.results import ResultsMirror
from controller.traffic.config import TrafficConfig
from kubekit.client import Client
from kubekit.wire import Object
from netperf.policy import CostPolicy

DEPLOYMENT = Path(__file__).parents[3] / "manifests" / "base" / "controller" / "deployment.yaml"
CONTROLLER_BYTES, PLANNER_BYTES = 200_000_000, 85_000_000
"""What they take at 10,000 nodes in 40 zones (docs/cost.md)."""
Answers = dict[str, asyncio.Task[bytes] | bytes | None]


@asynccontextmanager
async def door(answers: Answers) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """A page of a cluster that has these namespaces."""
    client = cast("Client", object())
    caches = Caches(client, "netaware")
    caches.namespaces._items.update(dict.fromkeys(answers, Object()))
    page = Page(
        caches,
        ResultsMirror(client, "netaware"),
        PageConfig(),
        CollectorRegistry(),
        namespace="netaware",
        policy=CostPolicy(),
        scheduler=SchedulerConfig(),
        client=client,
        propose=answers.__getitem__,
    )
    app = web.Application()
    page.add_routes(app)
    async with TestClient(TestServer(app)) as browser:
        yield browser


async def test_the_door_says_that_it_is_being_made_and_lets_in_no_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PROPOSAL_WAIT_S", 0.1)
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def make() -> bytes:
        return await done

    async with door({"slow": asyncio.ensure_future(make()), "kept": b"{}", "full": None}) as browser:

        async def ask(namespace: str, site: str = "same-origin") -> tuple[int, str]:
            query, headers = {"namespace": namespace}, {"Sec-Fetch-Site": site}
            async with browser.get("/api/v1/proposal", params=query, headers=headers) as answer:
                return answer.status, await answer.text()

        names = ("slow", "kept", "full", "", "../x", "UPPER", "a" * 64)
        assert [(await ask(name))[0] for name in names] == [202, 200, 503, 400, 400, 400, 400]
        for made_up in ("made-up-1", "kep"):
            assert await ask(made_up) == (404, f"no namespace {made_up} is known\n")
        assert (await ask("kept", "cross-site"))[0] == 403
        done.set_result(b"{}")
        assert (await ask("slow"))[0] == 200


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("print('{')", "its answer is broken"),
        ("pass", "its answer is broken"),
        ('import os; os.write(1, b\'{"namespace":"\\xff","at":1}\')', "its answer is broken"),
        ("import sys; sys.exit('no luck')", "it failed: no luck"),
        (None, "its process does not start: No such file or directory"),
    ],
    ids=["broken", "empty", "no text", "failed", "not started"],
)
async def test_whatever_the_process_does_is_told_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str | None, why: str
) -> None:
    program = tmp_path / "python"
    if says is not None:
        program.write_text(f"#!{sys.executable}\n{says}\n")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    proposer = Proposer(TrafficConfig(), "http://p", home="x", scheduler=SchedulerConfig())
    making = proposer.ask("shop")
    assert isinstance(making, asyncio.Task)
    told = await making
    assert msgspec.json.decode(told)["error"].startswith(why)
    assert proposer.ask("shop") == told


async def test_proposals_are_judged_by_the_managers_own_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[ProposalQuestion] = []

    async def run(question: ProposalQuestion) -> tuple[bytes, str]:
        questions.append(question)
        return b"", "no"

    monkeypatch.setattr(proposing, "_run", run)
    mine = SchedulerConfig(scheduler_names=("mine",), parity="upstream")
    await cast("asyncio.Task[bytes]", Proposer(TrafficConfig(), "http://p", home="x", scheduler=mine).ask("shop"))
    (question,) = questions
    assert msgspec.json.decode(msgspec.json.encode(question), type=ProposalQuestion).scheduler == mine


def test_a_proposal_has_room_in_the_container_beside_the_leader_and_its_planner() -> None:
    found = [each for each in yaml.safe_load_all(DEPLOYMENT.read_text()) if each and each["kind"] == "Deployment"]
    (container,) = found[0]["spec"]["template"]["spec"]["containers"]
    limit = container["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    assert int(limit[:-2]) << 20 > CONTROLLER_BYTES + PLANNER_BYTES + proposing.MOST_MEMORY


def test_an_answer_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposing, "MOST_ANSWER", 100)
    assert proposing.bounded("shop", b"x" * 100) == b"x" * 100
    told = msgspec.json.decode(proposing.bounded("shop", b"x" * 101))
    assert told["namespace"] == "shop"
    assert "larger than" in told["error"]
