"""A lab without the right to make devices on the host: inside a user namespace, or a clear message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

Command = Any  # the fixture of conftest.py, which importlib mode does not let us import
DROP = ["setpriv", "--bounding-set=-net_admin,-sys_admin", "--"]


def run(command: Command, *args: str, prefix: list[str] = DROP) -> subprocess.CompletedProcess[str]:
    argv = [*prefix, sys.executable, "-m", "lab", *args]
    return subprocess.run(argv, check=False, capture_output=True, text=True, env=command.env, timeout=100)


@pytest.fixture
def user_namespaces() -> None:
    """A process without privileges may make a user namespace here; else the test is skipped with the reason."""
    prefix = DROP if os.geteuid() == 0 else []
    code = "from lab.unprivileged import plan_launch; plan_launch(['true'], {})"
    done = subprocess.run([*prefix, sys.executable, "-c", code], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.usefixtures("user_namespaces")
def test_a_lab_runs_in_a_user_namespace_and_is_reached_from_the_host(lab_command: Command) -> None:
    prefix = DROP if os.geteuid() == 0 else []
    started = run(lab_command, "up", "--name", "e2e-userns", "--json", prefix=prefix)
    try:
        assert started.returncode == 0, started.stderr
        lab = json.loads(started.stdout)
        assert lab["server"].startswith("https://127.0.0.1:")
        argv = [lab["kubectl"], "--kubeconfig", lab["kubeconfig"], "get", "nodes", "-o", "name"]
        nodes = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout.split()
        assert nodes == [f"node/n{i}" for i in range(1, 9)]
        inside = [*lab["enter"], "ls", "/run/netns"]
        seen = subprocess.run(inside, check=True, capture_output=True, text=True, timeout=30).stdout.split()
        assert seen == [node["netns"] for node in lab["nodes"]]
        lab_command("wan", "set", "--name", "e2e-userns", "z1", "z2", "--delay", "4ms")
    finally:
        lab_command("down", "--name", "e2e-userns")
    assert not list(lab_command.labs.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="takes rights away, which only root has")
def test_without_user_namespaces_the_message_says_what_is_missing_and_what_works(lab_command: Command) -> None:
    # chroot into / makes the kernel refuse new user namespaces to this process, as hardened systems do to everybody.
    jail = ["unshare", "--mount", "--", "sh", "-c", 'mkdir -p "$0" && mount --rbind / "$0" && exec chroot "$0" "$@"']
    prefix = [*jail, str(lab_command.labs.parent / "jail"), *DROP]
    refused = run(lab_command, "up", "--name", "e2e-refused", prefix=prefix)
    assert refused.returncode == 1
    assert "nodes need the right to create network namespaces" in refused.stderr
    assert "user namespaces" in refused.stderr
    assert "`--topology none` still runs the control plane alone" in refused.stderr
    assert not lab_command.labs.exists()
