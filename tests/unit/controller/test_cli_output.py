"""Commands print tables that fit a terminal of 80 or 200 columns, and data that programs can read."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import yaml
from aiohttp import web

from controller.cli.command import Command
from controller.cli.commands import HELP_BY_COMMAND, load_command
from controller.cli.costs import CostsView
from controller.cli.explain import MAX_CANDIDATES_SHOWN, ExplainView
from controller.cli.latency import LatencyView
from controller.cli.output import Screen
from controller.cli.parser import EPILOG, parse
from controller.cli.run import run
from controller.cli.session import FORBIDDEN, MissingInputError, Session
from controller.cli.style import format_percent, format_rate
from controller.diagnosis.cluster_views import NetworkView, PairBasis, PairView, ZoneView
from controller.diagnosis.control_plane import ControlPlaneStatus
from controller.diagnosis.pod_diagnosis import PodDiagnosis
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.diagnosis.zones import build_network
from controller.scheduler.explain import Candidate, Explanation
from controller.views.overview import build_overview
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.errors import ApiError, ConfigError
from kubekit.responses import RawPage
from kubekit.wire import Condition, NodeStatus
from tests.support.field_spellings import PROPOSAL_GROUP
from tests.unit.controller.healthy_cluster import HOME, make_cluster_snapshot, make_pod
from tests.unit.controller.test_views_of_a_cluster import read_pod_info, read_samples, replace_samples
from tests.unit.kubekit.simulated_api import run_server_with_client


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class EmptyClient(Client):
    """A client of a cluster without objects."""

    async def get(self, *_: object, **__: object) -> Any:
        raise ApiError(404, "NotFound", "simulated")

    async def list_pages(self, *_: object, **__: object) -> AsyncIterator[RawPage]:
        yield RawPage()


class SnapshotSession(Session):
    """A session with a given snapshot."""

    snapshot: ClusterSnapshot

    async def read_snapshot(self, *, everything: bool = False, **_: bool) -> ClusterSnapshot:
        unknown = ControlPlaneStatus(is_lease_conclusive=False)
        return msgspec.structs.replace(self.snapshot, control_plane=unknown if everything else None)


def make_healthy_snapshot() -> ClusterSnapshot:
    """Six zones, and pods with limits and verdicts."""
    snapshot = make_cluster_snapshot(6)
    nodes = [node.metadata.name for node in snapshot.nodes]
    limits = {"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "1G"}
    pods = [
        make_pod("frontend-1", node=nodes[0], annotations=limits, request="8G"),
        make_pod("frontend-2", node=nodes[0], annotations=limits, request="4G"),
        make_pod("cache-1", node=nodes[3], annotations={"kubernetes.io/egress-bandwidth": "10M"}),
        make_pod("typo", node=nodes[4], annotations={"kubernetes.io/egress-bandwidth": "ten"}),
        make_pod("pending", request="1G"),
    ]
    verdicts_by_pod = {
        "default/frontend-1": {"ingress": "enforced", "egress": "enforced"},
        "default/frontend-2": {"ingress": "enforced", "egress": "no-limit"},
    }
    pod_infos = tuple(map(read_pod_info, pods))
    return msgspec.structs.replace(snapshot, bandwidth_pods=pod_infos, verdicts_by_pod=verdicts_by_pod)


def make_unhealthy_snapshot() -> ClusterSnapshot:
    """The healthy cluster without one agent, with old samples, and with a pair that was never measured."""
    snapshot = make_healthy_snapshot()
    samples = read_samples(snapshot)
    old_samples = [msgspec.structs.replace(sample, taken_at=sample.taken_at - 20_000) for sample in samples[:4]]
    node = snapshot.nodes[2]
    node = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations={}))
    snapshot = msgspec.structs.replace(snapshot, nodes=(*snapshot.nodes[:2], node, *snapshot.nodes[3:]))
    return replace_samples(snapshot, [*old_samples, *samples[5:]])


def parse_command(*argv: str) -> tuple[Command, argparse.Namespace]:
    options = parse(argv)
    return load_command(options.command), options


def print_answer(answer: object, *argv: str) -> str:
    """A terminal's output for an answer of a command."""
    command, options = parse_command(*argv)
    Screen(out := Terminal()).print_answer(command, answer, options)
    return out.getvalue()


