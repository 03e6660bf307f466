"""The images' build steps, run for real without a container engine: what the recipes install works and is as small as said."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.manifests.kubectl import MANIFESTS

pytestmark = pytest.mark.helm
ROOT = MANIFESTS.parent
# What installs take on the disk, bytecode included, in MiB.
LIMITS_MIB = {"agent": 42, "controller": 150}
ABSENT = {
    "agent": ("kubernetes", "pydantic", "requests", "numpy", "rich", "controller", "lab"),
    "controller": ("kubernetes", "pydantic", "psutil", "pyroute2", "agent", "lab"),
}


class Built(NamedTuple):
    """A program's environment that the final stage copies."""

    program: str
    home: Path

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python away from the source tree, as in the image."""
        command = [str(self.home / "bin" / "python"), *arguments]
        environment = {"PATH": f"{self.home / 'bin'}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, check=False, capture_output=True, text=True, cwd="/", env=environment, timeout=60
        )


def steps(program: str) -> list[list[str]]:
    """Source copies and uv's commands of the build stage, in order, as words."""
    text = (ROOT / f"Dockerfile.{program}").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    build = lines[: next(i for i, line in enumerate(lines[2:], 2) if line.startswith("FROM"))]
    return [shlex.split(line) for line in build if line.startswith(("COPY ", "RUN uv "))]


@pytest.fixture(scope="module", params=sorted(LIMITS_MIB))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    program = str(request.param)
    source, home = tmp_path_factory.mktemp("src"), tmp_path_factory.mktemp("opt") / "netaware"
    done = subprocess.run(["sh", str(ROOT / ".ci" / "uv")], check=True, capture_output=True, text=True, timeout=110)
    uv = done.stdout.strip()
    settings = {
        "UV_PROJECT_ENVIRONMENT": str(home),
        "UV_COMPILE_BYTECODE": "1",
        "UV_LINK_MODE": "copy",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    inherited = {
        key: value for key, value in os.environ.items() if key not in {"VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    }
    for words in steps(program):
        if words[0] == "COPY":
            for name in words[1:-1]:
                if (ROOT / name).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
                    shutil.copytree(ROOT / name, source / name.rstrip("/"), ignore=ignored)
                else:
                    shutil.copy(ROOT / name, source / name)
            continue
        command = [uv, *words[2:]]
        # From the cache that the project's own environment was installed from; the network only where that was cleared.
        for offline in ({"UV_OFFLINE": "1"}, {}):
            environment = {**inherited, **settings, **offline}
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, cwd=source, env=environment, timeout=110
            )
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stderr
    return Built(program, home)


def test_program_starts_from_a_small_installation_without_what_it_does_not_need(built: Built) -> None:
    done = built.python("-m", built.program, "--help")
    assert "COMMAND" in done.stdout, done.stderr
    for module in ABSENT[built.program]:
        assert f"No module named '{module}'" in built.python("-c", f"import {module}").stderr, module
    size = sum(path.lstat().st_size for path in built.home.rglob("*") if path.is_file())
    assert size <= LIMITS_MIB[built.program] << 20, f"{size / 2**20:.0f} MiB"


def test_the_build_context_holds_what_the_images_copy_and_each_image_its_own_program() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*", "everything is excluded unless included below"
    included = {pattern.removeprefix("!").removesuffix("/**") for pattern in patterns if pattern.startswith("!")}
    copied = {
        program: {word.rstrip("/") for words in steps(program) if words[0] == "COPY" for word in words[1:-1]}
        for program in LIMITS_MIB
    }
    assert copied["agent"] | copied["controller"] == included
    assert ("controller" in copied["agent"], "agent" in copied["controller"]) == (False, False)
