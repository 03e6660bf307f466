"""Dashboards as Grafana would read them: complete panels, known metrics, one data source variable, nothing on top of another."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "manifests" / "grafana"
FILES = sorted(FOLDER.glob("*.json"))
RECORDING = ROOT / "manifests" / "prometheus" / "recording.rules.yaml"
REFERENCE = ROOT / "docs" / "metrics.md"
# What every program exports, and Prometheus itself adds.
FOREIGN = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total", "ALERTS"}
FUNCTIONS_AND_WORDS = {
    *("sum", "max", "min", "count", "avg", "rate", "increase", "by", "or", "and", "vector", "le", "histogram_quantile"),
    *("label_values", "quantile"),
}


def load(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def panels(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in load(path)["panels"] if panel["type"] != "row"]


def _all_panels() -> Iterator[Any]:
    for path in FILES:
        for panel in panels(path):
            yield pytest.param(panel, id=f"{path.stem}: {panel['title']}")


ALL_PANELS = list(_all_panels())


def known_metrics() -> set[str]:
    found = {rule["record"] for group in yaml.safe_load(RECORDING.read_text())["groups"] for rule in group["rules"]}
    for name, kind in re.findall(r"^\| `(netaware_\w+)` \| (\w+) \|", REFERENCE.read_text(), re.MULTILINE):
        found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return found | FOREIGN


def metrics_in(expression: str) -> set[str]:
    """Every metric name: what is no function, no label and no text between quotes or braces."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", " ", bare)
    return set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_:]*", bare)) - FUNCTIONS_AND_WORDS


def test_there_is_a_dashboard_for_each_subject() -> None:
    assert {path.stem for path in FILES} == {"latency", "appgroups", "bandwidth", "agents", "descheduler"}


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_a_panel_has_title_description_unit_and_a_query(panel: dict[str, Any]) -> None:
    assert panel["title"].strip()
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_every_metric_of_a_panel_is_exported_or_recorded(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert target["datasource"]["uid"] == "${datasource}"
        names = metrics_in(target["expr"])
        assert names
        assert names - known_metrics() == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_variables_are_declared_used_and_made_of_known_metrics(path: Path) -> None:
    dashboard = load(path)
    declared = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert declared["datasource"]["type"] == "datasource"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([p["targets"] for p in panels(path)])))
    assert used == set(declared)
    for name, variable in declared.items():
        if name != "datasource":
            assert metrics_in(variable["definition"].rpartition(",")[0]) <= known_metrics()


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_every_metric_is_of_the_clusters_that_are_chosen(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        bare = re.sub(r'"[^"]*"', '""', target["expr"])
        count = sum(
            len(re.findall(rf"(?<![\w:]){re.escape(name)}(?![\w:])", bare)) for name in metrics_in(target["expr"])
        )
        assert target["expr"].count('cluster=~"$cluster"') == count, target["expr"]


def test_series_lead_to_the_dashboard_of_what_they_are_about() -> None:
    links = {
        (panel.values[0]["title"], link["url"])
        for panel in ALL_PANELS
        for link in panel.values[0]["fieldConfig"]["defaults"]["links"]
    }
    uids = {load(path)["uid"] for path in FILES}
    led = {re.match(r"/d/([\w-]+)\?", url)[1] for _, url in links}  # type: ignore[index]
    assert led == {"netaware-latency", "netaware-appgroups", "netaware-bandwidth"} <= uids
    declared = {load(path)["uid"]: {v["name"] for v in load(path)["templating"]["list"]} for path in FILES}
    for _, url in links:
        uid = url.removeprefix("/d/").partition("?")[0]
        assert set(re.findall(r"var-(\w+)=", url)) <= declared[uid]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_panels_have_their_own_place_and_number(path: Path) -> None:
    dashboard = load(path)
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(numbers) == len(set(numbers))
    for one, other in itertools.combinations([panel["gridPos"] for panel in dashboard["panels"]], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y, (one, other)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in dashboard["panels"])


def test_files_are_what_the_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "generate.py"), "--check"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_dashboard_is_provisioned_with_the_sidecars_label() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert kustomization["generatorOptions"]["labels"]["grafana_dashboard"] == "1"
    files = {name for entry in kustomization["configMapGenerator"] for name in entry["files"]}
    assert files == {path.name for path in FILES}


def test_dashboards_have_ids_and_titles_of_their_own() -> None:
    loaded = [load(path) for path in FILES]
    assert len({d["uid"] for d in loaded}) == len({d["title"] for d in loaded}) == len(FILES)
