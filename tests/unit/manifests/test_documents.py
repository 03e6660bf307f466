"""Documents name commands, files, metrics and settings that exist, and references are generated. Each test names all offenders."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from agent.config import read_capacities
from controller.cli.commands import HELP_BY_COMMAND
from controller.cli.parser import build_parser
from controller.config import parse_config
from lab.__main__ import build_parser as build_lab_parser
from tests.unit.manifests.metric_names import ROOT

DOCS = ROOT / "docs"
TEXTS = {path.name: path.read_text() for path in (*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md")}


@pytest.mark.parametrize(
    "generator",
    [
        "docs/generate.py",
        ".ci/image_packages.py licences",
        "manifests/grafana/generate.py",
        "manifests/prometheus/operator/generate.py",
    ],
)
def test_generated_files_are_current(generator: str) -> None:
    command = [sys.executable, *generator.split(), "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr


def find_commands(prefix: str) -> Iterator[tuple[str, str]]:
    """The commands with a prefix in code blocks and between backticks, each with its document."""
    for name, text in TEXTS.items():
        blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for line in (*(line for block in blocks for line in block.splitlines()), *re.findall(r"`([^`\n]+)`", prose)):
            command = line.strip().removeprefix("$ ")
            if command.startswith(prefix + " ") and "..." not in command and "<" not in command:
                yield name, command


def test_commands_in_documents_are_right_usage() -> None:
    def is_wrong(parser: argparse.ArgumentParser, line: str, prefix: str) -> bool:
        arguments = shlex.split(line.partition(" | ")[0].removeprefix(prefix), comments=True)
        if len(arguments) <= 1:  # Prose may name a command without its arguments.
            return False
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                parser.parse_args(arguments)
        except SystemExit:
            return True
        return False

    parsers = {"kubectl netaware": build_parser([*HELP_BY_COMMAND]), "python -m lab": build_lab_parser()}
    assert [
        (name, line)
        for prefix, parser in parsers.items()
        for name, line in find_commands(prefix)
        if is_wrong(parser, line, prefix)
    ] == []


def test_configurations_in_documents_and_manifests_are_read(tmp_path: Path) -> None:
    def read_agent(block: str) -> object:
        (tmp_path / "agent.yaml").write_text(block)
        return read_capacities(tmp_path / "agent.yaml")

    readers: dict[str, Callable[[str], object]] = {
        "AgentConfiguration": read_agent,
        "ControllerConfiguration": lambda block: parse_config(block, "the document"),
    }
    blocks = [block for text in TEXTS.values() for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    blocks += [path.read_text() for path in (ROOT / "manifests").rglob("config.yaml")]
    configurations = [
        readers[kind[1]](block)
        for block in blocks
        if (kind := re.search(r"^kind: (\w+)$", block, re.MULTILINE)) and kind[1] in readers
    ]
    assert len(configurations) >= 4


def test_links_between_documents_lead_somewhere() -> None:
    dead_links = []
    for path in (*DOCS.glob("**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text()):
            file, _, anchor = target.partition("#")
            linked = (path.parent / file).resolve() if file else path
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE) if anchor and linked.exists() else []
            anchors = {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
            if not linked.exists() or (anchor and anchor not in anchors):
                dead_links.append((path.name, target))
    assert dead_links == []


def test_files_and_metrics_that_documents_name_exist() -> None:
    # A word in capitals stands for a name that the reader chooses.
    paths = re.compile(r"`((?:agent|controller|kubekit|netperf|manifests|docs|tests|lab)/[\w./-]+)")
    named_paths = {(name, path) for name, text in TEXTS.items() for path in paths.findall(text)}
    for section in TEXTS["architecture.md"].split("\n## "):
        if folder := re.search(r"Files without a folder are in `([\w/]+/)`", section):
            named_paths |= {("architecture.md", folder[1] + file) for file in re.findall(r"`(\w+\.py)`", section)}
    missing_paths = [(name, path) for name, path in named_paths if not (ROOT / path).exists()]
    assert [(name, path) for name, path in missing_paths if not re.search("[A-Z]{4}", path)] == []
    named_metrics = {(name, m) for name, text in TEXTS.items() for m in re.findall(r"`(netaware_\w+)`", text)}
    metrics = {metric for name, metric in named_metrics if name == "metrics.md"}
    assert len(metrics) > 40
    assert [(name, metric) for name, metric in named_metrics if metric not in metrics] == []


def test_definitions_that_the_architecture_names_are_in_these_files() -> None:
    names = re.findall(r"`(?:\w+\.)*(\w+)`(?: in | \()`([\w/]+\.py)`", TEXTS["architecture.md"])
    assert len(names) > 10
    assert [(name, path) for name, path in names if not re.search(rf"\b{name}\b", (ROOT / path).read_text())] == []


def test_the_installation_page_says_what_the_manifests_request() -> None:
    text = TEXTS["install.md"]
    row = r"^\| ([\w-]+)[^|]*\| (one per node|\d) \| (\w+) \| (\w+) \| (\w+) \|$"
    rows = re.findall(row, text, re.MULTILINE)
    documented = {name: (cpu, memory, limit) for name, _, cpu, memory, limit in rows}
    shipped = {}
    for path in (*(ROOT / "manifests" / "base").glob("*/d*.yaml"), ROOT / "manifests/components/gates/opener.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document["kind"] in {"DaemonSet", "Deployment"}:
                for container in document["spec"]["template"]["spec"]["containers"]:
                    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
                    shipped[container["name"]] = (requests["cpu"], requests["memory"], limits["memory"])
    assert documented == shipped
    central_rows = [(int(pods), cpu, memory) for _, pods, cpu, memory, _ in rows if pods.isdigit()]
    cpu = sum(pods * int(cpu.removesuffix("m")) for pods, cpu, _ in central_rows)
    memory = sum(pods * int(memory.removesuffix("Mi")) for pods, _, memory in central_rows)
    assert f"that is {cpu}m and {memory}Mi of requests" in text
