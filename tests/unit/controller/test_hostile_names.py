"""Texts of tenants and agents in objects: commands to paste never run them, and terminals never get their control characters."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from aiohttp import web

from controller.appgroups.status import build_status, compute_group_state, consent_condition
from controller.cli.output import Screen
from controller.cli.parser import FORMATS
from controller.cli.run import run
from controller.cluster.costs import locations_of
from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.events import FindingEventFilter
from controller.diagnosis.facts import Facts, build_facts
from controller.diagnosis.pod_diagnosis import diagnose_pod
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page.server import _compute_page_data
from kubekit import logs
from kubekit.errors import KubekitError
from kubekit.text import NAME_PLACEHOLDER, format_command
from tests.unit.controller.cluster_facts import NOW_S
from tests.unit.controller.commands import load_command_with_options, write_kubeconfig
from tests.unit.controller.hostile_objects import (
    APPLICATIONS,
    FORGED,
    PAYLOAD,
    PAYLOADS,
    HostileCluster,
    hostile_text,
    make_objects,
    read_hostile_traffic,
)
from tests.unit.controller.situations import SITUATIONS
from tests.unit.kubekit.simulated_api import run_server

LARGE_ANSWERS = ("status", "diagnose", "graph")
"""Commands whose answers would take ten seconds each as YAML."""
COMMANDS = [
    ("status", "-A"),
    ("diagnose",),
    ("diagnose", "pod", hostile_text("odd4", 4)),
    ("graph", "-A"),
    ("explain", "pod", hostile_text("odd0", 1)),
    ("propose", "-n", hostile_text("ns", 3)),
    ("propose", "-n", hostile_text("ns", 4), "--manifests"),
    ("money",),
]
T = TypeVar("T")


def make_hostile_copies(value: T) -> Iterator[T]:
    """Copies of a value, each with another of its texts replaced by `PAYLOAD`; only those that its type accepts."""
    encoded = msgspec.json.encode(value).decode()
    for text in sorted(set(re.findall(r'"(?:[^"\\]|\\.)*"', encoded))):
        try:
            yield msgspec.json.decode(encoded.replace(text, json.dumps(PAYLOAD)), type=type(value))
        except msgspec.ValidationError:
            continue


def list_fixes(facts: Facts) -> Iterator[str]:
    for finding in diagnose(facts):
        yield from finding.fix
    for pod in facts.pods:
        yield from diagnose_pod(pod, facts).fix


def assert_pasting_is_safe(lines: Iterable[str], folder: Path) -> None:
    """Run all commands of these lines in a shell where kubectl does nothing, and assert that nothing else runs."""
    for line in lines:
        assert "$(touch" not in line.partition("kubectl")[0], "a text stands before the command"
    commands = sorted(line[line.index("kubectl") :] for line in lines if "kubectl" in line)
    assert len(commands) > 10
    for name in ("kubectl", "grep", "sort", "tail"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    (folder / "touch").symlink_to("/usr/bin/touch")
    script = folder / "all.sh"
    script.write_text("\n".join(f"( {line} )" for line in commands))
    environ = {**os.environ, "PATH": str(folder)}
    result = subprocess.run(["/bin/bash", script], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert not (folder / "pwned").exists()


def assert_harmless(output: str, output_format: str = "table") -> None:
    """Assert that output has no control characters, and no line that is a text's; YAML quotes texts of several lines."""
    assert {c for c in set(output) if not c.isprintable()} <= {"\n"}
    forged_lines = [line for line in output.split("\n") if line.strip().startswith((FORGED, "✓ nothing"))]
    assert output_format == "yaml" or forged_lines == []


async def print_harmless_answer(
    cluster: HostileCluster, capsys: pytest.CaptureFixture[str], *argv: str
) -> Iterator[str]:
    """Print a command's answer in all formats, and its notes, and assert that they are harmless; the answer's fixes."""
    command, options = load_command_with_options(*argv)
    session = cluster.session(None if options.all_namespaces else options.namespace or None)
    answer = await command.run(session, options)
    for options.output in FORMATS:
        if options.output == "yaml" and argv[0] in LARGE_ANSWERS:
            continue
        stream = io.StringIO()
        Screen(stream).print_answer(command, answer, options)
        output = stream.getvalue() + capsys.readouterr().out
        assert output
        assert_harmless(output, options.output)
    for note in [*session.notes, *map(": ".join, session.read_errors.items())]:
        Screen().print_note(note)
    assert_harmless(capsys.readouterr().err)
    pod = getattr(answer, "pod", None) or getattr(answer, "diagnosis", None)
    findings = [*getattr(answer, "findings", ()), *([pod] if pod else [])]
    return (fix for finding in findings for fix in finding.fix)


