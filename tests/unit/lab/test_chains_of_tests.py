"""Test files that cannot share the machine with each other are in a chain, or run alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chains import CHAINS

TESTS = Path(__file__).parents[2]
CHAINED = {file for files in CHAINS.values() for file in files}


@pytest.mark.parametrize("shared", ["node_binaries", "pods_on_node import"])
def test_files_that_share_a_machine_wide_resource_are_in_a_chain(shared: str) -> None:
    files = [file for kind in ("integration", "e2e") for file in (TESTS / kind).rglob("test_*.py")]
    users = {file.stem for file in files if shared in (text := file.read_text()) and "pytest.mark.alone" not in text}
    assert users
    assert users <= CHAINED


def test_every_file_of_a_chain_exists() -> None:
    assert {file.stem for file in TESTS.rglob("test_*.py")} >= CHAINED
