"""Documents name commands, files, metrics and settings that exist, and generated files are current."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
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


def find_commands(prefix: str) -> Iterator[tuple[str, str]]:
    """The commands with a prefix in code blocks and between backticks, each after its document's name."""
    for name, text in TEXTS.items():
        blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for line in (*(line for block in blocks for line in block.splitlines()), *re.findall(r"`([^`\n]+)`", prose)):
            command = line.strip().removeprefix("$ ")
            if command.startswith(prefix + " ") and "..." not in command and "<" not in command:
                yield name, command


def is_accepted(parser: argparse.ArgumentParser, command: str, prefix: str) -> bool:
    """Whether a parser accepts the arguments after the prefix, up to a pipe."""
    arguments = shlex.split(command.partition(" | ")[0].removeprefix(prefix), comments=True)
    if len(arguments) <= 1:  # Prose may name a command without its arguments.
        return True
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parser.parse_args(arguments)
    except SystemExit:
        return False
    return True


def list_configurations(kind: str) -> list[str]:
    """The YAML documents of a kind in manifests and in code blocks of documents."""
    blocks = [block for text in TEXTS.values() for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    blocks += [path.read_text() for path in (ROOT / "manifests").rglob("config.yaml")]
    return [block for block in blocks if re.search(rf"^kind: {kind}$", block, re.MULTILINE)]


def list_anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


def list_named_paths() -> set[tuple[str, str]]:
    """Document and path of each file or folder between backticks, also of those in tables of architecture.md."""
    packages = r"`((?:agent|controller|kubekit|netperf|manifests|docs|tests|lab)/[\w./-]+)"
    named_paths = {(name, path) for name, text in TEXTS.items() for path in re.findall(packages, text)}
    for section in TEXTS["architecture.md"].split("\n## "):
        if folder := re.search(r"Files without a folder are in `([\w/]+/)`", section):
            named_paths |= {("architecture.md", folder[1] + file) for file in re.findall(r"`(\w+\.py)`", section)}
    return named_paths


def read_shipped_resources() -> dict[str, tuple[str, str, str]]:
    """Container -> CPU request, memory request and memory limit in the manifests."""
    resources_by_container = {}
    for path in (*(ROOT / "manifests" / "base").glob("*/d*.yaml"), ROOT / "manifests/components/gates/opener.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document["kind"] in {"DaemonSet", "Deployment"}:
                for container in document["spec"]["template"]["spec"]["containers"]:
                    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
                    resources_by_container[container["name"]] = (requests["cpu"], requests["memory"], limits["memory"])
    return resources_by_container


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
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stderr


def test_commands_in_documents_are_right_usage() -> None:
    parsers = {"kubectl netaware": build_parser([*HELP_BY_COMMAND]), "python -m lab": build_lab_parser()}
    for prefix, parser in parsers.items():
        commands = list(find_commands(prefix))
        assert commands
        assert [(name, line) for name, line in commands if not is_accepted(parser, line, prefix)] == []


def test_configurations_in_documents_and_manifests_are_read(tmp_path: Path) -> None:
    agent_configurations = list_configurations("AgentConfiguration")
    controller_configurations = list_configurations("ControllerConfiguration")
    assert len(agent_configurations) + len(controller_configurations) >= 4
    for configuration in agent_configurations:
        (tmp_path / "agent.yaml").write_text(configuration)
        read_capacities(tmp_path / "agent.yaml")
    for configuration in controller_configurations:
        parse_config(configuration, "the document")


def test_links_between_documents_lead_somewhere() -> None:
    dead_links = []
    for document in (*DOCS.glob("**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text()):
            file, _, anchor = target.partition("#")
            linked_file = (document.parent / file).resolve() if file else document
            if not linked_file.exists() or (anchor and anchor not in list_anchors(linked_file)):
                dead_links.append((document.name, target))
    assert dead_links == []


def test_files_that_documents_name_exist() -> None:
    missing_paths = [(name, path) for name, path in list_named_paths() if not (ROOT / path).exists()]
    # A word in capitals stands for a name that the reader chooses.
    assert [(name, path) for name, path in missing_paths if not re.search("[A-Z]{4}", path)] == []


def test_metrics_that_documents_name_are_in_the_reference_of_metrics() -> None:
    named_metrics = {(name, metric) for name, text in TEXTS.items() for metric in re.findall(r"`(netaware_\w+)`", text)}
    reference = {metric for name, metric in named_metrics if name == "metrics.md"}
    assert len(reference) > 40
    assert [(name, metric) for name, metric in named_metrics if metric not in reference] == []


def test_definitions_that_the_architecture_names_are_in_these_files() -> None:
    definitions = re.findall(r"`(?:\w+\.)*(\w+)`(?: in | \()`([\w/]+\.py)`", TEXTS["architecture.md"])
    assert len(definitions) > 10
    assert [
        (name, path) for name, path in definitions if not re.search(rf"\b{name}\b", (ROOT / path).read_text())
    ] == []


def test_the_installation_page_says_what_the_manifests_request() -> None:
    row = r"^\| ([\w-]+)[^|]*\| (one per node|\d) \| (\w+) \| (\w+) \| (\w+) \|$"
    rows = re.findall(row, TEXTS["install.md"], re.MULTILINE)
    assert {name: (cpu, memory, limit) for name, _, cpu, memory, limit in rows} == read_shipped_resources()

    central_rows = [(int(pods), cpu, memory) for _, pods, cpu, memory, _ in rows if pods.isdigit()]
    cpu_m = sum(pods * int(cpu.removesuffix("m")) for pods, cpu, _ in central_rows)
    memory_mi = sum(pods * int(memory.removesuffix("Mi")) for pods, _, memory in central_rows)
    assert f"that is {cpu_m}m and {memory_mi}Mi of requests" in TEXTS["install.md"]
