"""Commands read the state, the configuration and the costs of the running controller, and errors name what is missing."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiohttp import web

from controller.cli.commands import HELP_BY_COMMAND, load_command
from controller.cli.parser import EPILOG, parse
from controller.cli.plan_inputs import build_state
from controller.cli.run import run
from controller.cli.session import FORBIDDEN, MissingInputError, Session
from controller.diagnosis.facts import build_facts
from controller.scheduler.config import SchedulerConfig
from kubekit.errors import ApiError, ConfigError
from tests.unit.controller.commands import (
    SnapshotSession,
    render_command,
    run_command,
    write_group_file,
    write_kubeconfig,
)
from tests.unit.controller.components import (
    CONFIG_HEAD,
    HOME,
    NODES,
    PODS,
    make_cost_topology,
    make_group_body,
    make_session,
)
from tests.unit.controller.healthy_cluster import make_healthy_snapshot
from tests.unit.kubekit.simulated_api import run_server_with_client

CUSTOM_CONFIG = (
    CONFIG_HEAD
    + """
topology: {costPolicy: {unitUs: 250}}
scheduler:
  schedulerNames: [mine]
  gates: {maxWaitS: 300}
  networkOverhead: {weightsName: Mine, networkTopologyName: ours}
"""
)
PARITY_CONFIG = CONFIG_HEAD + "scheduler: {parity: upstream}\n"
CONFIGURED_TOPOLOGY = make_cost_topology({"Mine": 7, "UserDefined": 2}, name="ours", namespace=HOME)
DEFAULT_TOPOLOGY = make_cost_topology({"UserDefined": 3})
CONTROLLER_PODS = "/api/v1/namespaces/netaware-system/pods"
UNAVAILABLE = {"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": "no connection to the pod"}


@pytest.mark.parametrize("config", [None, CONFIG_HEAD + "unheard: of\n"], ids=["missing", "unknown field"])
async def test_an_unreadable_configuration_is_noted_and_defaults_are_used(config: str | None) -> None:
    session = make_session(config, *NODES)
    assert (await session.read_snapshot()).scheduler == SchedulerConfig()
    assert "defaults are used" in session.read_errors["configuration"]


async def test_a_configuration_that_may_not_be_read_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    session = make_session(CUSTOM_CONFIG, *NODES)
    monkeypatch.setattr(session.client, "get", AsyncMock(side_effect=ApiError(403, "Forbidden", "not yours")))
    assert (await session.read_configuration()).scheduler == SchedulerConfig()
    assert session.read_errors == {"configuration": "not allowed to read it; defaults are used"}


async def test_controller_replicas_are_queried_concurrently_for_failed_checks() -> None:
    """No replica answers before two are queried; the client makes no more reads at a time."""
    queried_paths: set[str] = set()
    are_two_queried = asyncio.Event()
    make_response_by_pod = {
        "controller-old": lambda: web.Response(status=503, text="age: store of nodes is 130 s old (503)\n"),
        "controller-ready": lambda: web.Response(text="ok\n"),
        "controller-unreachable": lambda: web.json_response(UNAVAILABLE, status=503),
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/readyz"):
            queried_paths.add(request.path)
            if len(queried_paths) == 2:
                are_two_queried.set()
            await are_two_queried.wait()
            pod_name = request.path.split("/")[-3]
            return make_response_by_pod[pod_name]()
        names = make_response_by_pod if request.path == CONTROLLER_PODS else ()
        return web.json_response({"metadata": {}, "items": [{"metadata": {"name": name}} for name in names]})

    async with run_server_with_client(answer) as client:
        session = Session(client, None, None, "netaware-system")
        status = (await session.read_snapshot(everything=True)).control_plane

    assert status is not None
    assert status.failed_checks == ("controller-old: age: store of nodes is 130 s old (503)",)
    assert not any("readyz" in topic for topic in session.read_errors)


async def test_all_commands_use_the_settings_of_the_running_controller(tmp_path: Path) -> None:
    path = write_group_file(tmp_path, make_group_body(max_cost=5))
    objects = (*NODES, *PODS, make_group_body(max_cost=5), CONFIGURED_TOPOLOGY, DEFAULT_TOPOLOGY)
    session = make_session(CUSTOM_CONFIG, *objects)

    snapshot = await session.read_snapshot()
    assert session.read_errors == {}
    facts = build_facts(await session.read_snapshot(everything=True))
    network = (await run_command(session, "costs")).network
    assert session.notes == []
    (group_view,) = await run_command(session, "graph")
    simulation = await run_command(session, "simulate", "-f", path)
    explanation = (await run_command(session, "explain", "pod", "a-n1")).explanation

    assert snapshot.policy.unit_us == 250
    assert facts.max_gate_wait_s == 300
    assert facts.scheduler_names == ("mine",)
    assert not network.is_unused
    assert [(edge.cost, edge.verdict) for edge in group_view.dependencies] == [(7, "violated")]
    for answer in (network, simulation, explanation):
        assert (answer.topology, answer.weight_name) == (f"{HOME}/ours", "Mine")


@pytest.mark.parametrize(
    ("config", "topologies"),
    [
        pytest.param(CONFIG_HEAD, (make_cost_topology({"Mine": 7}),), id="another weight"),
        pytest.param(
            CONFIG_HEAD,
            (
                make_cost_topology({"UserDefined": 7}, name="other", namespace="a"),
                make_cost_topology(name="another", namespace="b"),
            ),
            id="other names",
        ),
        pytest.param(PARITY_CONFIG, (make_cost_topology({"NetperfCosts": 7}, namespace=HOME),), id="parity"),
    ],
)
async def test_plans_use_only_the_schedulers_costs_and_views_mark_unused_ones(
    config: str, topologies: tuple[dict[str, Any], ...], tmp_path: Path
) -> None:
    path = write_group_file(tmp_path, make_group_body())
    session = make_session(config, *NODES, *topologies)

    scheduler_costs = build_state(await session.read_snapshot()).costs("x")
    simulation = await run_command(session, "simulate", "-f", path)
    session.notes.clear()
    network = (await run_command(session, "costs")).network

    assert scheduler_costs.weight_name == ""
    assert (simulation.topology or "") == scheduler_costs.network_topology
    assert (simulation.weight_name or "") == scheduler_costs.weight_name
    assert network.weight_name is not None
    assert network.is_unused
    assert any("the scheduler does not use" in note for note in session.notes)


@pytest.mark.parametrize("argv", [["costs", "--percentile", "p42"], ["money", "--window", "30s"]])
def test_an_invalid_option_exits_with_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        run(argv)


def test_a_missing_kubeconfig_or_context_exits_with_2_and_an_unreachable_cluster_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing_path, path = str(tmp_path / "none"), write_kubeconfig(tmp_path, "http://127.0.0.1:9")
    assert run(["status", "--kubeconfig", missing_path]) == 2
    assert missing_path in capsys.readouterr().err
    assert run(["status", "--kubeconfig", path, "--context", "nope"]) == 2
    assert "nope" in capsys.readouterr().err
    assert run(["status", "--kubeconfig", path, "--timeout", "2"]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert "127.0.0.1:9" in error


@pytest.mark.parametrize(
    ("code", "unneeded_modules"),
    [
        (
            "from controller.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
            {"rich", "numpy", "aiohttp", "kubernetes", "controller.cli.status"},
        ),
        ("import controller.cli.status", {"numpy", "kubernetes"}),
    ],
    ids=["help", "status"],
)
def test_help_imports_no_command_and_status_no_planner(code: str, unneeded_modules: set[str]) -> None:
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not unneeded_modules & set(completed.stdout.split())


def test_every_example_of_the_help_is_valid_usage() -> None:
    commands = {name: load_command(name) for name in HELP_BY_COMMAND}
    assert all(command.examples for command in commands.values())
    examples = [(line.split()[0], line) for line in re.findall(r"kubectl netaware (.*?)\s{3,}", EPILOG)]
    assert examples
    examples += [(name, line) for name, command in commands.items() for line, _ in command.examples]
    assert [line for name, line in examples if parse(shlex.split(line)).command != name] == []


@pytest.mark.parametrize(
    ("argv", "error", "message"),
    [
        (("diagnose", "pod"), ConfigError, "diagnose pod NAME"),
        (
            ("latency", "atlantis", "eu-west-6"),
            MissingInputError,
            "no pair of zones 'atlantis' and 'eu-west-6'; zones: ap-south-1",
        ),
        (("graph", "x", "-n", "default"), MissingInputError, "no AppGroup 'x' in namespace default"),
    ],
    ids=["pod name", "zone", "AppGroup"],
)
async def test_a_missing_zone_group_or_pod_name_is_an_error_that_names_it(
    argv: tuple[str, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await render_command(make_healthy_snapshot(), *argv)


async def test_graph_fails_without_appgroups_but_costs_does_not() -> None:
    session = SnapshotSession(make_healthy_snapshot(), read_errors={"appgroups": FORBIDDEN})
    await run_command(session, "costs")
    with pytest.raises(MissingInputError, match="appgroups: not allowed"):
        await run_command(session, "graph")
