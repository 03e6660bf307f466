"""The page on architecture names files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.syntax import parsed

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "architecture.md"
STEP = re.compile(r"`((?:agent|controller|netperf|kubekit|manifests|tests)/[\w./-]+?\.(?:py|yaml))(?::(\w+))?`")


def defined_in(path: Path) -> set[str]:
    names: set[str] = set()
    for node in parsed(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_every_step_is_a_function_that_exists() -> None:
    steps = STEP.findall(PAGE.read_text())
    assert len(steps) > 50
    missing = [file for file, _ in steps if not (ROOT / file).is_file()]
    assert missing == []
    assert [f"{file}:{name}" for file, name in steps if name and name not in defined_in(ROOT / file)] == []


def returned_by(file: str, name: str) -> str:
    """A function's return annotation; empty where the name is a class's, or none."""
    for node in parsed(ROOT / file).body if name and file.endswith(".py") else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return ast.unparse(node.returns) if node.returns else ""
    return ""


def test_what_a_step_hands_over_is_what_one_of_its_functions_returns() -> None:
    """Of rows that begin with a type and name a function."""
    wrong, held = [], 0
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        told = re.match(r"`([A-Z]\w+)`", cells[3]) if len(cells) == 5 else None
        returned = [text for step in STEP.findall(cells[2]) if (text := returned_by(*step))] if told else []
        if told and returned:
            held += 1
            wrong += [line] * (told[1] not in re.findall(r"\w+", " ".join(returned)))
    assert wrong == []
    assert held >= 10


def test_the_rooms_are_listed_in_the_order_that_the_linter_keeps() -> None:
    layers = re.search(
        r'containers = \["controller"\]\nlayers = \[(.*?)\]\n', (ROOT / "pyproject.toml").read_text(), re.S
    )
    assert layers is not None
    kept = [name for name in re.findall(r"\w+", layers[1]) if (ROOT / "controller" / name).is_dir()]
    sentence = PAGE.read_text().split("Inside the controller it goes")[1].split(".")[0]
    told = [name for name in re.findall(r"\w+", sentence) if (ROOT / "controller" / name).is_dir()]
    position = {name: i for i, name in enumerate(kept)}
    siblings = {"topology", "groups", "traffic", "webhook"}
    assert set(told) == set(kept)
    assert [n for n in told if n not in siblings] == sorted(
        (n for n in told if n not in siblings), key=position.__getitem__
    )
