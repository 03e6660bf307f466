"""The commands of the documents work: blocks of pages are pasted into a shell, with values for words in capitals.

Those for uninstalling are in test_as_shipped.py, those of Helm in tests/integration/manifests/test_chart.py.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.labs import installed_lab
from tests.e2e.real_cluster import wait_until
from tests.e2e.terminal import Terminal
from tests.support.documents import read_shell_blocks, write_shown_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("require_lab_privileges")]


def paste_block(terminal: Terminal, folder: Path, block: str) -> str:
    """Paste a block whose files are in ``folder``, and return its output; fails if a command fails."""
    script = re.sub(r"(?<=-f )(?=[\w-]+\.yaml)|(?<=> )(?=[\w-]+\.yaml)", f"{folder}/", block)
    code, output = terminal.paste(f"set -eu\n{script}")
    assert code == 0, f"{script}\n{output}"
    return output


def wait_for_output(terminal: Terminal, line: str, expected_text: str) -> None:
    """Wait until the output of a line has a text."""
    wait_until(lambda: expected_text in terminal.paste(line)[1], repr(expected_text), lambda: terminal.paste(line)[1])


async def test_commands_of_the_documents_work(tmp_path: Path) -> None:
    async with installed_lab("e2e-docs") as (lab, _, _):
        terminal = Terminal(lab.control_plane.kubectl, lab.control_plane.kubeconfig)
        paste = partial(paste_block, terminal, tmp_path)
        wait_for_output(terminal, "kubectl netaware status", "12 of 12")

        (certificate,) = read_shell_blocks("install", "Kubernetes 1.34 and 1.35")
        assert "webhook" in paste(certificate.removeprefix("uv run --extra controller "))

        _, example = read_shell_blocks("install", "On kind")
        assert "frontend" in paste(example)

        write_shown_files("first-appgroup", tmp_path)
        (apply,) = read_shell_blocks("first-appgroup", "3. Apply")
        assert "created" in paste(apply)
        wait_for_output(terminal, "kubectl get pods -n shop --field-selector=status.phase=Running -o name | wc -l", "4")
        wait_for_output(terminal, "kubectl netaware diagnose", "nothing is wrong")
        (check,) = read_shell_blocks("first-appgroup", "4. Check")
        output = paste(check)
        assert "nothing is wrong" in output
        for condition in ("Complete", "CostsMet", "SpecValid", "Planned"):
            assert condition in output

        (pod,) = read_shell_blocks("troubleshooting", "Why is my pod pending?")
        name = "$(kubectl -n shop get pods -o jsonpath='{.items[0].metadata.name}')"
        assert "it is on n" in paste(re.sub(r"\bNAME\b", name, re.sub(r"\bNAMESPACE\b", "shop", pod)))

        (label,) = read_shell_blocks("scheduling", "Which AppGroup a pod belongs to")
        assert "labeled" in paste(f"kubectl create namespace prod\n{label}")

        (backup,) = read_shell_blocks("upgrade", "Before")
        paste(backup)
        assert "kind: AppGroup" in (tmp_path / "before.yaml").read_text()
        assert "netperf" in (tmp_path / "configuration.yaml").read_text()

        (upgrade,) = read_shell_blocks("upgrade", "With kubectl")
        # `make overlay` names images of a registry.
        script = upgrade.replace("dist/overlay", "manifests/overlays/default")
        assert "serverside-applied" in paste(script)
