"""Images hold their programs, programs accept the arguments of manifests, and the package's version comes from git."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.image_build import AGENT, CONTROLLER
from tests.unit.manifests.metric_names import ROOT

MANIFESTS = ROOT / "manifests"
ROOT = Path(__file__).parents[3]


def list_containers() -> list[dict[str, Any]]:
    """The containers of all pod templates in manifests/base."""
    documents = [yaml.safe_load_all(path.read_text()) for path in (MANIFESTS / "base").rglob("*.yaml")]
    specs = [(document or {}).get("spec") or {} for document in chain.from_iterable(documents)]
    return [item for spec in specs for item in spec.get("template", {}).get("spec", {}).get("containers", ())]


def compute_version(folder: Path) -> str:
    command = [sys.executable, "-m", "hatchling", "version"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, timeout=60).stdout.strip()


def run_git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, cwd=folder, timeout=60)


def test_agents_image_writes_bytecode_of_modules_that_exist() -> None:
    (modules,) = re.findall(r'^RUN python -c "import (.+)"$', (ROOT / "Dockerfile.agent").read_text(), re.MULTILINE)
    for module in modules.split(", "):
        import_module(module)


def test_the_build_context_holds_what_the_images_copy_and_each_image_its_own_program() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*", "everything is excluded unless included below"
    included = {pattern.removeprefix("!").removesuffix("/**") for pattern in patterns if pattern.startswith("!")}
    assert included == {*AGENT.sources, *CONTROLLER.sources}
    assert set(AGENT.sources) - set(CONTROLLER.sources) == {"agent"}
    assert set(CONTROLLER.sources) - set(AGENT.sources) == {"controller"}


@pytest.mark.parametrize("program", ["agent", "controller"])
def test_programs_accept_the_arguments_in_the_manifests(program: str) -> None:
    """They parse their arguments before they look for a token, which is missing here."""
    variables = {"NODE_NAME": "node-a", "NODE_IP": "127.0.0.1", "POD_IP": "127.0.0.1", "POD_NAMESPACE": "ns"}
    shipped_config = f"--config={MANIFESTS / 'base' / program / 'config.yaml'}"
    containers = [container for container in list_containers() if container["image"] == f"netaware-{program}"]
    assert containers
    for container in containers:
        arguments = [re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], text) for text in container["args"]]
        arguments = [shipped_config if argument.startswith("--config=") else argument for argument in arguments]
        argv = [sys.executable, "-m", program, *arguments]
        ended = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env=variables, timeout=60, check=False)
        assert ended.returncode == 2, f"{arguments}: {ended.stderr}"
        assert "--credentials: /var/run" in ended.stderr, arguments


def test_the_version_is_the_tag_or_the_next_development_version_and_needs_no_git(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    assert compute_version(tmp_path) == "0.0.0"
    run_git(tmp_path, "init")
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "-m", "first")
    assert compute_version(tmp_path).startswith("0.0.1.dev1+g")
    run_git(tmp_path, "tag", "v1.2.3")
    assert compute_version(tmp_path) == "1.2.3"
    run_git(tmp_path, "commit", "--allow-empty", "-m", "second")
    assert compute_version(tmp_path).startswith("1.2.4.dev1+g")
