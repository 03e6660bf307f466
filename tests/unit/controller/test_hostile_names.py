"""Whatever a tenant or an agent writes into an object, no line to paste has it unquoted, and no terminal gets its escapes."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from controller.appgroups.status import admitted
from controller.cli.command import Command
from controller.cli.diagnose import Diagnose, Diagnosis
from controller.cli.graph import GraphOf
from controller.cli.output import open_screen
from controller.cli.parser import FORMATS
from controller.cli.status import ShowStatus
from controller.diagnosis.facts import Facts
from controller.diagnosis.pods import diagnose_pod
from controller.diagnosis.rules import diagnose
from controller.views.model import Overview
from controller.views.overview import build
from kubekit.text import UNSAFE_NAME, command
from tests.unit.controller.made_up import make_snapshot
from tests.unit.controller.situations import SITUATIONS, group

PAYLOAD = "x$(touch pwned)`touch pwned`; touch pwned '; touch pwned; ' \x1b]0;pwned\x07\x9b2J\u202e"
T = TypeVar("T")


def texts_in(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from (*texts_in(key), *texts_in(value))
    elif isinstance(data, list):
        for value in data:
            yield from texts_in(value)


def replaced(data: Any, old: str) -> Any:
    if isinstance(data, dict):
        return {replaced(key, old): replaced(value, old) for key, value in data.items()}
    if isinstance(data, list):
        return [replaced(value, old) for value in data]
    return PAYLOAD if data == old else data


def hostile(value: T) -> Iterator[T]:
    """The same with one text after the other replaced, wherever its type takes any text."""
    data = msgspec.json.decode(msgspec.json.encode(value))
    for text in sorted(set(texts_in(data))):
        try:
            yield msgspec.convert(replaced(data, text), type(value))
        except msgspec.ValidationError:
            continue


def lines_of(facts: Facts) -> Iterator[str]:
    for finding in diagnose(facts):
        yield from finding.fix
    for pod in facts.pods:
        yield from diagnose_pod(pod, facts).fix


def test_no_line_to_paste_runs_what_an_object_says(tmp_path: Path) -> None:
    found = {line for situation in SITUATIONS for facts in hostile(situation.facts) for line in lines_of(facts)}
    refused = admitted(group(workloads=[{"workload": {"name": "a", "selector": "a", "namespace": PAYLOAD}}]), [PAYLOAD])
    assert refused is not None
    found.add(refused.message[refused.message.rindex("kubectl label") :])
    commands = sorted(line[line.index("kubectl") :] for line in found if "kubectl" in line)
    assert len(commands) > 100
    for name in ("kubectl", "grep", "sort", "tail"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "touch").symlink_to("/usr/bin/touch")
    script = tmp_path / "all.sh"
    script.write_text("\n".join(f"( {line} )" for line in commands))
    environ = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(["/bin/bash", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("name", [PAYLOAD, "-A", "--kubeconfig=x", "a b", "a,b", "", "a\nb", "x" * 300])
def test_what_is_no_name_is_left_for_the_reader_to_fill_in(name: str) -> None:
    assert command("kubectl -n {} get pods {n}", name, n=[name, "web-1"]) == (
        f"kubectl -n {UNSAFE_NAME} get pods {UNSAFE_NAME} web-1"
    )
    assert command("-p {}", {"a": "it's"}) == """-p '{"a":"it'"'"'s"}'"""


@pytest.mark.parametrize("form", FORMATS)
def test_no_command_prints_an_escape(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(output=form, all_namespaces=False)
    status, graph, why = ShowStatus(), GraphOf(), Diagnose()

    def print_(asked: Command, answer: Any) -> str:
        stream = io.StringIO()
        screen = open_screen(stream)
        if form == "table":
            screen.print_table(asked.show(answer, options, 80))
        else:
            screen.print_data(answer, form)
        return stream.getvalue() + capsys.readouterr().out

    overviews: list[Overview] = list(hostile(build(make_snapshot(3))))
    told = [
        Diagnosis(facts.now, diagnose(facts)) for situation in SITUATIONS[::4] for facts in hostile(situation.facts)
    ]
    for view in overviews[::5]:
        text = print_(status, view) + print_(graph, list(view.groups))
        assert all(c.isprintable() or c == "\n" for c in text)
    for one in told[::5]:
        assert all(c.isprintable() or c == "\n" for c in print_(why, one))
