"""Tasks of the documents: each block of a page is pasted into a shell, with words in capitals filled in.

Uninstalling is in `test_as_shipped.py`, on real nodes; Helm's lines are in
tests/integration/manifests/test_chart.py.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from tests.e2e.labs import installed_lab
from tests.e2e.terminal import Terminal
from tests.support.documents import shell_blocks, write_shown_files

DEADLINE_S = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("privileges")]


class Reader:
    """Pastes blocks of pages; their files are in a folder of its own."""

    def __init__(self, terminal: Terminal, folder: Path) -> None:
        self._terminal, self._folder = terminal, folder

    async def does(self, block: str) -> str:
        """Output of a block that is pasted; its files are in the reader's folder."""
        own = re.sub(r"(?<=-f )(?=[\w-]+\.yaml)|(?<=> )(?=[\w-]+\.yaml)", f"{self._folder}/", block)
        code, said = await asyncio.to_thread(self._terminal.paste, f"set -eu\n{own}")
        assert code == 0, f"{own}\n{said}"
        return said

    async def until(self, line: str, wanted: str) -> None:
        """Wait until the output of a line has a text."""
        begun = time.monotonic()
        while wanted not in (said := (await asyncio.to_thread(self._terminal.paste, line))[1]):
            assert time.monotonic() - begun < DEADLINE_S, said
            await asyncio.sleep(0.5)


async def test_tasks_of_the_documents_done_as_they_stand(tmp_path: Path) -> None:
    async with installed_lab("e2e-docs") as (lab, _, _):
        reader = Reader(Terminal(lab.control_plane.kubectl, lab.control_plane.kubeconfig), tmp_path)
        await reader.until("kubectl netaware status", "12 of 12")

        (certificate,) = shell_blocks("install", "Kubernetes 1.34 and 1.35")
        assert "webhook" in await reader.does(certificate.removeprefix("uv run --extra controller "))

        _, example = shell_blocks("install", "On kind")
        fetched, _, used = example.partition("\n")
        assert fetched.startswith("uv tool install"), "the plugin is here already"
        assert "frontend" in await reader.does(used)

        write_shown_files("first-appgroup", tmp_path)
        (applied,) = shell_blocks("first-appgroup", "3. Apply")
        assert "created" in await reader.does(applied)
        await reader.until("kubectl get pods -n shop --field-selector=status.phase=Running -o name | wc -l", "4")
        await reader.until("kubectl netaware diagnose", "nothing is wrong")
        (looked,) = shell_blocks("first-appgroup", "4. Check")
        said = await reader.does(looked)
        assert "nothing is wrong" in said
        for condition in ("Complete", "CostsMet", "SpecValid", "Planned"):
            assert condition in said

        (pod,) = shell_blocks("troubleshooting", "Why is my pod pending?")
        name = "$(kubectl -n shop get pods -o jsonpath='{.items[0].metadata.name}')"
        assert "it is on n" in await reader.does(re.sub(r"\bNAME\b", name, re.sub(r"\bNAMESPACE\b", "shop", pod)))

        (labelled,) = shell_blocks("scheduling", "Which AppGroup a pod belongs to")
        assert "labeled" in await reader.does(f"kubectl create namespace prod\n{labelled}")

        (kept,) = shell_blocks("upgrade", "Before")
        await reader.does(kept)
        assert "kind: AppGroup" in (tmp_path / "before.yaml").read_text()
        assert "netperf" in (tmp_path / "configuration.yaml").read_text()

        (changed,) = shell_blocks("upgrade", "With kubectl")
        assert "serverside-applied" in await reader.does(changed)
