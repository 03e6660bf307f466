"""Programs as images and manifests start them: modules, arguments and configurations that they know."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest
import yaml

from lab.image_build import AGENT, CONTROLLER
from tests.unit.manifests.metric_names import ROOT

MANIFESTS = ROOT / "manifests"


def test_agents_image_writes_bytecode_of_modules_that_exist() -> None:
    (modules,) = re.findall(r'^RUN python -c "import (.+)"$', (ROOT / "Dockerfile.agent").read_text(), re.MULTILINE)
    for module in modules.split(", "):
        import_module(module)


def test_the_build_context_holds_what_the_images_copy_and_each_image_its_own_program() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*", "everything is excluded unless included below"
    included = {pattern.removeprefix("!").removesuffix("/**") for pattern in patterns if pattern.startswith("!")}
    agent, controller = set(AGENT.sources), set(CONTROLLER.sources)
    assert (agent | controller, agent - controller, controller - agent) == (included, {"agent"}, {"controller"})


@pytest.mark.parametrize("program", ["agent", "controller"])
def test_programs_accept_the_arguments_in_the_manifests(program: str) -> None:
    """They parse their arguments before they look for a token, which is missing here."""
    variables = {"NODE_NAME": "node-a", "NODE_IP": "127.0.0.1", "POD_IP": "127.0.0.1", "POD_NAMESPACE": "ns"}
    config = f"--config={MANIFESTS / 'base' / program / 'config.yaml'}"
    documents = [d for path in (MANIFESTS / "base").rglob("*.yaml") for d in yaml.safe_load_all(path.read_text()) if d]
    specs = [(d.get("spec") or {}).get("template", {}).get("spec", {}) for d in documents]
    containers = [c for spec in specs for c in spec.get("containers", ()) if c["image"] == f"netaware-{program}"]
    assert containers
    for container in containers:
        words = [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word) for word in container["args"]]
        argv = [sys.executable, "-m", program, *(config if w.startswith("--config=") else w for w in words)]
        result = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=ROOT, env=variables, timeout=60)
        assert (result.returncode, "--credentials: /var/run" in result.stderr) == (2, True), f"{words}: {result.stderr}"
