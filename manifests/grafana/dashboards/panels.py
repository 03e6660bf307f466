"""What dashboards are made of: a panel is one call, and none can be made without title, unit, description and expression.

Hand-written dashboard JSON is four fifths boilerplate, in which a forgotten unit or a second copy of an expression hides well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_METRIC = re.compile(r"\b((?:netaware|instance)[_:][a-zA-Z0-9_:]+|up|process_\w+|ALERTS)\b(?!-)(\{)?")
_TEXT = re.compile(r'("(?:[^"\\]|\\.)*")')
CLUSTER = 'cluster=~"$cluster"'
PAIR = 'origin_zone=~"$origin", destination_zone=~"$destination"'
BLUES = "continuous-blues"
ORANGE, GREEN, BLUE, GREY = "#d55e00", "#009e73", "#0072b2", "#8a8f98"
WIDTH = 24


@dataclass(frozen=True)
class Query:
    """An expression and the name of its series, in Grafana's ``{{label}}`` notation; ``table`` asks for the newest values."""

    expr: str
    legend: str = ""
    table: bool = False
    heatmap: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel. ``unit`` is one of Grafana's unit names; sizes are in the dashboard's 24 columns."""

    title: str
    kind: str
    unit: str
    description: str
    queries: Sequence[Query]
    width: int = 12
    height: int = 8
    defaults: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    transformations: Sequence[Mapping[str, Any]] = ()
    overrides: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Dashboard:
    """One file. ``variables`` come after the data source's; rows are titled groups of panels."""

    uid: str
    title: str
    description: str
    variables: Sequence[Mapping[str, Any]]
    rows: Sequence[tuple[str, Sequence[Panel]]]


def of_cluster(expression: str) -> str:
    """The same of the clusters that are chosen. Series without the label belong to All."""

    def narrowed(found: re.Match[str]) -> str:
        return f"{found[1]}{{{CLUSTER}, " if found[2] else f"{found[1]}{{{CLUSTER}}}"

    # Names within quotes are labels' values.
    return "".join(part if part.startswith('"') else _METRIC.sub(narrowed, part) for part in _TEXT.split(expression))


