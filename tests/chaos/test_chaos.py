"""A minute of faults of a fixed seed on a whole cluster: whatever breaks, no invariant does, and all comes back.

How long recovery takes is for `make chaos` on a machine of its own to judge: beside other work a minute's wait says nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SEED = 4713

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    journal = tmp_path_factory.mktemp("chaos") / "journal.jsonl"
    command = [sys.executable, "-m", "tests.chaos", "--json", "--name", "chaos-test", "--minutes", "1"]
    command += ["--seed", str(SEED), "--journal", str(journal)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=880, check=False)
    assert run.stdout, run.stderr[-4000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found | {"lines": [json.loads(line) for line in journal.read_text().splitlines()]}


def test_no_invariant_is_broken(report: dict[str, Any]) -> None:
    assert [text for text in report["violation_list"] if not text.startswith("recovery: ")] == []


def test_every_fault_was_done_and_is_in_the_journal_and_is_reverted(report: dict[str, Any]) -> None:
    done = [line for line in report["lines"] if line["event"] == "fault"]
    assert len(done) == report["faults"] == sum(report["faults_by_kind"].values())
    assert len(report["faults_by_kind"]) >= 10
    lasting = sorted(line["kind"] for line in done if line["for_s"] and not line["error"])
    over = [line["kind"] for line in report["lines"] if line["event"] == "over"]
    assert len(over) >= len(lasting) - sum(line["kind"] in {"pause", "pause-netserver"} for line in done)
    assert {line["event"] for line in report["lines"]} >= {
        "begun",
        "fault",
        "over",
        "recovered",
        "restarted",
        "deployed",
    }


def test_every_pair_of_zones_is_priced_again_and_pods_went_their_way(report: dict[str, Any]) -> None:
    assert report["costs"] == report["cost_pairs"] > 0
    history = report["history"]
    assert history["cost_writes"] > 0
    assert 0 < history["released"] <= history["pods"]
    assert 0 < history["bound"] <= history["pods"]