async def print_command(snapshot: ClusterSnapshot, *argv: str, stream: io.StringIO | None = None) -> str:
    """The output of a command."""
    command, options = parse_command(*argv)
    out = Terminal() if stream is None else stream
    async with EmptyClient(ClusterConfig("http://offline.invalid")) as client:
        session = SnapshotSession(client, None, options.namespace or None, HOME)
        session.snapshot = snapshot
        answer = await command.run(session, options)
    Screen(out).print_answer(command, answer, options)
    return out.getvalue()


SCREENS = {
    "status": ("status",),
    "costs": ("costs",),
    "costs-p90": ("costs", "--percentile", "p90"),
    "graph": ("graph", "online-boutique", "-n", "default"),
    "bandwidth": ("bandwidth",),
    "bandwidth-pod": ("bandwidth", "pod"),
    "latency": ("latency", "ap-south-1", "eu-west-6"),
}


@pytest.mark.parametrize(("columns", "blocks"), [(80, 4), (200, 2)])
async def test_screens_fit_the_terminal_and_wide_matrices_are_drawn_in_blocks(
    columns: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    screens = [await print_command(make_unhealthy_snapshot(), *argv) for argv in SCREENS.values()]
    snapshot = make_cluster_snapshot(40)
    matrix = await print_command(snapshot, "costs")
    assert max(map(len, "\n".join((*screens, matrix)).splitlines())) <= columns
    assert matrix.count("from \\ to") == blocks
    network = build_network(snapshot)
    narrow_pairs = [msgspec.structs.replace(pair, cost=7, basis="given", quality_flags=()) for pair in network.pairs]
    view = CostsView(read_at=0.0, network=msgspec.structs.replace(network, pairs=tuple(narrow_pairs)))
    assert re.search(r"^40 us-west-40 ", print_answer(view, "costs"), re.MULTILINE), "the name is not folded"


@pytest.mark.parametrize("name", SCREENS)
async def test_a_pipe_gets_no_colours_and_json_equals_yaml(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert "\x1b" not in await print_command(make_healthy_snapshot(), *SCREENS[name], stream=io.StringIO())
    as_json = json.loads(await print_command(make_healthy_snapshot(), *SCREENS[name], "-o", "json"))
    assert yaml.safe_load(await print_command(make_healthy_snapshot(), *SCREENS[name], "-o", "yaml")) == as_json


def test_all_keys_of_json_answers_are_in_camel_case() -> None:
    answers = [get_type_hints(load_command(name).run)["return"] for name in HELP_BY_COMMAND]
    types = [type_ for answer in answers for type_ in (get_args(answer) if type(answer) is UnionType else (answer,))]
    _, schemas = msgspec.json.schema_components(types)
    assert len(schemas) > len(HELP_BY_COMMAND)
    names = [key for schema in schemas.values() for key in schema.get("properties", {}) if "_" in key]
    assert names == ["latency_us"], "of `simulate --offline`, whose format is fixed"


@pytest.mark.parametrize("ages_s", [(60.0, 7200.0), (7200.0, 60.0)])
def test_status_shows_the_newer_sample_of_both_directions_of_a_pair(ages_s: tuple[float, float]) -> None:
    overview = build_overview(make_healthy_snapshot())
    pairs = tuple(
        PairView(origin=zones[0], destination=zones[1], basis="measured", measured_at=overview.read_at - age_s)
        for zones, age_s in zip(("ab", "ba"), ages_s, strict=True)
    )
    overview = msgspec.structs.replace(overview, network=NetworkView(pairs=pairs))
    assert "oldest 60s ago" in print_answer(overview, "status")


async def test_status_allocates_only_bandwidth_of_nodes_that_publish_capacity() -> None:
    snapshot = make_healthy_snapshot()
    assert "12 Gbit/s of 120 Gbit/s" in (text := await print_command(snapshot, "status")), text
    without_capacity = msgspec.structs.replace(snapshot.nodes[0], status=NodeStatus())
    snapshot = msgspec.structs.replace(snapshot, nodes=(without_capacity, *snapshot.nodes[1:]))
    assert "0 bit/s of 110 Gbit/s" in (text := await print_command(snapshot, "status")), text


def test_quality_flags_are_shown_except_for_costs_without_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    cases: tuple[tuple[str, str, PairBasis], ...] = (
        ("a", "b", "inferred"),
        ("b", "a", "unreachable"),
        ("a", "c", "measured"),
    )
    pairs = tuple(
        PairView(origin=a, destination=b, cost=7, basis=basis, quality_flags=("throttled",), p50_us=1000.0)
        for a, b, basis in cases
    )
    zones = tuple(ZoneView(name=zone, region="") for zone in "abc")
    view = CostsView(read_at=0.0, network=NetworkView(zones=zones, pairs=pairs))
    assert all(cell in print_answer(view, "costs") for cell in ("7*", "7x", "7!"))
    assert print_answer(view, "costs", "--percentile", "p50").count("1!") == 3
    trusted_pair = msgspec.structs.replace(pairs[0], quality_flags=())
    latency = LatencyView(read_at=0.0, forward=trusted_pair, reverse=pairs[1])
    assert "not trusted: throttled" in print_answer(latency, "latency", "a", "b")


def test_rates_have_three_figures_and_a_share_above_zero_is_never_shown_as_zero() -> None:
    rates = ["999 bit/s", "1 kbit/s", "999 Mbit/s", "1 Gbit/s"]
    assert [format_rate(value_bps) for value_bps in (999.4, 999.6, 999.4e6, 999.6e6)] == rates
    assert [format_percent(part, 200) for part in (0, 1, 3)] == ["0%", "<1%", "2%"]


async def test_a_terminal_gets_colours_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[3" in await print_command(make_unhealthy_snapshot(), "status")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in await print_command(make_unhealthy_snapshot(), "status")


async def test_graph_shows_every_condition_that_does_not_hold() -> None:
    snapshot = make_healthy_snapshot()
    (group,) = snapshot.groups
    conditions = [Condition("Admitted", "False", message="not admitted by shop"), Condition("Balanced", "True")]
    status = msgspec.structs.replace(group.status, conditions=conditions)
    group = msgspec.structs.replace(group, status=status)
    text = await print_command(msgspec.structs.replace(snapshot, groups=(group,)), "graph", stream=io.StringIO())
    assert "Admitted False  not admitted by shop" in text
    assert "Balanced" not in text


def test_explain_counts_the_candidates_that_it_does_not_show() -> None:
    """The candidate of the pod's own node is shown, wherever it is in the order."""
    fields = {"region": "r", "zone": "z", "node": "", "peerCosts": [], "nodes": 1, "satisfied": 0, "violated": 0}
    fields |= {"cost": 0, "score": 100, "passes": True, "isTarget": False, "hasPod": False}
    candidate = msgspec.convert(fields, Candidate)
    candidates = (*[candidate] * (MAX_CANDIDATES_SHOWN + 2), msgspec.structs.replace(candidate, has_pod=True))
    explanation = Explanation("default/p", "", "", "", "", "", "", (), candidates, None, "")
    view = ExplainView(0.0, explanation, PodDiagnosis("waiting", "it waits"))
    assert "and 2 more" in print_answer(view, "explain", "pod", "p")


def test_notes_are_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().print_note("a name between colons is not an emoji code: shop:rocket:app [bold]")
    assert capsys.readouterr().err == "note: a name between colons is not an emoji code: shop:rocket:app [bold]\n"


async def test_a_missing_zone_group_or_pod_name_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match="diagnose pod NAME"):
        await print_command(make_healthy_snapshot(), "diagnose", "pod")
    with pytest.raises(MissingInputError, match="no pair of zones 'atlantis' and 'eu-west-6'; zones: ap-south-1"):
        await print_command(make_healthy_snapshot(), "latency", "atlantis", "eu-west-6")
    with pytest.raises(MissingInputError, match="no AppGroup 'x' in namespace default"):
        await print_command(make_healthy_snapshot(), "graph", "x", "-n", "default")


async def test_graph_fails_without_appgroups_but_costs_does_not() -> None:
    async with EmptyClient(ClusterConfig("http://offline.invalid")) as client:
        session = SnapshotSession(client, None, None, HOME, read_errors={"appgroups": FORBIDDEN})
        session.snapshot = make_healthy_snapshot()
        (costs, costs_options), (graph, graph_options) = parse_command("costs"), parse_command("graph")
        await costs.run(session, costs_options)
        with pytest.raises(MissingInputError, match="appgroups: not allowed"):
            await graph.run(session, graph_options)


CONTROLLER_PODS = "/api/v1/namespaces/netaware-system/pods"
UNAVAILABLE = {"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": "no connection to the pod"}


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
            return make_response_by_pod[request.path.split("/")[-3]]()
        names = make_response_by_pod if request.path == CONTROLLER_PODS else ()
        return web.json_response({"metadata": {}, "items": [{"metadata": {"name": name}} for name in names]})

    async with run_server_with_client(answer) as client:
        session = Session(client, None, None, "netaware-system")
        status = (await session.read_snapshot(everything=True)).control_plane
    assert status is not None
    assert status.failed_checks == ("controller-old: age: store of nodes is 130 s old (503)",)
    assert not any("readyz" in topic for topic in session.read_errors)


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


def write_kubeconfig(folder: Path, server: str) -> str:
    (folder / "config").write_text(
        f"{{current-context: c, clusters: [{{name: c, cluster: {{server: '{server}'}}}}],"
        " contexts: [{name: c, context: {cluster: c}}]}"
    )
    return str(folder / "config")


def test_wrong_usage_exits_with_2_and_an_unreachable_cluster_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in (["costs", "--percentile", "p42"], ["money", "--window", "30s"]):
        with pytest.raises(SystemExit) as caught:
            run(argv)
        assert caught.value.code == 2
    assert run(["status", "--kubeconfig", str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
    path = write_kubeconfig(tmp_path, "http://127.0.0.1:9")
    assert run(["status", "--kubeconfig", path, "--timeout", "2"]) == 1
    error = capsys.readouterr().err
    assert "127.0.0.1:9" in error
    assert len(error.splitlines()) == 1
    assert run(["status", "--kubeconfig", path, "--context", "nope"]) == 2
    assert "nope" in capsys.readouterr().err


def test_help_imports_no_command_and_status_no_planner() -> None:
    script = "import sys; from controller.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    for code, unneeded_modules in (
        (script, {"rich", "numpy", "aiohttp", "kubernetes", "controller.cli.status"}),
        ("import sys, controller.cli.status; print(*sys.modules)", {"numpy", "kubernetes"}),
    ):
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert not unneeded_modules & set(result.stdout.split())


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        run(["--version"])
    assert capsys.readouterr().out == f"kubectl-netaware {version('netaware')}\n"


def test_every_example_of_the_help_is_valid_usage() -> None:
    commands = {name: load_command(name) for name in HELP_BY_COMMAND}
    lines = [(line.split()[0], line) for line in re.findall(r"kubectl netaware (.*?)\s{3,}", EPILOG)]
    assert lines
    assert all(command.examples for command in commands.values())
    lines += [(name, line) for name, command in commands.items() for line, _ in command.examples]
    assert [line for name, line in lines if parse(shlex.split(line)).command != name] == []
