"""Test files that cannot share the machine run one after the other, in a chain of tests/support/chains.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chains import CHAINS

TESTS = Path(__file__).parents[2]
CHAINED = {file for files in CHAINS.values() for file in files}


# The fixture of real nodes, and the module that creates pods in this machine's cgroups.
@pytest.mark.parametrize("source_text", ["node_binaries", "pods_on_node import"])
def test_files_that_use_a_resource_of_the_machine_are_in_a_chain_or_run_alone(source_text: str) -> None:
    files = [file for folder in ("integration", "e2e") for file in (TESTS / folder).rglob("test_*.py")]
    users = [file for file in files if source_text in file.read_text()]
    assert users, "no file uses it any more"
    assert {file.stem for file in users if "pytest.mark.alone" not in file.read_text()} <= CHAINED


def test_every_file_of_a_chain_exists() -> None:
    assert {file.stem for file in TESTS.rglob("test_*.py")} >= CHAINED
