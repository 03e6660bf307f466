"""A name of a class means one thing in each program, so that a search for it finds what is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.syntax import parsed

ROOT = Path(__file__).parents[3]
PLATFORM, DOMAIN = "kubekit", "netperf"


@pytest.mark.parametrize("rooms", [(PLATFORM, DOMAIN, "agent"), (PLATFORM, DOMAIN, "controller"), (PLATFORM, "lab")])
def test_no_public_class_has_the_name_of_another(rooms: tuple[str, ...]) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in (file for room in rooms for file in (ROOT / room).rglob("*.py")):
        for found in parsed(file).body:
            if isinstance(found, ast.ClassDef) and not found.name.startswith("_"):
                places[found.name].append(str(file.relative_to(ROOT)))
    assert places
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
