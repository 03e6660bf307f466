"""promtool accepts our rules and metrics, and its tests of rules and alerts pass."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "manifests" / "prometheus"
RULES = sorted(FOLDER.glob("*.rules.yaml"))
PROMTOOL_TIMEOUT_S = 800
"""The alerts take promtool 20 s of a processor, and much longer on a busy machine."""
pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(PROMTOOL_TIMEOUT_S + 40)]
TESTS = sorted((FOLDER / "tests").glob("*.test.yaml"))


def run_promtool(program: Path, *args: str | Path) -> str:
    result = subprocess.run([program, *args], check=False, capture_output=True, text=True, timeout=PROMTOOL_TIMEOUT_S)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_promtool_accepts_all_rules(prometheus_programs: Mapping[str, Path]) -> None:
    run_promtool(prometheus_programs["promtool"], "check", "rules", "--lint=all", "--lint-fatal", *RULES)


def test_promtool_accepts_names_and_types_of_all_metrics(prometheus_programs: Mapping[str, Path]) -> None:
    reference = (FOLDER.parents[1] / "docs" / "metrics.md").read_text()
    families = re.findall(r"^\| `(netaware_\w+)` \| (\w+) \| [^|]* \| (.*) \|$", reference, re.MULTILINE)
    # Both programs export some metrics.
    families = sorted(set(families))
    assert len(families) > 40
    text = "".join(
        f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"
        + (f"{name} 1\n" if kind != "histogram" else f'{name}_bucket{{le="+Inf"}} 1\n{name}_sum 1\n{name}_count 1\n')
        for name, kind, help_text in families
    )
    result = subprocess.run(
        [prometheus_programs["promtool"], "check", "metrics"],
        check=False,
        capture_output=True,
        text=True,
        input=text,
        timeout=PROMTOOL_TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("file", TESTS, ids=lambda path: str(path.name))
def test_rules_compute_expected_values_and_alerts_fire_and_resolve(
    prometheus_programs: Mapping[str, Path], file: Path
) -> None:
    assert "SUCCESS" in run_promtool(prometheus_programs["promtool"], "test", "rules", file)
