"""Commands print tables that fit a terminal of 80 or 200 columns, and data that programs can read."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import UnionType
from typing import get_args, get_type_hints

import msgspec
import pytest
import yaml

from controller.cli.commands import HELP_BY_COMMAND, load_command
from controller.cli.costs import CostsView
from controller.cli.deschedule import RoundPreview
from controller.cli.explain import MAX_CANDIDATES_SHOWN, ExplainView
from controller.cli.latency import LatencyView
from controller.cli.output import Screen
from controller.cli.run import run
from controller.cli.style import format_percent, format_rate
from controller.descheduler.plan import DeschedulePlan, Skip
from controller.diagnosis.cluster_views import NetworkView, PairBasis, PairView, ZoneView
from controller.diagnosis.pod_diagnosis import PodDiagnosis
from controller.diagnosis.zones import build_network
from controller.scheduler.explain import Candidate, Explanation
from controller.views.overview import build_overview
from kubekit.errors import ConfigError
from kubekit.wire import Condition, NodeStatus
from tests.support.descheduler_builders import (
    decide_once,
    make_budget,
    make_config,
    make_host,
    make_pod_info,
    make_snapshot,
    to_usage,
)
from tests.support.field_spellings import PROPOSAL_GROUP
from tests.unit.controller.commands import render_answer, render_command, run_command
from tests.unit.controller.components import make_session
from tests.unit.controller.healthy_cluster import make_cluster_snapshot, make_healthy_snapshot, make_unhealthy_snapshot

SCREENS = {
    "status": ("status",),
    "costs": ("costs",),
    "costs-p90": ("costs", "--percentile", "p90"),
    "graph": ("graph", "online-boutique", "-n", "default"),
    "bandwidth": ("bandwidth",),
    "bandwidth-pod": ("bandwidth", "pod"),
    "latency": ("latency", "ap-south-1", "eu-west-6"),
}


def make_preview() -> RoundPreview:
    """Two overutilized nodes: a move relieves one; a disruption budget protects the only pod of the other."""
    nodes = [make_host("hot"), make_host("stuck"), make_host("idle", cpu="16")]
    pods = [make_pod_info("web-1", "hot"), make_pod_info("db-0", "stuck", labels={"app": "db"}, owner="StatefulSet/db")]
    usage = {"hot": to_usage(3.5, 2), "stuck": to_usage(3, 2), "idle": to_usage(0.4, 2)}
    pod_usage, budget = {pod.name: to_usage(1.6, 0.5) for pod in pods}, make_budget("db", "app=db", allowed=0)
    view = make_snapshot(nodes, pods, usage, pod_usage, budgets=[budget])
    return RoundPreview(decide_once(view, make_config()).plan, dropped_readings_by_reason={"negative": 2})


@pytest.mark.parametrize(("columns", "blocks"), [(80, 4), (200, 2)])
async def test_screens_fit_the_terminal_and_wide_matrices_are_drawn_in_blocks(
    columns: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")

    screens = [await render_command(make_unhealthy_snapshot(), *argv) for argv in SCREENS.values()]
    matrix = await render_command(make_cluster_snapshot(40), "costs")

    assert max(map(len, "\n".join((*screens, matrix)).splitlines())) <= columns
    assert matrix.count("from \\ to") == blocks


def test_a_matrix_of_short_costs_does_not_fold_the_names_of_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    network = build_network(make_cluster_snapshot(40))
    pairs = tuple(msgspec.structs.replace(pair, cost=7, basis="given", quality_flags=()) for pair in network.pairs)
    view = CostsView(read_at=0.0, network=msgspec.structs.replace(network, pairs=pairs))
    assert re.search(r"^40 us-west-40 ", render_answer(view, "costs"), re.MULTILINE)


@pytest.mark.parametrize("name", SCREENS)
async def test_a_pipe_gets_no_colours_and_json_equals_yaml(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert "\x1b" not in await render_command(make_healthy_snapshot(), *SCREENS[name], stream=io.StringIO())
    as_json = json.loads(await render_command(make_healthy_snapshot(), *SCREENS[name], "-o", "json"))
    assert yaml.safe_load(await render_command(make_healthy_snapshot(), *SCREENS[name], "-o", "yaml")) == as_json


def test_all_keys_of_json_answers_are_in_camel_case() -> None:
    types: list[type] = []
    for name in HELP_BY_COMMAND:
        answer = get_type_hints(load_command(name).run)["return"]
        types += get_args(answer) if isinstance(answer, UnionType) else (answer,)
    _, schemas = msgspec.json.schema_components(types)
    assert len(schemas) > len(HELP_BY_COMMAND)
    keys = [key for schema in schemas.values() for key in schema.get("properties", {})]
    assert [key for key in keys if "_" in key] == ["latency_us"], "of `simulate --offline`, whose format is fixed"


@pytest.mark.parametrize("ages_s", [(60.0, 7200.0), (7200.0, 60.0)])
def test_status_shows_the_newer_sample_of_both_directions_of_a_pair(ages_s: tuple[float, float]) -> None:
    overview = build_overview(make_healthy_snapshot())
    pairs = tuple(
        PairView(origin=zones[0], destination=zones[1], basis="measured", measured_at=overview.read_at - age_s)
        for zones, age_s in zip(("ab", "ba"), ages_s, strict=True)
    )
    overview = msgspec.structs.replace(overview, network=NetworkView(pairs=pairs))
    assert "oldest 60s ago" in render_answer(overview, "status")


async def test_limits_without_effect_have_no_tick() -> None:
    snapshot = make_healthy_snapshot()
    for verdict, count in (("enforced", 1), ("not-applicable", 0)):
        snapshot = msgspec.structs.replace(snapshot, verdicts_by_pod={"default/cache-1": {"egress": verdict}})
        assert (await render_command(snapshot, "bandwidth", "pod")).count("✓") == count


async def test_status_allocates_only_bandwidth_of_nodes_that_publish_capacity() -> None:
    snapshot = make_healthy_snapshot()
    assert "12 Gbit/s of 120 Gbit/s" in await render_command(snapshot, "status")
    without_capacity = msgspec.structs.replace(snapshot.nodes[0], status=NodeStatus())
    snapshot = msgspec.structs.replace(snapshot, nodes=(without_capacity, *snapshot.nodes[1:]))
    assert "0 bit/s of 110 Gbit/s" in await render_command(snapshot, "status"), "its pods request the 12 Gbit/s"


def test_quality_flags_are_shown_except_for_costs_without_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    basis_by_zones: dict[tuple[str, str], PairBasis] = {
        ("a", "b"): "inferred",
        ("b", "a"): "unreachable",
        ("a", "c"): "measured",
    }
    pairs = tuple(
        PairView(origin=origin, destination=destination, cost=7, basis=basis, quality_flags=("throttled",), p50_us=1000)
        for (origin, destination), basis in basis_by_zones.items()
    )
    zones = tuple(ZoneView(name=zone, region="") for zone in "abc")
    view = CostsView(read_at=0.0, network=NetworkView(zones=zones, pairs=pairs))

    matrix = render_answer(view, "costs")

    assert all(cell in matrix for cell in ("7*", "7x", "7!"))
    assert render_answer(view, "costs", "--percentile", "p50").count("1!") == 3
    trusted_pair = msgspec.structs.replace(pairs[0], quality_flags=())
    latency = LatencyView(read_at=0.0, forward=trusted_pair, reverse=pairs[1])
    assert "not trusted: throttled" in render_answer(latency, "latency", "a", "b")


def test_rates_have_three_figures_and_a_share_above_zero_is_never_shown_as_zero() -> None:
    rates = ["999 bit/s", "1 kbit/s", "999 Mbit/s", "1 Gbit/s"]
    assert [format_rate(value_bps) for value_bps in (999.4, 999.6, 999.4e6, 999.6e6)] == rates
    assert [format_percent(part, 200) for part in (0, 1, 3)] == ["0%", "<1%", "2%"]


async def test_a_terminal_gets_colours_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[3" in await render_command(make_unhealthy_snapshot(), "status")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in await render_command(make_unhealthy_snapshot(), "status")


async def test_graph_shows_every_condition_that_does_not_hold() -> None:
    snapshot = make_healthy_snapshot()
    (group,) = snapshot.groups
    conditions = [Condition("Admitted", "False", message="not admitted by shop"), Condition("Balanced", "True")]
    status = msgspec.structs.replace(group.status, conditions=conditions)
    group = msgspec.structs.replace(group, status=status)
    screen = await render_command(msgspec.structs.replace(snapshot, groups=(group,)), "graph", stream=io.StringIO())
    assert "Admitted False  not admitted by shop" in screen
    assert "Balanced" not in screen


def test_explain_counts_the_candidates_that_it_does_not_show() -> None:
    """The candidate of the pod's own node is shown, wherever it is in the order."""
    fields = {"region": "r", "zone": "z", "node": "", "peerCosts": [], "nodes": 1, "satisfied": 0, "violated": 0}
    fields |= {"cost": 0, "score": 100, "passes": True, "isTarget": False, "hasPod": False}
    candidate = msgspec.convert(fields, Candidate)
    candidates = (*[candidate] * (MAX_CANDIDATES_SHOWN + 2), msgspec.structs.replace(candidate, has_pod=True))
    explanation = Explanation("default/p", "", "", "", "", "", "", (), candidates, None, "")
    view = ExplainView(0.0, explanation, PodDiagnosis("waiting", "it waits"))
    assert "and 2 more" in render_answer(view, "explain", "pod", "p")


