"""The commands of the documents work: blocks of pages are pasted into a shell, with values for words in capitals.

Those for uninstalling are in test_as_shipped.py, those of Helm in tests/integration/manifests/test_chart.py.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from tests.e2e.labs import installed_lab
from tests.e2e.terminal import Terminal
from tests.support.documents import read_shell_blocks, write_shown_files

DEADLINE_S = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("require_lab_privileges")]


class Reader:
    """Pastes blocks of pages into a shell; their files are in ``folder``."""

    def __init__(self, terminal: Terminal, folder: Path) -> None:
        self._terminal, self._folder = terminal, folder

    async def paste_block(self, block: str) -> str:
        """Paste a block and return its output; fails if a command fails."""
        script = re.sub(r"(?<=-f )(?=[\w-]+\.yaml)|(?<=> )(?=[\w-]+\.yaml)", f"{self._folder}/", block)
        code, output = await asyncio.to_thread(self._terminal.paste, f"set -eu\n{script}")
        assert code == 0, f"{script}\n{output}"
        return output

    async def wait_for_output(self, line: str, expected_text: str) -> None:
        """Wait until the output of a line has a text."""
        started = time.monotonic()
        while expected_text not in (output := (await asyncio.to_thread(self._terminal.paste, line))[1]):
            assert time.monotonic() - started < DEADLINE_S, output
            await asyncio.sleep(0.5)


async def test_commands_of_the_documents_work(tmp_path: Path) -> None:
    async with installed_lab("e2e-docs") as (lab, _, _):
        reader = Reader(Terminal(lab.control_plane.kubectl, lab.control_plane.kubeconfig), tmp_path)
        await reader.wait_for_output("kubectl netaware status", "12 of 12")

        (certificate,) = read_shell_blocks("install", "Kubernetes 1.34 and 1.35")
        assert "webhook" in await reader.paste_block(certificate.removeprefix("uv run --extra controller "))

        _, example = read_shell_blocks("install", "On kind")
        assert "frontend" in await reader.paste_block(example)

        write_shown_files("first-appgroup", tmp_path)
        (apply,) = read_shell_blocks("first-appgroup", "3. Apply")
        assert "created" in await reader.paste_block(apply)
        await reader.wait_for_output(
            "kubectl get pods -n shop --field-selector=status.phase=Running -o name | wc -l", "4"
        )
        await reader.wait_for_output("kubectl netaware diagnose", "nothing is wrong")
        (check,) = read_shell_blocks("first-appgroup", "4. Check")
        output = await reader.paste_block(check)
        assert "nothing is wrong" in output
        for condition in ("Complete", "CostsMet", "SpecValid", "Planned"):
            assert condition in output

        (pod,) = read_shell_blocks("troubleshooting", "Why is my pod pending?")
        name = "$(kubectl -n shop get pods -o jsonpath='{.items[0].metadata.name}')"
        assert "it is on n" in await reader.paste_block(
            re.sub(r"\bNAME\b", name, re.sub(r"\bNAMESPACE\b", "shop", pod))
        )

        (label,) = read_shell_blocks("scheduling", "Which AppGroup a pod belongs to")
        assert "labeled" in await reader.paste_block(f"kubectl create namespace prod\n{label}")

        (backup,) = read_shell_blocks("upgrade", "Before")
        await reader.paste_block(backup)
        assert "kind: AppGroup" in (tmp_path / "before.yaml").read_text()
        assert "netperf" in (tmp_path / "configuration.yaml").read_text()

        (upgrade,) = read_shell_blocks("upgrade", "With kubectl")
        # `make overlay` names images of a registry.
        script = upgrade.replace("dist/overlay", "manifests/overlays/default")
        assert "serverside-applied" in await reader.paste_block(script)
