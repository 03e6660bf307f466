"""promtool accepts our rules and metrics, and its tests of rules and alerts pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.prometheus_program import PROMTOOL_TIMEOUT_S, run_promtool

FOLDER = Path(__file__).parents[3] / "manifests" / "prometheus"
RULES = sorted(FOLDER.glob("*.rules.yaml"))
TESTS = sorted((FOLDER / "tests").glob("*.test.yaml"))
METRICS_REFERENCE = FOLDER.parents[1] / "docs" / "metrics.md"
pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(PROMTOOL_TIMEOUT_S + 40)]


def format_family(name: str, kind: str, help_text: str) -> str:
    """The lines of a metric in Prometheus' text format."""
    samples = f"{name} 1\n"
    if kind == "histogram":
        samples = f'{name}_bucket{{le="+Inf"}} 1\n{name}_sum 1\n{name}_count 1\n'
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n{samples}"


def test_promtool_accepts_all_rules(prometheus_programs: Mapping[str, Path]) -> None:
    run_promtool(prometheus_programs, "check", "rules", "--lint=all", "--lint-fatal", *RULES)


def test_promtool_accepts_names_and_types_of_all_metrics(prometheus_programs: Mapping[str, Path]) -> None:
    row = r"^\| `(netaware_\w+)` \| (\w+) \| [^|]* \| (.*) \|$"
    # Both programs export some metrics, so their rows are there twice.
    families = sorted(set(re.findall(row, METRICS_REFERENCE.read_text(), re.MULTILINE)))
    assert len(families) > 40
    run_promtool(prometheus_programs, "check", "metrics", stdin="".join(format_family(*family) for family in families))


@pytest.mark.parametrize("test_file", TESTS, ids=lambda path: str(path.name))
def test_promtools_tests_of_rules_and_alerts_pass(prometheus_programs: Mapping[str, Path], test_file: Path) -> None:
    assert "SUCCESS" in run_promtool(prometheus_programs, "test", "rules", test_file)
