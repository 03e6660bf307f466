"""What documents say to type is right usage, their configuration is read by the programs, and their figures are the manifests'."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.config import read_file
from controller.cli.commands import COMMANDS
from controller.cli.parser import build_parser
from controller.config import parse_config
from lab.__main__ import build_parser as build_lab_parser

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
COST = ROOT / "docs" / "cost.md"


def code_in(text: str) -> list[str]:
    """Lines of code blocks, and what stands between backticks."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    rest = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [*(line.strip() for block in blocks for line in block.splitlines()), *re.findall(r"`([^`\n]+)`", rest)]


def commands_of(prefix: str) -> list[Any]:
    found = set()
    for path in DOCUMENTS:
        for line in code_in(path.read_text()):
            bare = line.removeprefix("$ ")
            if bare.startswith(prefix + " ") and "..." not in bare and "<" not in bare:
                found.add((path.name, bare))
    return [pytest.param(line, id=f"{name}: {line[:60]}") for name, line in sorted(found)]


@pytest.mark.parametrize("line", commands_of("kubectl netaware"))
def test_every_command_that_a_document_names_is_right_usage(line: str) -> None:
    words = shlex.split(line.partition(" | ")[0], comments=True)[2:]
    # The bare name of a command is prose.
    if len(words) > 1:
        build_parser(COMMANDS).parse_args(words)


@pytest.mark.parametrize("line", commands_of("python -m lab"))
def test_every_command_of_the_lab_that_a_document_names_is_right_usage(line: str) -> None:
    words = shlex.split(line, comments=True)[3:]
    if len(words) > 1:
        build_lab_parser().parse_args(words)


def configurations(kind: str) -> list[Any]:
    found = []
    for path in DOCUMENTS:
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL)):
            if re.search(rf"^kind: {kind}$", block, re.MULTILINE):
                found.append(pytest.param(block, id=f"{path.name} {number}"))
    return found


@pytest.mark.parametrize("block", configurations("AgentConfiguration"))
def test_agent_configurations_of_documents_are_read(block: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(block)
    read_file(file)


@pytest.mark.parametrize("block", configurations("ControllerConfiguration"))
def test_controller_configurations_of_documents_are_read(block: str) -> None:
    parse_config(block, "the document")


def containers() -> dict[str, dict[str, Any]]:
    """Container -> its resources, over the default overlay's workloads."""
    found: dict[str, dict[str, Any]] = {}
    for path in (*(ROOT / "manifests" / "base").glob("*/d*.yaml"), ROOT / "manifests/components/gates/opener.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document["kind"] in {"DaemonSet", "Deployment"}:
                for container in document["spec"]["template"]["spec"]["containers"]:
                    found[container["name"]] = container["resources"]
    return found


def test_what_the_programs_ask_for_is_what_the_cost_page_says() -> None:
    rows = re.findall(
        r"^\| ([\w-]+)[^|]*\| (one a node|\d) \| (\w+) \| (\w+) \| (\w+) \|$", COST.read_text(), re.MULTILINE
    )
    said = {name: (cpu, memory, limit) for name, _, cpu, memory, limit in rows}
    real = {
        name: (asked["requests"]["cpu"], asked["requests"]["memory"], asked["limits"]["memory"])
        for name, asked in containers().items()
    }
    assert said == real
    central = [(name, int(pods)) for name, pods, *_ in rows if pods.isdigit()]
    cpu = sum(pods * int(said[name][0].removesuffix("m")) for name, pods in central)
    memory = sum(pods * int(said[name][1].removesuffix("Mi")) for name, pods in central)
    assert f"that is {cpu}m and {memory}Mi" in COST.read_text()
