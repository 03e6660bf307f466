"""Fixtures of end-to-end tests. Labs have temporary state directories, so that they do not touch a user's lab."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lab.errors import InsufficientCapacityError, UnsupportedError
from lab.network import require_privileges
from lab.pod_installation import find_or_build_images
from lab.realnode.machine import check_machine
from lab.realnode.programs import NodeBinaries, find_or_build_node_binaries
from tests.e2e.labs import LabCommand
from tests.support.unsupported import skip_if_unsupported

CAPACITY_TIMEOUT_S = 900.0
MAX_REAL_NODES = 5
"""Real nodes of the largest lab in these tests."""


@pytest.fixture
def lab_command(tmp_path: Path) -> Iterator[LabCommand]:
    """Runs ``python -m lab``; stops labs that a test leaves running."""
    command = LabCommand(tmp_path)
    yield command
    command.down_all()


@pytest.fixture
def require_lab_privileges() -> None:
    """Skips the test if this process lacks the privileges to create namespaces."""
    skip_if_unsupported(require_privileges)


@pytest.fixture(scope="module")
def node_binaries() -> NodeBinaries:
    """Programs of real nodes; skips the test if the machine cannot run real nodes, and waits for capacity.

    A test's timeout must not include the wait: ``timeout(…, func_only=True)``.
    """
    skip_if_unsupported(require_privileges)
    programs = skip_if_unsupported(find_or_build_node_binaries)
    wait_for_capacity(programs)
    return programs


@pytest.fixture(scope="session")
def images() -> Mapping[str, Path]:
    """Image name with tag -> OCI layout, for agent and controller."""
    return skip_if_unsupported(find_or_build_images)


def wait_for_capacity(programs: NodeBinaries) -> None:
    """Wait until the machine has capacity for `MAX_REAL_NODES`; fail after `CAPACITY_TIMEOUT_S`."""
    nft = programs.debian.find_program("nft")
    assert nft is not None, "the programs of real nodes include nft"
    deadline_s = time.monotonic() + CAPACITY_TIMEOUT_S
    while True:
        try:
            check_machine(programs.debian.environment, nft, node_count=MAX_REAL_NODES)
        except InsufficientCapacityError as error:
            if time.monotonic() > deadline_s:
                pytest.fail(str(error))
            time.sleep(3)
        except UnsupportedError as error:
            pytest.skip(str(error))
        else:
            return
