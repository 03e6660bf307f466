"""Usage of `kubectl netaware`: exit codes, help, and errors that name what is missing."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.commands import HELP_BY_COMMAND, load_command
from controller.cli.parser import EPILOG, parse
from controller.cli.run import run
from controller.cli.session import FORBIDDEN, MissingInputError
from kubekit.errors import ConfigError
from tests.unit.controller.commands import SnapshotSession, render_command, run_command, write_kubeconfig
from tests.unit.controller.healthy_cluster import make_healthy_snapshot


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
