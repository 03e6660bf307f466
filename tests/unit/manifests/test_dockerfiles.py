"""The images' recipes keep to the rules that hadolint and a security reviewer look for, and to each other.

No engine is needed: the files are read as instructions. What the instructions do is tried in tests/integration/manifests.
"""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAMES = ("Dockerfile.agent", "Dockerfile.controller")
PROGRAMS = {"Dockerfile.agent": "agent", "Dockerfile.controller": "controller"}
# Words that must not run in a final image's layers, and instructions that fetch or unpack behind one's back.
FORBIDDEN_WORDS = ("sudo", "curl", "wget", "apt ", "apt-get upgrade", "dist-upgrade", "chmod 777")


@dataclass(frozen=True)
class Instruction:
    """One instruction: its word in upper case and the rest, continuation lines joined, and the comments above it."""

    word: str
    text: str
    comments: tuple[str, ...]


def parse(name: str) -> list[Instruction]:
    found: list[Instruction] = []
    comments: list[str] = []
    pending = ""
    for line in (ROOT / name).read_text().splitlines():
        if line.lstrip().startswith("#"):
            comments.append(line.lstrip("# "))
            continue
        pending += line.removesuffix("\\").strip() + " "
        if line.endswith("\\"):
            continue
        if pending.strip():
            word, _, text = pending.strip().partition(" ")
            found.append(Instruction(word.upper(), text.strip(), tuple(comments)))
            comments = []
        pending = ""
    return found


def final_stage(instructions: list[Instruction]) -> list[Instruction]:
    last = max(i for i, instruction in enumerate(instructions) if instruction.word == "FROM")
    return instructions[last:]


def value_of(instructions: list[Instruction], word: str) -> str:
    values = [i.text for i in instructions if i.word == word]
    assert values, f"no {word}"
    return values[-1]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_bases_are_pinned_by_tag_and_can_be_pinned_by_digest(name: str) -> None:
    bases = [i.text.split()[0] for i in parse(name) if i.word == "FROM"]
    assert len(bases) == 2, "one stage builds, one stage ships"
    assert set(bases) == {"python:3.13-slim-trixie${BASE_DIGEST}"}, (
        "both stages share one base, or the environment breaks"
    )
    assert 'BASE_DIGEST=""' in [i.text for i in parse(name) if i.word == "ARG"]
    assert "@sha256:" in (ROOT / name).read_text(), "the digest's place is documented"


def test_packages_are_installed_without_extras_and_lists_are_removed_in_the_same_layer(name: str) -> None:
    installs = [i for i in parse(name) if i.word == "RUN" and "apt-get install" in i.text]
    assert installs
    for instruction in installs:
        assert "apt-get update" in instruction.text
        assert "--no-install-recommends" in instruction.text
        assert "rm -rf /var/lib/apt/lists/*" in instruction.text
        unpinned = not re.search(r"'[a-z0-9.+-]+=[^']+'", instruction.text)
        assert not unpinned or "hadolint ignore=DL3008" in instruction.comments


def test_nothing_is_fetched_or_unpacked_but_by_package_managers(name: str) -> None:
    instructions = parse(name)
    assert not [i for i in instructions if i.word == "ADD"]
    for instruction in instructions:
        if instruction.word == "RUN":
            assert not [word for word in FORBIDDEN_WORDS if word in instruction.text]
            assert "cd " not in instruction.text, "WORKDIR says where a command runs"
            assert " | " not in instruction.text, "a pipe hides a failure"


def test_python_packages_come_from_the_lock_with_no_development_tools(name: str) -> None:
    syncs = [i.text for i in parse(name) if i.word == "RUN" and "uv sync" in i.text]
    extra = PROGRAMS[name]
    assert len(syncs) == 2, "dependencies in a layer of their own, then the project"
    for text in syncs:
        assert "--frozen" in text
        assert "--no-dev" in text
        assert f"--extra {extra}" in text
        assert text.count("--extra") == 1
    assert "--no-editable" in syncs[-1], "the source tree is not in the final image"
    environment = " ".join(i.text for i in parse(name) if i.word == "ENV")
    assert "UV_COMPILE_BYTECODE=1" in environment
    pins = [i.text for i in parse(name) if i.word == "RUN" and "pip install" in i.text]
    assert len(pins) == 1
    assert re.search(r"uv==\d+\.\d+\.\d+$", pins[0])
    assert "--no-cache-dir" in pins[0]