def test_notes_are_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().print_note("a name between colons is not an emoji code: shop:rocket:app [bold]")
    assert capsys.readouterr().err == "note: a name between colons is not an emoji code: shop:rocket:app [bold]\n"


def test_convert_prints_accepted_spellings_and_lists_the_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.yaml"
    deployment_text = "kind: Deployment\nmetadata: {name: cart, creationTimestamp: 2026-01-02T03:04:05Z}\n"
    path.write_text(f"{PROPOSAL_GROUP}---\n{deployment_text}")
    assert run(["convert", "-f", str(path)]) == 0
    out, errors = capsys.readouterr()
    group, deployment = yaml.safe_load_all(out)
    assert group["apiVersion"] == "appgroup.diktyo.x-k8s.io/v1alpha1"
    assert deployment["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z", "a time stays as kubectl reads it"
    assert "changed:" in errors


def test_a_dry_run_shows_moves_overutilized_nodes_skipped_pods_and_dropped_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")
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


def test_a_dry_run_counts_skipped_pods_that_the_plan_does_not_list() -> None:
    plan = DeschedulePlan(skips=(Skip("default/db-0", "stuck", "disruption-budget", "protected"),))
    plan = msgspec.structs.replace(plan, skip_counts={"disruption-budget": 2501, "cooldown": 3})
    screen = render_answer(RoundPreview(plan), "deschedule", "--dry-run")
    assert "and 2503 more" in screen
    assert "2500 disruption-budget, 3 cooldown" in screen


async def test_deschedule_requires_dry_run() -> None:
    with pytest.raises(ConfigError, match="--dry-run"):
        await run_command(make_session(None), "deschedule")
