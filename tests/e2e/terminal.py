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
    """A shell with the cluster's kubectl and kubeconfig, and with the plugin."""

    def __init__(self, kubectl: Path, kubeconfig: Path) -> None:
        path = f"{kubectl.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {"KUBECONFIG": str(kubeconfig), "PATH": path, "NO_COLOR": "1", "KUBE_EDITOR": "true"}
        self._environment = {**os.environ, **variables}

    def paste(self, line: str, timeout_s: float = PASTE_TIMEOUT_S) -> tuple[int, str]:
        """Run a line and return its exit code and output; SIGTERM ends it after the timeout."""
        result = subprocess.run(
            ["timeout", f"{timeout_s:.0f}", "bash", "-c", line],
            check=False,
            env=self._environment,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return result.returncode, result.stdout

    def read_findings(self, command: str = "diagnose") -> list[dict[str, Any]]:
        """Return the findings of a command, from its JSON output."""
        result = subprocess.run(
            ["kubectl", "netaware", command, "-o", "json"],
            check=False,
            env=self._environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DIAGNOSE_TIMEOUT_S,
        )
        assert result.stdout.startswith("{"), f"{command}: {result.returncode} {result.stderr}"
        return list(json.loads(result.stdout)["findings"])

    def wait_for_findings(
        self, check: Callable[[list[dict[str, Any]]], bool], timeout_s: float
    ) -> list[dict[str, Any]]:
        """Wait until ``check`` accepts the findings, and return them."""
        started_s = time.monotonic()
        while not check(findings := self.read_findings()):
            assert time.monotonic() - started_s < timeout_s, f"after {timeout_s:.0f} s still {summarize(findings)}"
            time.sleep(1)
        return findings

    def paste_fix_commands(self, lines: Sequence[str], placeholder_values: Mapping[str, str]) -> list[str]:
        """Paste the commands among a finding's lines, first to last; return the failures as text."""
        failures = []
        for line in lines:
            if command := self.find_command(line, placeholder_values):
                code, output = self.paste(command)
                if code != 0:
                    failures.append(f"{command}: {code} {output[-300:]}")
        return failures

    @staticmethod
    def find_command(line: str, placeholder_values: Mapping[str, str]) -> str:
        """Return the command in a line, with values for its placeholders; empty if the line has no command."""
        _, _, command = f" {line}".partition(" kubectl ")
        return PLACEHOLDER.sub(lambda match: placeholder_values[match[0]], f"kubectl {command}") if command else ""


def summarize(findings: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Return code, summary and cause of findings, for an assertion's message."""
    return [(f["code"], f["summary"], f["cause"]) for f in findings]
