"""Recording rules and alerts as texts: known metrics, runbook sections, severities, and a PrometheusRule that says the same.

What they compute, and when they fire and resolve, promtool tells in tests/integration/prometheus.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "manifests" / "prometheus"
REFERENCE = ROOT / "docs" / "metrics.md"
RUNBOOK = ROOT / "docs" / "runbook.md"
# What other programs export and everybody has.
FOREIGN = {"up", "ALERTS", "kube_pod_container_status_ready"}


def rules(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = rules("alerts.rules.yaml")
RECORDED = rules("recording.rules.yaml")


def known_metrics() -> set[str]:
    """Families in the generated reference, with the suffixes of histograms."""
    found: set[str] = set()
    for name, kind in re.findall(r"^\| `(netaware_\w+)` \| (\w+) \|", REFERENCE.read_text(), re.MULTILINE):
        found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return found


def metrics_in(expression: str) -> set[str]:
    """Names of ours in an expression: plain metrics and recorded ones."""
    return set(re.findall(r"(?:instance|netaware):[a-zA-Z0-9_:]+|netaware_[a-z0-9_]+", expression))


@pytest.mark.parametrize("rule", [*RECORDED, *ALERTS], ids=lambda r: r.get("record") or r["alert"])
def test_every_metric_of_a_rule_is_exported_or_recorded(rule: dict[str, Any]) -> None:
    recorded = {r["record"] for r in RECORDED}
    names = metrics_in(rule["expr"])
    assert names or any(f in rule["expr"] for f in FOREIGN)
    assert names - known_metrics() - recorded == set()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda r: str(r["alert"]))
def test_an_alert_says_how_bad_it_is_what_it_means_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert rule["for"]
    headings = {heading.lower() for heading in re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)}
    # What Prometheus makes of it, promtool's tests say.
    base, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert base == '{{ or $externalLabels.netaware_docs_url "https://netaware.io/docs" }}/runbook.md'
    dashboard = rule["annotations"]["dashboard_url"].removeprefix("{{ $externalLabels.grafana_url }}/d/")
    assert (ROOT / "manifests" / "grafana" / f"{dashboard.removeprefix('netaware-')}.json").exists()
    assert anchor == rule["alert"].lower()
    assert anchor in headings


def test_the_runbook_says_of_every_alert_and_nothing_else_what_it_means_where_to_look_and_what_to_do() -> None:
    _, *sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)
    by_name = {section.partition("\n")[0]: section for section in sections}
    assert sorted(by_name) == sorted(rule["alert"] for rule in ALERTS)
    for name, section in by_name.items():
        parts = re.findall(r"^\*\*(\w+):\*\* \S", section, re.MULTILINE)
        assert parts == ["Means", "Look", "Do"], name


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    document = yaml.safe_load((FOLDER / "tests" / "alerts.test.yaml").read_text())
    fired: set[str] = set()
    quiet_after: set[str] = set()
    for test in document["tests"]:
        for case in test["alert_rule_test"]:
            if case["exp_alerts"]:
                fired.add(case["alertname"])
            elif case["alertname"] in fired:
                quiet_after.add(case["alertname"])
    names = {rule["alert"] for rule in ALERTS}
    assert fired == names
    assert quiet_after == names


def test_every_recording_rule_has_a_test() -> None:
    text = (FOLDER / "tests" / "recording.test.yaml").read_text()
    alerts = (FOLDER / "alerts.rules.yaml").read_text()
    untested = {rule["record"] for rule in RECORDED if f"expr: {rule['record']}" not in text}
    # What feeds another rule is tried with it.
    assert untested <= {r for r in untested if r in alerts or any(r in other["expr"] for other in RECORDED)}


def test_the_prometheus_rule_is_what_its_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "operator" / "generate.py"), "--check"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_no_two_rules_record_the_same_name_and_no_two_alerts_share_one() -> None:
    names = [rule.get("record") or rule["alert"] for rule in (*RECORDED, *ALERTS)]
    assert len(names) == len(set(names))
