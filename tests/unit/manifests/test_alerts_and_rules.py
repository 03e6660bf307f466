"""Recording rules and alerts use existing metrics; each has a promtool test, and each alert a section of the runbook.

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
    known_series = read_labels_by_series().keys() | list_recorded_series()
    for rule in (*RECORDED, *ALERTS):
        our_series = set(re.findall(r"(?:instance|netaware):[a-zA-Z0-9_:]+|netaware_[a-z0-9_]+", rule["expr"]))
        assert our_series or any(metric in rule["expr"] for metric in FOREIGN_METRICS), rule
        assert our_series <= known_series, rule


def test_every_alert_has_a_section_of_the_runbook_with_meaning_checks_and_actions() -> None:
    _, *sections = re.split(r"^### ", (ROOT / "docs" / "runbook.md").read_text(), flags=re.MULTILINE)
    # An entry is "- **Means:** text", or is followed by an indented list.
    entries_by_heading = {
        section.partition("\n")[0]: re.findall(r"^- \*\*(\w+):\*\*(?: |\n  - )\S", section, re.MULTILINE)
        for section in sections
    }
    assert entries_by_heading == {rule["alert"]: ["Means", "Look", "Do"] for rule in ALERTS}


def test_alerts_have_a_severity_a_duration_texts_and_links_that_lead_somewhere() -> None:
    documents_url = '{{ or $externalLabels.netaware_docs_url "https://netaware.io/docs" }}'
    for rule in ALERTS:
        name, annotations = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, name
        assert rule["for"], name
        assert set(annotations) == {"summary", "description", "runbook_url", "dashboard_url"}, name
        assert annotations["runbook_url"] == f"{documents_url}/runbook.md#{name.lower()}"
        dashboard = annotations["dashboard_url"].removeprefix("{{ $externalLabels.grafana_url }}/d/netaware-")
        assert (ROOT / "manifests" / "grafana" / f"{dashboard}.json").exists(), name


def test_every_alert_fires_and_then_resolves_in_a_promtool_test() -> None:
    firing: set[str] = set()
    resolved: set[str] = set()
    for test in yaml.safe_load((PROMETHEUS / "tests" / "alerts.test.yaml").read_text())["tests"]:
        for check in test["alert_rule_test"]:
            if check["exp_alerts"]:
                firing.add(check["alertname"])
            elif check["alertname"] in firing:
                resolved.add(check["alertname"])
    assert firing == resolved == {rule["alert"] for rule in ALERTS}


def test_every_recording_rule_has_a_promtool_test_or_feeds_another_rule() -> None:
    tests = (PROMETHEUS / "tests" / "recording.test.yaml").read_text()
    expressions = " ".join(rule["expr"] for rule in (*RECORDED, *ALERTS))
    assert [name for name in list_recorded_series() if f"expr: {name}" not in tests and name not in expressions] == []
