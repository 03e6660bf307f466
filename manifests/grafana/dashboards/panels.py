"""Builds dashboards: each panel is one call with title, unit, description and queries; `encode` adds Grafana's other fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_DATASOURCE_VARIABLE = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
_METRIC = re.compile(r"\b((?:netaware|instance)[_:][a-zA-Z0-9_:]+|up|process_\w+|ALERTS)\b(\{)?")
"""A metric's name, and the brace if a selector follows."""
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
CLUSTER_SELECTOR = 'cluster=~"$cluster"'
BLUES = "continuous-blues"
ORANGE, GREEN, BLUE, GREY = "#d55e00", "#009e73", "#0072b2", "#8a8f98"
DASHBOARD_WIDTH = 24
"""Number of columns of Grafana's grid."""
MAX_GAP_MS = 180_000
"""Longest gap that a line bridges, such as the restart of a program."""


@dataclass(frozen=True)
class Query:
    """A query of a panel.

    Attributes:
        expr: the PromQL expression.
        legend: name of a series, in Grafana's notation ``{{label}}``.
        format: format of the answer; ``table`` has the newest values only.
    """

    expr: str
    legend: str = ""
    format: Literal["time_series", "table", "heatmap"] = "time_series"

    @classmethod
    def quantiles(cls, histogram: str, window: str, by: str = "") -> tuple[Query, Query]:
        """Queries for the 50th and the 99th percentile of a histogram; ``by`` is the label of its series."""
        labels, legend = (f"{by}, le", f"{{{{{by}}}}} ") if by else ("le", "")
        rates = f"sum by ({labels}) (rate({histogram}_bucket[{window}]))"
        median, p99 = f"histogram_quantile(0.5, {rates})", f"histogram_quantile(0.99, {rates})"
        return cls(median, f"{legend}p50"), cls(p99, f"{legend}p99")


@dataclass(frozen=True)
class Panel:
    """A panel.

    Attributes:
        kind: Grafana's name of the type, such as ``timeseries``.
        unit: Grafana's name of the unit of the values.
        width: number of columns, of `DASHBOARD_WIDTH`; None for the width of its row's panels.
        height: rows of Grafana's grid.
        defaults: fields of ``fieldConfig.defaults``; ``options``, ``transformations`` and ``overrides`` as in Grafana.
    """

    title: str
    kind: str
    unit: str
    description: str
    queries: Sequence[Query]
    width: int | None = None
    height: int = 8
    defaults: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    transformations: Sequence[Mapping[str, Any]] = ()
    overrides: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Row:
    """Panels under a title; ``panel_width`` is for those without a width of their own."""

    title: str
    panels: Sequence[Panel]
    panel_width: int = 12


@dataclass(frozen=True)
class Dashboard:
    """A dashboard; its ``variables`` follow those for data source and cluster."""

    uid: str
    title: str
    description: str
    variables: Sequence[Mapping[str, Any]]
    rows: Sequence[Row]


def select_clusters(expression: str) -> str:
    """The expression with `CLUSTER_SELECTOR` at each metric. The choice All also selects series without the label."""

    def add_selector(metric: re.Match[str]) -> str:
        return f"{metric[1]}{{{CLUSTER_SELECTOR}, " if metric[2] else f"{metric[1]}{{{CLUSTER_SELECTOR}}}"

    # Quoted names are values of labels.
    parts = _QUOTED.split(expression)
    return "".join(part if part.startswith('"') else _METRIC.sub(add_selector, part) for part in parts)


