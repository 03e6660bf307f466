"""Rules for the dashboards' JSON; a failed test names every panel that breaks its rule."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import yaml

from tests.unit.manifests.metric_names import ROOT, list_recorded_series, read_labels_by_series, read_rules

FOLDER = ROOT / "manifests" / "grafana"
DASHBOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
PANELS = [
    (f"{name}: {panel['title']}", panel)
    for name, dashboard in sorted(DASHBOARDS.items())
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
TARGETS = [(title, target) for title, panel in PANELS for target in panel["targets"]]
METRICS = read_labels_by_series().keys() | list_recorded_series()
# Metrics of Prometheus and its client.
METRICS |= {"up", "ALERTS", "process_resident_memory_bytes", "process_cpu_seconds_total"}
PROMQL_WORDS = {
    *("sum", "max", "min", "count", "avg", "rate", "increase", "by", "or", "and", "vector", "le"),
    *("histogram_quantile", "label_values", "quantile", "time"),
}


def empty_strings(expression: str) -> str:
    return re.sub(r'"[^"]*"', '""', expression)


def find_metrics(expression: str) -> set[str]:
    """The names that are neither functions nor labels."""
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", " ", empty_strings(expression))
    return set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_:]*", text)) - PROMQL_WORDS


def test_panels_have_a_title_a_description_a_unit_and_distinct_queries() -> None:
    def is_complete(panel: dict[str, Any]) -> bool:
        names = [target["refId"] for target in panel["targets"]]
        has_texts = panel["title"].strip() and panel["description"].endswith(".")
        return bool(has_texts and panel["fieldConfig"]["defaults"]["unit"] and names) and len(names) == len(set(names))

    assert len(PANELS) > 40
    assert [title for title, panel in PANELS if not is_complete(panel)] == []


def test_panels_query_exported_or_recorded_series_of_the_chosen_data_source() -> None:
    metrics_by_title = {title: find_metrics(target["expr"]) for title, target in TARGETS}
    assert {title: names - METRICS for title, names in metrics_by_title.items() if names - METRICS or not names} == {}
    assert [title for title, target in TARGETS if target["datasource"]["uid"] != "${datasource}"] == []


def test_panels_and_rules_use_labels_that_their_metrics_have() -> None:
    """Prometheus adds instance and job, summaries have quantiles, and label_replace makes the labels in quotation marks."""
    labels_by_series, unknown = read_labels_by_series(), []
    expressions = [(title, target["expr"]) for title, target in TARGETS]
    expressions += [
        (str(rule), rule["expr"]) for kind in ("recording", "alerts") for rule in read_rules(f"{kind}.rules.yaml")
    ]
    for title, expression in expressions:
        for metric, selector in re.findall(r"(?<![\w:])(netaware_\w+)\{([^}]*)\}", expression):
            selected = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", empty_strings(selector)))
            unknown += [(title, metric, label) for label in selected - labels_by_series[metric] - {"cluster"}]
        # A recorded metric has the labels that its own rule keeps.
        metrics = re.findall(r"(?<![\w:])netaware_\w+", expression)
        if metrics and ":" not in empty_strings(expression):
            labels = {label for metric in metrics for label in labels_by_series[metric]}
            labels |= {"cluster", "instance", "job", "quantile", *re.findall(r'"(\w+)"', expression)}
            clauses = re.findall(r"\b(?:by|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", expression)
            unknown += [(title, "by", label) for label in set(re.findall(r"\w+", " ".join(clauses))) - labels]
    assert unknown == []


def test_every_metric_is_selected_by_cluster() -> None:
    def count_metrics(expression: str) -> int:
        text = empty_strings(expression)
        return sum(len(re.findall(rf"(?<![\w:]){re.escape(n)}(?![\w:])", text)) for n in find_metrics(expression))

    counts = {title: (t["expr"].count('cluster=~"$cluster"'), count_metrics(t["expr"])) for title, t in TARGETS}
    assert {title: count for title, count in counts.items() if count[0] != count[1]} == {}


def test_variables_are_declared_used_and_made_of_known_metrics() -> None:
    for name, dashboard in DASHBOARDS.items():
        variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
        queries = json.dumps([panel.get("targets") for panel in dashboard["panels"]])
        assert set(re.findall(r"\$\{?(\w+)", queries)) == set(variables), name
        assert variables.pop("datasource")["type"] == "datasource", name
        metrics = [find_metrics(variable["definition"].rpartition(",")[0]) for variable in variables.values()]
        assert set().union(*metrics) <= METRICS, name


def test_links_lead_to_dashboards_that_have_their_variables() -> None:
    variables = {d["uid"]: {variable["name"] for variable in d["templating"]["list"]} for d in DASHBOARDS.values()}
    urls = {link["url"] for _, panel in PANELS for link in panel["fieldConfig"]["defaults"]["links"]}
    assert urls
    for url in urls:
        uid = url.removeprefix("/d/").partition("?")[0]
        assert set(re.findall(r"var-(\w+)=", url)) <= variables[uid], url


def test_panels_have_distinct_ids_and_do_not_overlap() -> None:
    for name, dashboard in DASHBOARDS.items():
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids)), name
        positions = [panel["gridPos"] for panel in dashboard["panels"]]
        assert all(position["x"] + position["w"] <= 24 for position in positions), name
        for first, second in itertools.combinations(positions, 2):
            are_side_by_side = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
            are_stacked = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
            assert are_side_by_side or are_stacked, (name, first, second)


def test_every_dashboard_is_provisioned_with_the_label_of_grafanas_sidecar() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert kustomization["generatorOptions"]["labels"]["grafana_dashboard"] == "1"
    files = {name for generator in kustomization["configMapGenerator"] for name in generator["files"]}
    assert files == {f"{name}.json" for name in DASHBOARDS}