def variable(name: str, label: str, query: str, regex: str = "") -> dict[str, Any]:
    """A choice of label values, all by default; of each what the first group of ``regex`` matches."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "regex": regex,
        "refresh": 2,
        "sort": 7,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def lines(title: str, unit: str, description: str, *queries: Query, **more: Any) -> Panel:
    """Lines over time."""
    defaults = {
        "color": {"mode": "palette-classic-by-name"},
        "custom": {"lineWidth": 1, "fillOpacity": 4, "showPoints": "never", "spanNulls": 180_000},
        **more.pop("defaults", {}),
    }
    options = {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"], "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(title, "timeseries", unit, description, queries, defaults=defaults, options=options, **more)


def stacked(title: str, unit: str, description: str, *queries: Query, **more: Any) -> Panel:
    """Areas on top of each other, for parts of a whole."""
    custom = {"lineWidth": 1, "fillOpacity": 35, "showPoints": "never", "stacking": {"mode": "normal"}}
    return lines(title, unit, description, *queries, defaults={"custom": custom}, **more)


def number(
    title: str, unit: str, description: str, query: Query, *, bad_above: float | None = None, **more: Any
) -> Panel:
    """One number; with ``bad_above`` orange beyond it."""
    steps: list[dict[str, Any]] = [{"color": BLUE if bad_above is None else GREEN, "value": None}]
    if bad_above is not None:
        steps.append({"color": ORANGE, "value": bad_above + 1e-9})
    defaults = {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}
    options = {
        "colorMode": "value",
        "graphMode": "area",
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "textMode": "auto",
    }
    sizes = {"width": 4, "height": 4, **more}
    return Panel(title, "stat", unit, description, [query], defaults=defaults, options=options, **sizes)


def history(title: str, unit: str, description: str, query: Query, **more: Any) -> Panel:
    """A row per series, coloured by value over time."""
    defaults = {"color": {"mode": BLUES}, "custom": {"fillOpacity": 90, "lineWidth": 0}, **more.pop("defaults", {})}
    options = {"showValue": "never", "rowHeight": 0.9, "colWidth": 0.95, "legend": {"showLegend": False}}
    return Panel(title, "status-history", unit, description, [query], defaults=defaults, options=options, **more)


def matrix(title: str, unit: str, description: str, query: Query, **more: Any) -> Panel:
    """Newest values as a table of the labels ``by[0]`` down and ``by[1]`` across, coloured by value."""
    rows, columns = more.pop("by")
    grouped = {"id": "groupingToMatrix", "options": {"rowField": rows, "columnField": columns, "valueField": "Value"}}
    first = {
        "matcher": {"id": "byName", "options": f"{rows}\\{columns}"},
        "properties": [{"id": "custom.cellOptions", "value": {"type": "auto"}}],
    }
    defaults = {
        "color": {"mode": BLUES},
        "custom": {"cellOptions": {"type": "color-background", "mode": "basic"}, "align": "auto"},
    }
    options = {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}}
    return Panel(
        title,
        "table",
        unit,
        description,
        [query],
        defaults=defaults,
        options=options,
        transformations=[grouped],
        overrides=[first],
        **more,
    )


def table(title: str, unit: str, description: str, query: Query, hide: Sequence[str] = (), **more: Any) -> Panel:
    """Newest values, one row per series, labels as columns."""
    organise = {"id": "organize", "options": {"excludeByName": dict.fromkeys(("Time", "__name__", *hide), True)}}
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": "Value", "desc": True}]}
    return Panel(title, "table", unit, description, [query], options=options, transformations=[organise], **more)


def heat(title: str, unit: str, description: str, query: Query, **more: Any) -> Panel:
    """How a histogram moves over time."""
    options = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "reverse": False, "exponent": 0.5},
        "yAxis": {"unit": unit, "axisPlacement": "left"},
        "cellGap": 1,
        "tooltip": {"mode": "single", "yHistogram": True},
        "legend": {"show": True},
    }
    return Panel(title, "heatmap", unit, description, [query], options=options, **more)


def encode(dashboard: Dashboard) -> dict[str, Any]:
    """A dashboard as Grafana reads it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["netaware"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "links": [
            {
                "type": "dashboards",
                "tags": ["netaware"],
                "title": "netaware",
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [_datasource(), _clusters(), *map(_of_clusters, dashboard.variables)]},
        "annotations": {"list": [_alerts(), *_happenings()]},
        "panels": list(_panels(dashboard)),
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }


def _clusters() -> dict[str, Any]:
    return variable("cluster", "Cluster", 'label_values(up{job=~".*netaware.*"}, cluster)')


def _of_clusters(choice: Mapping[str, Any]) -> dict[str, Any]:
    """A variable's values in the clusters that are chosen."""
    metric, _, label = choice["definition"].removeprefix("label_values(").rpartition(", ")
    query = f"label_values({of_cluster(metric)}, {label}"
    return {**choice, "query": {**choice["query"], "query": query}, "definition": query}


def _happenings() -> Iterator[dict[str, Any]]:
    """Marks where pods were moved, and where measurements were planned anew."""
    for name, colour, metric, shown in (
        ("Evictions", BLUE, "netaware_descheduler_evictions_total", True),
        ("Probe plans", GREY, "netaware_probe_plan_writes_total", False),
    ):
        yield {
            "name": name,
            "datasource": SOURCE,
            "enable": shown,
            "iconColor": colour,
            "expr": f"sum(increase({of_cluster(metric)}[1m])) > 0",
            "titleFormat": name,
            "step": "60s",
        }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": ORANGE,
        "expr": of_cluster('ALERTS{alertname=~"Netaware.*", alertstate="firing"}'),
        "titleFormat": "{{alertname}}",
        "step": "60s",
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number_of, y = 1, 0
    for title, panels in dashboard.rows:
        yield {
            "id": number_of,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
        }
        number_of, y, x, tallest = number_of + 1, y + 1, 0, 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            yield _panel(panel, number_of, {"x": x, "y": y, "w": panel.width, "h": panel.height})
            number_of, x, tallest = number_of + 1, x + panel.width, max(tallest, panel.height)
        y += tallest


def _panel(panel: Panel, number_of: int, position: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number_of,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": position,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "links": _ways(panel), **panel.defaults},
            "overrides": list(panel.overrides),
        },
        "options": dict(panel.options),
        "transformations": list(panel.transformations),
        "targets": [_target(query, chr(ord("A") + i)) for i, query in enumerate(panel.queries)],
    }


def _ways(panel: Panel) -> list[dict[str, Any]]:
    """Where a series leads, by the labels that its name shows: to its pair of zones, its AppGroup, its node."""
    shown = " ".join(query.legend for query in panel.queries)
    found = []
    for title, uid, labels in (
        ("This pair's latency", "netaware-latency", {"origin": "origin_zone", "destination": "destination_zone"}),
        ("This AppGroup", "netaware-appgroups", {"appgroup": "appgroup"}),
        ("This node's bandwidth", "netaware-bandwidth", {"node": "node"}),
    ):
        if all(f"{{{{{label}}}}}" in shown for label in labels.values()):
            chosen = "&".join(f"var-{name}=${{__field.labels.{label}}}" for name, label in labels.items())
            url = f"/d/{uid}?${{cluster:queryparam}}&{chosen}&${{__url_time_range}}"
            found.append({"title": title, "url": url, "targetBlank": False})
    return found


def _target(query: Query, reference: str) -> dict[str, Any]:
    target: dict[str, Any] = {
        "refId": reference,
        "datasource": SOURCE,
        "expr": of_cluster(query.expr),
        "legendFormat": query.legend or "__auto",
    }
    if query.table:
        target |= {"format": "table", "instant": True, "range": False}
    if query.heatmap:
        target |= {"format": "heatmap"}
    return target
