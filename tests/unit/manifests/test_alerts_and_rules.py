"""Recording rules and alerts: existing metrics, runbook sections, severities, and a promtool test each.

Tests in tests/integration/prometheus run promtool, which checks the values of rules and when alerts fire and resolve.
"""

from __future__ import annotations

import re

import yaml

from tests.unit.manifests.metric_names import PROMETHEUS, ROOT, list_recorded_series, read_labels_by_series, read_rules

ALERTS = read_rules("alerts.rules.yaml")
RECORDED = read_rules("recording.rules.yaml")
FOREIGN_METRICS = {"up", "ALERTS", "kube_pod_container_status_ready"}


def test_rules_query_exported_or_recorded_series() -> None:
    series = read_labels_by_series().keys() | list_recorded_series()
    for rule in (*RECORDED, *ALERTS):
        names = set(re.findall(r"(?:instance|netaware):[a-zA-Z0-9_:]+|netaware_[a-z0-9_]+", rule["expr"]))
        assert names or any(metric in rule["expr"] for metric in FOREIGN_METRICS), rule
        assert names <= series, rule


def test_alerts_have_a_severity_annotations_and_a_runbook_section() -> None:
    _, *sections = re.split(r"^### ", (ROOT / "docs" / "runbook.md").read_text(), flags=re.MULTILINE)
    runbook = {
        section.partition("\n")[0]: re.findall(r"^- \*\*(\w+):\*\*(?: |\n  - )\S", section, re.MULTILINE)
        for section in sections
    }
    assert runbook == {rule["alert"]: ["Means", "Look", "Do"] for rule in ALERTS}
    for rule in ALERTS:
        name, annotations = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, name
        assert set(annotations) == {"summary", "description", "runbook_url", "dashboard_url"}, name
        assert rule["for"], name
        base = '{{ or $externalLabels.netaware_docs_url "https://netaware.io/docs" }}/runbook.md'
        assert annotations["runbook_url"] == f"{base}#{name.lower()}"
        dashboard = annotations["dashboard_url"].removeprefix("{{ $externalLabels.grafana_url }}/d/netaware-")
        assert (ROOT / "manifests" / "grafana" / f"{dashboard}.json").exists(), name


def test_every_rule_has_a_promtool_test_and_every_alert_one_in_which_it_fires_and_resolves() -> None:
    firing: set[str] = set()
    resolved: set[str] = set()
    for test in yaml.safe_load((PROMETHEUS / "tests" / "alerts.test.yaml").read_text())["tests"]:
        for case in test["alert_rule_test"]:
            if case["exp_alerts"]:
                firing.add(case["alertname"])
            elif case["alertname"] in firing:
                resolved.add(case["alertname"])
    assert firing == resolved == {rule["alert"] for rule in ALERTS}
    tests = (PROMETHEUS / "tests" / "recording.test.yaml").read_text()
    # A rule that feeds another rule is tested through it.
    expressions = " ".join(rule["expr"] for rule in (*RECORDED, *ALERTS))
    assert [name for name in list_recorded_series() if f"expr: {name}" not in tests and name not in expressions] == []
