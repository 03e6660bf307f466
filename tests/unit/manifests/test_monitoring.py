"""Rules, alerts and dashboards use existing metrics and labels; alerts have tests and a section of the runbook."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import yaml

from tests.unit.manifests.metric_names import PROMETHEUS, ROOT, list_recorded_series, read_labels_by_series, read_rules

ALERTS = read_rules("alerts.rules.yaml")
RULES = [*read_rules("recording.rules.yaml"), *ALERTS]
RULE_EXPRESSIONS = [(rule.get("record") or rule["alert"], rule["expr"]) for rule in RULES]
FOREIGN_METRICS = {"up", "ALERTS", "kube_pod_container_status_ready"}

FOLDER = ROOT / "manifests" / "grafana"
DASHBOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
GRID_COLUMNS = 24
PANELS = [
    (f"{name}: panel {panel['id']}, {panel['title']}", panel)
    for name, dashboard in sorted(DASHBOARDS.items())
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
QUERIES = [(f"{title}, query {query['refId']}", query) for title, panel in PANELS for query in panel["targets"]]
EXPRESSIONS = [(title, query["expr"]) for title, query in QUERIES]

LABELS_BY_SERIES = read_labels_by_series()
METRICS = LABELS_BY_SERIES.keys() | list_recorded_series()
# Metrics of Prometheus and its client.
METRICS |= {"up", "ALERTS", "process_resident_memory_bytes", "process_cpu_seconds_total"}
PROMQL_WORDS = {
    *("sum", "max", "min", "count", "avg", "rate", "increase", "by", "or", "and", "vector", "le"),
    *("histogram_quantile", "label_values", "quantile", "time"),
}
# Not a part of a recorded series, whose name has colons.
OUR_METRIC = r"(?<![\w:])netaware_\w+"
LABEL_MATCHER = r"(\w+)\s*(?:=~|!~|!=|=)"
GROUPING_CLAUSE = r"\b(?:by|on|ignoring|group_left|group_right)\s*\(([^)]*)\)"
# `cluster` comes from the operator's configuration, `instance` and `job` from Prometheus, `quantile` from summaries.
GROUPING_LABELS = {"cluster", "instance", "job", "quantile"}


def blank_quoted_text(expression: str) -> str:
    """The expression with an empty string in each pair of quotation marks."""
    return re.sub(r'"[^"]*"', '""', expression)


def find_metrics(expression: str) -> set[str]:
    """The names that are neither functions nor labels."""
    without_labels = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", " ", blank_quoted_text(expression))
    return set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_:]*", without_labels)) - PROMQL_WORDS


def count_metrics(expression: str) -> int:
    names = "|".join(map(re.escape, find_metrics(expression)))
    return len(re.findall(rf"(?<![\w:])(?:{names})(?![\w:])", blank_quoted_text(expression)))


def find_unknown_selector_labels(expression: str) -> set[str]:
    """Labels in braces that the metric before them does not have."""
    return {
        label
        for metric, selector in re.findall(rf"({OUR_METRIC})\{{([^}}]*)\}}", expression)
        for label in re.findall(LABEL_MATCHER, blank_quoted_text(selector))
        if label not in LABELS_BY_SERIES[metric] | {"cluster"}
    }


def find_unknown_grouping_labels(expression: str) -> set[str]:
    """Labels in ``by (...)`` and the like that no metric of the expression has.

    A recorded series has the labels that its own rule keeps, so expressions with one are not checked.
    """
    metrics = re.findall(OUR_METRIC, expression)
    if not metrics or ":" in blank_quoted_text(expression):
        return set()
    labels_in_quotes = set(re.findall(r'"(\w+)"', expression))  # label_replace makes them
    known_labels = GROUPING_LABELS.union(labels_in_quotes, *(LABELS_BY_SERIES[metric] for metric in metrics))
    return set(re.findall(r"\w+", " ".join(re.findall(GROUPING_CLAUSE, expression)))) - known_labels


def is_complete(panel: dict[str, Any]) -> bool:
    """Whether a panel has a title, a description in sentences, a unit and queries."""
    has_texts = panel["title"].strip() and panel["description"].endswith(".")
    return bool(has_texts and panel["fieldConfig"]["defaults"]["unit"] and panel["targets"])


def list_cells(panel: dict[str, Any]) -> list[tuple[int, int]]:
    """Column and row of each cell of Grafana's grid that a panel has."""
    x, y, width, height = (panel["gridPos"][side] for side in "xywh")
    return list(itertools.product(range(x, x + width), range(y, y + height)))


