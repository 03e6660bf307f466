"""`kubectl netaware deschedule --dry-run` shows moves, overutilized nodes and skipped pods."""

from __future__ import annotations

import msgspec
import pytest

from controller.cli.deschedule import RoundPreview
from controller.descheduler.plan import DeschedulePlan, Skip
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
from tests.unit.controller.commands import render_answer, run_command
from tests.unit.controller.components import make_session


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal without colours that folds no line."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")


def make_preview() -> RoundPreview:
    """Two overutilized nodes: a move relieves one; a disruption budget protects the only pod of the other."""
    nodes = [make_host("hot"), make_host("stuck"), make_host("idle", cpu="16")]
    pods = [make_pod_info("web-1", "hot"), make_pod_info("db-0", "stuck", labels={"app": "db"}, owner="StatefulSet/db")]
    usage = {"hot": to_usage(3.5, 2), "stuck": to_usage(3, 2), "idle": to_usage(0.4, 2)}
    pod_usage, budget = {pod.name: to_usage(1.6, 0.5) for pod in pods}, make_budget("db", "app=db", allowed=0)
    view = make_snapshot(nodes, pods, usage, pod_usage, budgets=[budget])
    return RoundPreview(decide_once(view, make_config()).plan, dropped_readings_by_reason={"negative": 2})


def test_moves_overutilized_nodes_skipped_pods_and_dropped_readings_are_shown() -> None:
    screen = render_answer(make_preview(), "deschedule", "--dry-run")
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
    screen = render_answer(RoundPreview(plan), "deschedule", "--dry-run")
    assert "and 2503 more" in screen
    assert "2500 disruption-budget, 3 cooldown" in screen


async def test_deschedule_requires_dry_run() -> None:
    with pytest.raises(ConfigError, match="--dry-run"):
        await run_command(make_session(None), "deschedule")
