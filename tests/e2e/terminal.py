"""Pastes the fix commands of findings into a shell, with values for their placeholders."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PASTE_TIMEOUT_S, DIAGNOSE_TIMEOUT_S = 180.0, 60.0
PLACEHOLDER = re.compile(r"\b(?:ZONE|NODE|SPEED|REGION|dist/overlay)\b")


class Terminal:
    """A shell with this cluster's kubectl and the plugin.

    Args:
        kubectl, kubeconfig: of the cluster.
    """

    def __init__(self, kubectl: Path, kubeconfig: Path) -> None:
        self.python = sys.executable
        path = f"{kubectl.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PATH": path,
            "NO_COLOR": "1",
            "KUBE_EDITOR": "true",
        }

    def paste(self, line: str, timeout_s: float = PASTE_TIMEOUT_S) -> tuple[int, str]:
        """Exit code and output of a line; it is ended after the timeout, as by Ctrl-C."""
        argv = ["timeout", f"{timeout_s:.0f}", "bash", "-c", line]
        done = subprocess.run(
            argv,
            check=False,
            env=self._environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    def read_findings(self, command: str = "diagnose") -> list[dict[str, Any]]:
        """The findings of a command, from its JSON output."""
        argv = ["kubectl", "netaware", command, "-o", "json"]
        done = subprocess.run(
            argv,
            check=False,
            env=self._environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DIAGNOSE_TIMEOUT_S,
        )
        assert done.stdout.startswith("{"), f"{command}: {done.returncode} {done.stderr}"
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return found

    def wait_for_findings(
        self, check: Callable[[list[dict[str, Any]]], bool], deadline_s: float
    ) -> tuple[float, list[dict[str, Any]]]:
        """Seconds until findings are as wanted, and these findings."""
        begun = time.monotonic()
        while not check(found := self.read_findings()):
            assert time.monotonic() - begun < deadline_s, f"after {deadline_s:.0f} s still {summarize(found)}"
            time.sleep(1)
        return time.monotonic() - begun, found

    def paste_fix_commands(
        self, lines: Sequence[str], choices: Mapping[str, str], timeout_s: float = PASTE_TIMEOUT_S
    ) -> list[str]:
        """Paste the commands among a finding's lines, first to last; what failed."""
        failed = []
        for line in lines:
            if command := self.command_in(line, choices):
                code, said = self.paste(command, timeout_s=timeout_s)
                if code != 0:
                    failed.append(f"{command}: {code} {said[-300:]}")
        return failed

    @staticmethod
    def command_in(line: str, choices: Mapping[str, str]) -> str:
        """The command in a line, with values for its placeholders; empty if the line has no command."""
        _, _, command = f" {line}".partition(" kubectl ")
        return PLACEHOLDER.sub(lambda found: choices[found[0]], f"kubectl {command}") if command else ""


def summarize(found: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Findings, for an assertion's message."""
    return [(f["code"], f["summary"], f["cause"]) for f in found]
