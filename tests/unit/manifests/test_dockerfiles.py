"""Rules that both Dockerfiles keep. Their steps run in tests/integration/manifests/test_image_steps.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = ("agent", "controller")


def instructions(program: str) -> list[tuple[str, str]]:
    """Word and text of each instruction, continuation lines joined, comments left out."""
    text = (ROOT / f"Dockerfile.{program}").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = [line.strip() for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]
    return [(word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in joined)]


def texts(program: str, word: str, *, final: bool = False) -> list[str]:
    """The texts of all instructions of that word, or of those in the final stage."""
    found = instructions(program)
    last_from = max(i for i, (name, _) in enumerate(found) if name == "FROM")
    return [text for name, text in (found[last_from:] if final else found) if name == word]


@pytest.mark.parametrize("program", PROGRAMS)
def test_base_and_packages_are_pinned_and_nothing_is_fetched_otherwise(program: str) -> None:
    assert {base.split()[0] for base in texts(program, "FROM")} == {"python:3.13-slim-trixie${BASE_DIGEST}"}
    assert 'BASE_DIGEST=""' in texts(program, "ARG")
    runs = texts(program, "RUN")
    for run in (run for run in runs if "apt-get install" in run):
        assert "--no-install-recommends" in run
        assert "rm -rf /var/lib/apt/lists/*" in run
    assert [run for run in runs if re.search(r"sudo|curl|wget|apt |upgrade|chmod 777|\bcd | \| ", run)] == []
    assert texts(program, "ADD") == []
    (pip,) = [run for run in runs if "pip install" in run]
    assert re.search(r"uv==\d+\.\d+\.\d+$", pip)
    syncs = [run for run in runs if "uv sync" in run]
    assert all(f"--frozen --no-dev --extra {program}" in run and run.count("--extra") == 1 for run in syncs)
    assert "--no-editable" in syncs[-1], "the final image has no source tree"


@pytest.mark.parametrize("program", PROGRAMS)
def test_final_stage_is_labelled_runs_its_program_and_checks_it(program: str) -> None:
    (labels,) = texts(program, "LABEL", final=True)
    for key in ("title", "description", "version", "revision", "licenses", "base.name"):
        assert f"org.opencontainers.image.{key}=" in labels
    assert json.loads(texts(program, "ENTRYPOINT")[0]) == ["python", "-m", program]
    (health,) = texts(program, "HEALTHCHECK", final=True)
    assert isinstance(json.loads(health.partition("CMD ")[2]), list), "a shell would lose the exit code"
    assert texts(program, "COPY", final=True) == ["--from=build /opt/netaware /opt/netaware"]
    assert texts(program, "USER") == (["65532:65532"] if program == "controller" else ["0:0"])
    assert ("netperf" in " ".join(texts(program, "RUN", final=True))) == (program == "agent")


def sources(program: str) -> Iterator[str]:
    for copy in texts(program, "COPY"):
        if "--from" not in copy:
            yield from (name.rstrip("/") for name in copy.split()[:-1])


def test_the_build_context_holds_what_the_images_copy_and_each_image_its_own_program() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*", "everything is excluded unless included below"
    included = {pattern.removeprefix("!").removesuffix("/**") for pattern in patterns if pattern.startswith("!")}
    assert {name for program in PROGRAMS for name in sources(program)} == included
    assert "controller" not in set(sources("agent"))
    assert "agent" not in set(sources("controller"))


def test_the_agents_image_imports_modules_that_exist_and_keeps_their_bytecode() -> None:
    """The base image has none and a read-only file system keeps none, so each start would compile."""
    words = [f"{word} {text}" for word, text in instructions("agent")]
    prefix = "RUN python -c "
    ((at, line),) = [(i, text) for i, text in enumerate(words) if text.startswith(prefix)]
    assert at < next(i for i, text in enumerate(words) if "PYTHONDONTWRITEBYTECODE=1" in text)
    for module in line.removeprefix(f'{prefix}"import ').rstrip('"').split(", "):
        import_module(module)