def test_rules_query_exported_or_recorded_series() -> None:
    for rule in RULES:
        our_series = set(re.findall(r"(?:instance|netaware):[a-zA-Z0-9_:]+|netaware_[a-z0-9_]+", rule["expr"]))
        assert our_series or any(metric in rule["expr"] for metric in FOREIGN_METRICS), rule
        assert our_series <= METRICS, rule


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
    tested = re.findall(r"expr: ([\w:]+)", tests)
    read = re.findall(r"[\w:]+", " ".join(expression for _, expression in RULE_EXPRESSIONS))
    assert set(list_recorded_series()) - {*tested, *read} == set()


def test_panels_have_a_title_a_description_a_unit_and_queries() -> None:
    assert len(PANELS) > 40
    assert len(EXPRESSIONS) == len(dict(EXPRESSIONS)), "each query has its own title"
    assert [title for title, panel in PANELS if not is_complete(panel)] == []


def test_panels_query_exported_or_recorded_series_of_the_chosen_data_source() -> None:
    for title, query in QUERIES:
        assert find_metrics(query["expr"]), title
        assert find_metrics(query["expr"]) <= METRICS, title
        assert query["datasource"]["uid"] == "${datasource}", title


def test_panels_and_rules_use_labels_that_their_metrics_have() -> None:
    for title, expression in (*EXPRESSIONS, *RULE_EXPRESSIONS):
        assert find_unknown_selector_labels(expression) == set(), title
        assert find_unknown_grouping_labels(expression) == set(), title


def test_every_metric_is_selected_by_cluster() -> None:
    for title, expression in EXPRESSIONS:
        assert expression.count('cluster=~"$cluster"') == count_metrics(expression), title


def test_variables_are_declared_used_and_made_of_known_metrics() -> None:
    for name, dashboard in DASHBOARDS.items():
        variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
        queries = json.dumps([panel.get("targets") for panel in dashboard["panels"]])
        assert set(re.findall(r"\$\{?(\w+)", queries)) == set(variables), name
        assert variables.pop("datasource")["type"] == "datasource", name
        # A definition is "label_values(METRIC, LABEL)".
        metrics = [find_metrics(variable["definition"].rpartition(",")[0]) for variable in variables.values()]
        assert set().union(*metrics) <= METRICS, name


def test_links_lead_to_dashboards_that_have_their_variables() -> None:
    variables_by_uid = {
        dashboard["uid"]: {variable["name"] for variable in dashboard["templating"]["list"]}
        for dashboard in DASHBOARDS.values()
    }
    urls = {link["url"] for _, panel in PANELS for link in panel["fieldConfig"]["defaults"]["links"]}
    assert urls
    for url in urls:
        uid = url.removeprefix("/d/").partition("?")[0]
        assert set(re.findall(r"var-(\w+)=", url)) <= variables_by_uid[uid], url


def test_panels_do_not_overlap() -> None:
    for name, dashboard in DASHBOARDS.items():
        cells = [cell for panel in dashboard["panels"] for cell in list_cells(panel)]
        assert len(cells) == len(set(cells)), name
        assert max(column for column, _ in cells) < GRID_COLUMNS, name


def test_every_dashboard_is_provisioned_with_the_label_of_grafanas_sidecar() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert kustomization["generatorOptions"]["labels"]["grafana_dashboard"] == "1"
    files = {name for generator in kustomization["configMapGenerator"] for name in generator["files"]}
    assert files == {f"{name}.json" for name in DASHBOARDS}
