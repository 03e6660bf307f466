"""Without privileges a lab runs in a user namespace, or the command says what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.e2e.labs import LabCommand
from tests.e2e.real_cluster import Cluster

DROP_PRIVILEGES = ["setpriv", "--bounding-set=-net_admin,-sys_admin", "--"]
UNPRIVILEGED = DROP_PRIVILEGES if os.geteuid() == 0 else []
"""Prefix of commands that run without privileges."""


def run_lab(command: LabCommand, *args: str, prefix: list[str]) -> subprocess.CompletedProcess[str]:
    argv = [*prefix, sys.executable, "-m", "lab", *args]
    return subprocess.run(argv, check=False, capture_output=True, text=True, env=command.env, timeout=100)


@pytest.fixture
def user_namespaces() -> None:
    """Skips the test if a process without privileges may not create a user namespace here."""
    code = "from lab.unprivileged import plan_launch; plan_launch(['true'], {})"
    result = subprocess.run([*UNPRIVILEGED, sys.executable, "-c", code], check=False, capture_output=True, text=True)
    if result.returncode != 0:
        pytest.skip(result.stderr.strip().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.usefixtures("user_namespaces")
def test_the_host_reaches_a_lab_in_a_user_namespace(lab_command: LabCommand) -> None:
    up = run_lab(lab_command, "up", "--name", "e2e-userns", "--json", prefix=UNPRIVILEGED)
    try:
        assert up.returncode == 0, up.stderr
        lab = json.loads(up.stdout)
        assert lab["server"].startswith("https://127.0.0.1:")
        node_names = Cluster(lab).run("get", "nodes", "-o", "name").split()
        assert node_names == [f"node/n{i}" for i in range(1, 9)]
        ls = [*lab["enter_command"], "ls", "/run/netns"]
        namespaces = subprocess.run(ls, check=True, capture_output=True, text=True, timeout=30).stdout.split()
        assert namespaces == [node["netns"] for node in lab["nodes"]]
        lab_command("wan", "set", "--name", "e2e-userns", "z1", "z2", "--delay", "4ms")
    finally:
        lab_command("down", "--name", "e2e-userns")
    assert not list(lab_command.labs.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="takes rights away, which only root has")
def test_without_user_namespaces_the_error_names_the_missing_privilege_and_the_alternative(
    lab_command: LabCommand,
) -> None:
    # In a chroot the kernel refuses new user namespaces, as hardened systems do.
    jail = ["unshare", "--mount", "--", "sh", "-c", 'mkdir -p "$0" && mount --rbind / "$0" && exec chroot "$0" "$@"']
    prefix = [*jail, str(lab_command.labs.parent / "jail"), *DROP_PRIVILEGES]
    failed = run_lab(lab_command, "up", "--name", "e2e-refused", prefix=prefix)
    assert failed.returncode == 1
    assert "nodes need the right to create network namespaces" in failed.stderr
    assert "user namespaces" in failed.stderr
    assert "`--topology none` still runs the control plane alone" in failed.stderr
    assert not lab_command.labs.exists()
