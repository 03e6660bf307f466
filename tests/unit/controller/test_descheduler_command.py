"""`kubectl netaware deschedule --dry-run` shows moves, overutilized nodes and skipped pods."""

from __future__ import annotations

import argparse
import io

import msgspec
import pytest
from rich.console import Console

from controller.cli.deschedule import DescheduleCommand, RoundPreview
from controller.cli.parser import parse
from controller.cli.session import Session
from controller.descheduler.plan import DeschedulePlan, Skip
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.errors import ConfigError
from tests.support.descheduler_builders import (
    decide_once,
    make_budget,
    make_config,
    make_host,
    make_pod_info,
    make_snapshot,
    to_usage,
)

COMMAND = DescheduleCommand()


def make_preview() -> RoundPreview:
    """Two overutilized nodes: a move relieves one; a disruption budget protects the only pod of the other."""
    nodes = [make_host("hot"), make_host("stuck"), make_host("idle", cpu="16")]
    pods = [make_pod_info("web-1", "hot"), make_pod_info("db-0", "stuck", labels={"app": "db"}, owner="StatefulSet/db")]
    usage = {"hot": to_usage(3.5, 2), "stuck": to_usage(3, 2), "idle": to_usage(0.4, 2)}
    view = make_snapshot(
        nodes, pods, usage, {p.name: to_usage(1.6, 0.5) for p in pods}, budgets=[make_budget("db", "app=db", allowed=0)]
    )
    plan = decide_once(view, make_config()).plan
    return RoundPreview(plan, dropped_readings_by_reason={"negative": 2})


def parse_options(*argv: str) -> argparse.Namespace:
    return parse(["deschedule", *argv])


def print_preview(preview: RoundPreview) -> str:
    """The output of the command on a terminal of 300 columns."""
    out = io.StringIO()
    Console(file=out, width=300, highlight=False).print(
        COMMAND.render(preview, parse_options("--dry-run"), 300), soft_wrap=True
    )
    return out.getvalue()


def test_moves_overutilized_nodes_skipped_pods_and_dropped_readings_are_shown() -> None:
    screen = print_preview(make_preview())
    (move_row,) = [line for line in screen.splitlines() if line.startswith("default/web-1")]
    assert "idle" in move_row
    # 3.5 of 4 cores, and 1.9 after the move of 1.6.
    assert "cpu 88 → 48 %" in move_row
    assert "node is overutilized, node cpu usage(87.50%)>threshold(50.00%)" in move_row
    assert "PodDisruptionBudget default/db allows no disruption now" in screen
    assert "no further pod can be moved: 1 disruption-budget" in screen
    assert "relieved by the moves above" in screen
    assert "nodes: 2 overutilized, 1 underutilized; 2 usage readings dropped" in screen


def test_skipped_pods_that_the_plan_does_not_list_are_counted() -> None:
    plan = DeschedulePlan(skips=(Skip("default/db-0", "stuck", "disruption-budget", "protected"),))
    plan = msgspec.structs.replace(plan, skip_counts={"disruption-budget": 2501, "cooldown": 3})
    screen = print_preview(RoundPreview(plan))
    assert "and 2503 more" in screen
    assert "2500 disruption-budget, 3 cooldown" in screen


async def test_deschedule_requires_dry_run() -> None:
    async with Client(ClusterConfig("http://127.0.0.1:9")) as client:
        session = Session(client, None, None, "netaware-system")
        with pytest.raises(ConfigError, match="--dry-run"):
            await COMMAND.run(session, parse_options())