def list_notes_and_messages(snapshot: ClusterSnapshot) -> Iterator[str]:
    """Notes of events about findings, and messages of AppGroups' conditions."""
    event_filter, facts, membership = FindingEventFilter(), build_facts(snapshot), snapshot.build_membership()
    findings = diagnose(facts)
    event_filter.select_events(findings, facts)
    yield from (event.note for event in event_filter.select_events(findings, facts))
    costs, locations = snapshot.build_cost_index().for_namespace("").table, locations_of(snapshot.nodes)
    for group in snapshot.groups:
        state = compute_group_state(group, (), locations, costs, membership)
        refusal = consent_condition(group, membership.list_namespaces_without_consent(group.metadata.key))
        status = build_status(group, state, NOW_S, extra_conditions=[refusal] if refusal else [])
        yield from (condition.message for condition in status.conditions or ())


async def refuse(_: web.Request) -> web.Response:
    """Refuse a request with a Status that has all payloads."""
    body = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "".join(PAYLOADS)}
    return web.json_response(body, status=403)


def test_commands_to_paste_never_run_text_of_objects(tmp_path: Path) -> None:
    assert_pasting_is_safe(
        {
            line
            for situation in SITUATIONS
            for facts in make_hostile_copies(situation.facts)
            for line in list_fixes(facts)
        },
        tmp_path,
    )


@pytest.mark.parametrize("name", [PAYLOAD, "-A", "--kubeconfig=x", "a b", "a,b", "", "a\nb", "x" * 300])
def test_invalid_names_become_a_placeholder(name: str) -> None:
    assert format_command("kubectl -n {} get pods {n}", name, n=[name, "web-1"]) == (
        f"kubectl -n {NAME_PLACEHOLDER} get pods {NAME_PLACEHOLDER} web-1"
    )
    assert format_command("-p {}", {"a": "it's"}) == """-p '{"a":"it'"'"'s"}'"""


async def test_ten_thousand_hostile_objects_reach_no_command_line_terminal_or_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("controller.cli.propose.read_traffic", read_hostile_traffic)
    monkeypatch.setattr("controller.cli.money.read_traffic", read_hostile_traffic)
    cluster = HostileCluster(*(body for number in APPLICATIONS for body in make_objects(number)))
    assert len(cluster.objects) >= 10_000
    await cluster.read_snapshot()
    fixes = {fix for argv in COMMANDS for fix in await print_harmless_answer(cluster, capsys, *argv)}
    assert_harmless(gzip.decompress(_compute_page_data(cluster.snapshot).body).decode())
    notes = list(list_notes_and_messages(cluster.snapshot))
    assert len(notes) > 500
    for note in notes:
        assert_harmless(note)
        assert "\n" not in note
    assert_pasting_is_safe(fixes | {note[note.rindex("kubectl") :] for note in notes if "kubectl" in note}, tmp_path)


async def test_an_error_of_the_api_server_is_one_printable_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with run_server(refuse) as config:
        kubeconfig = write_kubeconfig(tmp_path, config.server)
        assert await asyncio.to_thread(run, ["diagnose", "--kubeconfig", kubeconfig]) == 1
    errors = capsys.readouterr().err
    assert_harmless(errors)
    assert errors.count("\n") == 1


@pytest.mark.parametrize("log_format", logs.FORMATS)
def test_logs_have_no_lines_of_foreign_text(log_format: str) -> None:
    stream = io.StringIO()
    logs.configure(format_=log_format, stream=stream)
    for payload in PAYLOADS:
        logs.get("test").log_change(payload, payload, payload, payload=payload)
        try:
            raise KubekitError(payload)
        except KubekitError as error:
            logs.get("test").log_exception(payload, error, payload=payload)
    lines = stream.getvalue().splitlines()
    # Lines that are indented belong to a trace.
    entries = [line for line in lines if not line.startswith("    ")]
    assert_harmless("\n".join(entries))
    assert len(entries) == 2 * len(PAYLOADS)
    assert {c for line in lines for c in line if not c.isprintable()} == set()