def test_final_stage_is_labelled_with_the_version_of_the_project(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stage = final_stage(parse(name))
    labels = value_of(stage, "LABEL")
    for key in ("title", "description", "version", "revision", "licenses", "base.name"):
        assert f"org.opencontainers.image.{key}=" in labels
    assert f'org.opencontainers.image.title="netaware-{PROGRAMS[name]}"' in labels
    assert f'org.opencontainers.image.licenses="{project["license"]}"' in labels
    assert f"VERSION={project['version']}" in [i.text for i in stage if i.word == "ARG"]


def test_final_stage_runs_its_program_and_checks_it(name: str) -> None:
    stage = final_stage(parse(name))
    assert json.loads(value_of(stage, "ENTRYPOINT")) == ["python", "-m", PROGRAMS[name]]
    assert isinstance(json.loads(value_of(stage, "CMD")), list)
    health = value_of(stage, "HEALTHCHECK")
    assert "--timeout=" in health
    assert isinstance(json.loads(health.partition("CMD ")[2]), list), "no shell: its exit code would be lost"
    assert [i.text for i in stage if i.word == "COPY"] == ["--from=build /opt/netaware /opt/netaware"]
    assert not [i for i in stage if i.word == "VOLUME"]


def test_controller_runs_as_nobody_and_the_agent_says_why_it_does_not() -> None:
    assert value_of(final_stage(parse("Dockerfile.controller")), "USER") == "65532:65532"
    user = next(i for i in final_stage(parse("Dockerfile.agent")) if i.word == "USER")
    assert user.text == "0:0"
    assert any("Root, because" in line for line in user.comments)
    assert "hadolint ignore=DL3002" in user.comments


def test_only_the_agent_has_netperf() -> None:
    assert "netperf" in " ".join(i.text for i in final_stage(parse("Dockerfile.agent")) if i.word == "RUN")
    assert not [i for i in final_stage(parse("Dockerfile.controller")) if i.word == "RUN"]


def test_build_context_holds_what_is_copied_and_nothing_else(name: str) -> None:
    copied = {
        source.rstrip("/")
        for i in parse(name)
        if i.word == "COPY" and "--from" not in i.text
        for source in i.text.split()[:-1]
    }
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*", "out unless let in"
    let_in = {pattern.removeprefix("!").removesuffix("/**") for pattern in patterns if pattern.startswith("!")}
    assert copied <= let_in
    assert let_in == {
        "pyproject.toml",
        "uv.lock",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "kubekit",
        "netperf",
        "agent",
        "controller",
    }
    for source in copied:
        assert (ROOT / source).exists()
    shut_out = [pattern for pattern in patterns[1:] if not pattern.startswith("!")]
    assert any(fnmatch.fnmatch("agent/__pycache__", pattern) for pattern in shut_out)


def test_each_image_copies_its_own_program_and_not_the_other(name: str) -> None:
    copied = " ".join(i.text for i in parse(name) if i.word == "COPY")
    other = next(program for program in PROGRAMS.values() if program != PROGRAMS[name])
    assert f"{PROGRAMS[name]}/ {PROGRAMS[name]}/" in copied
    assert f"{other}/" not in copied
    assert "lab/" not in copied


def test_agents_image_has_bytecode_of_the_standard_library_too() -> None:
    """Without it each start compiles: the base image ships none, and a read-only file system keeps none."""
    stage = final_stage(parse("Dockerfile.agent"))
    words = [f"{i.word} {i.text}" for i in stage]
    compiles = next(
        number for number, text in enumerate(words) if text.startswith('RUN python -c "import agent.program')
    )
    refuses = next(number for number, text in enumerate(words) if "PYTHONDONTWRITEBYTECODE=1" in text)
    assert compiles < refuses, "what is imported while writing is refused is not kept"