def variable(name: str, label: str, query: str, regex: str = "") -> dict[str, Any]:
    """A variable for values of a label, all by default; with ``regex``, for what its first group matches in each value."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "regex": regex,
        "refresh": 2,  # when the time range changes
        "sort": 7,  # natural order, ascending
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def timeseries(title: str, unit: str, description: str, *queries: Query, **fields: Any) -> Panel:
    """Lines over time."""
    defaults = {
        "color": {"mode": "palette-classic-by-name"},
        "custom": {"lineWidth": 1, "fillOpacity": 4, "showPoints": "never", "spanNulls": MAX_GAP_MS},
        **fields.pop("defaults", {}),
    }
    options = {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"], "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(title, "timeseries", unit, description, queries, defaults=defaults, options=options, **fields)


def areas(title: str, unit: str, description: str, *queries: Query, **fields: Any) -> Panel:
    """Areas on top of each other, for parts of a whole."""
    custom = {"lineWidth": 1, "fillOpacity": 35, "showPoints": "never", "stacking": {"mode": "normal"}}
    return timeseries(title, unit, description, *queries, defaults={"custom": custom}, **fields)


def stat(
    title: str, unit: str, description: str, query: Query, *, bad_above: float | None = None, **fields: Any
) -> Panel:
    """One number, orange above ``bad_above``."""
    steps: list[dict[str, Any]] = [{"color": BLUE if bad_above is None else GREEN, "value": None}]
    if bad_above is not None:
        # A threshold of Grafana includes its value.
        steps.append({"color": ORANGE, "value": bad_above + 1e-9})
    defaults = {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}
    options = {
        "colorMode": "value",
        "graphMode": "area",
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "textMode": "auto",
    }
    sizes = {"width": 6, "height": 4, **fields}
    return Panel(title, "stat", unit, description, [query], defaults=defaults, options=options, **sizes)


def status_history(title: str, unit: str, description: str, query: Query, **fields: Any) -> Panel:
    """A row per series, coloured by value over time."""
    defaults = {"color": {"mode": BLUES}, "custom": {"fillOpacity": 90, "lineWidth": 0}, **fields.pop("defaults", {})}
    options = {"showValue": "never", "rowHeight": 0.9, "colWidth": 0.95, "legend": {"showLegend": False}}
    sizes = {"width": DASHBOARD_WIDTH, **fields}
    return Panel(title, "status-history", unit, description, [query], defaults=defaults, options=options, **sizes)


def matrix(
    title: str, unit: str, description: str, query: Query, *, row_label: str, column_label: str, **fields: Any
) -> Panel:
    """The newest values as a table with the values of a label down and of another across, coloured by value."""
    options = {"rowField": row_label, "columnField": column_label, "valueField": "Value"}
    first_column = {
        "matcher": {"id": "byName", "options": f"{row_label}\\{column_label}"},
        "properties": [{"id": "custom.cellOptions", "value": {"type": "auto"}}],
    }
    return Panel(
        title,
        "table",
        unit,
        description,
        [query],
        defaults={
            "color": {"mode": BLUES},
            "custom": {"cellOptions": {"type": "color-background", "mode": "basic"}, "align": "auto"},
        },
        options={"showHeader": True, "cellHeight": "sm", "footer": {"show": False}},
        transformations=[{"id": "groupingToMatrix", "options": options}],
        overrides=[first_column],
        **fields,
    )


def table(title: str, unit: str, description: str, query: Query, hide: Sequence[str] = (), **fields: Any) -> Panel:
    """The newest values: a row per series, a column per label except those to ``hide``."""
    organize = {"id": "organize", "options": {"excludeByName": dict.fromkeys(("Time", "__name__", *hide), True)}}
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": "Value", "desc": True}]}
    sizes = {"width": DASHBOARD_WIDTH, **fields}
    return Panel(title, "table", unit, description, [query], options=options, transformations=[organize], **sizes)


def heatmap(title: str, unit: str, description: str, query: Query, **fields: Any) -> Panel:
    """A histogram over time."""
    options = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "reverse": False, "exponent": 0.5},
        "yAxis": {"unit": unit, "axisPlacement": "left"},
        "cellGap": 1,
        "tooltip": {"mode": "single", "yHistogram": True},
        "legend": {"show": True},
    }
    return Panel(title, "heatmap", unit, description, [query], options=options, **fields)


def encode(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    cluster = variable("cluster", "Cluster", 'label_values(up{job=~".*netaware.*"}, cluster)')
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["netaware"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # the crosshair is shared by all panels
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
        "templating": {"list": [_DATASOURCE_VARIABLE, cluster, *map(_select_clusters_of, dashboard.variables)]},
        "annotations": {"list": list(_encode_annotations())},
        "panels": list(_encode_rows(dashboard)),
    }


def _select_clusters_of(variable: Mapping[str, Any]) -> dict[str, Any]:
    """The variable, for the selected clusters only. Its query is ``label_values(metric, label)``."""
    metric, _, label_and_bracket = variable["definition"].removeprefix("label_values(").rpartition(", ")
    query = f"label_values({select_clusters(metric)}, {label_and_bracket}"
    return {**variable, "query": {**variable["query"], "query": query}, "definition": query}


def _encode_annotations() -> Iterator[dict[str, Any]]:
    """Marks at alerts, evictions and changes of the probe plan."""
    alerts = 'ALERTS{alertname=~"Netaware.*", alertstate="firing"}'
    evictions, plans = (
        f"sum(increase({metric}[1m])) > 0"
        for metric in ("netaware_descheduler_evictions_total", "netaware_probe_plan_writes_total")
    )
    for name, colour, expression, title, is_shown in (
        ("Alerts", ORANGE, alerts, "{{alertname}}", True),
        ("Evictions", BLUE, evictions, "Evictions", True),
        ("Probe plans", GREY, plans, "Probe plans", False),
    ):
        yield {
            "name": name,
            "datasource": DATASOURCE,
            "enable": is_shown,
            "iconColor": colour,
            "expr": select_clusters(expression),
            "titleFormat": title,
            "step": "60s",
        }


def _encode_rows(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    panel_id, y = 1, 0
    for row in dashboard.rows:
        yield {
            "id": panel_id,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": DASHBOARD_WIDTH, "h": 1},
        }
        panel_id, y = panel_id + 1, y + 1
        x = tallest = 0
        for panel in row.panels:
            width = panel.width or row.panel_width
            if x + width > DASHBOARD_WIDTH:
                x, y, tallest = 0, y + tallest, 0
            yield _encode_panel(panel, panel_id, {"x": x, "y": y, "w": width, "h": panel.height})
            panel_id, x, tallest = panel_id + 1, x + width, max(tallest, panel.height)
        y += tallest


def _encode_panel(panel: Panel, panel_id: int, grid_position: dict[str, int]) -> dict[str, Any]:
    return {
        "id": panel_id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": grid_position,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "links": _encode_links(panel), **panel.defaults},
            "overrides": list(panel.overrides),
        },
        "options": dict(panel.options),
        "transformations": list(panel.transformations),
        "targets": [_encode_query(query, chr(ord("A") + i)) for i, query in enumerate(panel.queries)],
    }


def _encode_links(panel: Panel) -> list[dict[str, Any]]:
    """Links of a series to the dashboards of its pair of zones, AppGroup or node, if its legend has their labels."""
    legends = " ".join(query.legend for query in panel.queries)
    links = []
    for title, uid, label_by_variable in (
        ("This pair's latency", "netaware-latency", {"origin": "origin_zone", "destination": "destination_zone"}),
        ("This AppGroup", "netaware-appgroups", {"appgroup": "appgroup"}),
        ("This node's bandwidth", "netaware-bandwidth", {"node": "node"}),
    ):
        if all(f"{{{{{label}}}}}" in legends for label in label_by_variable.values()):
            variables = "&".join(f"var-{name}=${{__field.labels.{label}}}" for name, label in label_by_variable.items())
            url = f"/d/{uid}?${{cluster:queryparam}}&{variables}&${{__url_time_range}}"
            links.append({"title": title, "url": url, "targetBlank": False})
    return links


def _encode_query(query: Query, reference: str) -> dict[str, Any]:
    target: dict[str, Any] = {
        "refId": reference,
        "datasource": DATASOURCE,
        "expr": select_clusters(query.expr),
        "legendFormat": query.legend or "__auto",
    }
    if query.format == "table":
        target |= {"format": "table", "instant": True, "range": False}
    if query.format == "heatmap":
        target |= {"format": "heatmap"}
    return target
