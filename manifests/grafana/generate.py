"""Writes the Grafana dashboards as JSON; each is a list of rows of panels, and a panel is one call.

    python manifests/grafana/generate.py           writes *.json
    python manifests/grafana/generate.py --check   changes nothing and ends with 1 when one of them is not current

Hand-written dashboard JSON is four fifths boilerplate, in which a forgotten unit or a second copy of an expression hides well.
Here a panel cannot be made without title, unit, description and expression.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
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


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A choice of label values, all by default."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
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


LATENCY = Dashboard(
    "netaware-latency",
    "netaware / Latency and costs",
    "Round trips between zones as the agents measure them, what they cost, and whether they can be trusted.",
    [
        variable("origin", "From zone", "label_values(netaware:pair_latency_seconds, origin_zone)"),
        variable("destination", "To zone", "label_values(netaware:pair_latency_seconds, destination_zone)"),
        variable("topology", "NetworkTopology", "label_values(netaware_zone_pairs, topology)"),
    ],
    [
        (
            "Now",
            [
                number(
                    "Zone pairs measured",
                    "short",
                    "Directed zone pairs whose cost rests on a measurement, their own or that of the way back.",
                    Query('sum(netaware_zone_pairs{topology=~"$topology", basis=~"measured|mirrored"})'),
                ),
                number(
                    "Not measured",
                    "short",
                    "Directed zone pairs whose cost is inferred, old or missing.",
                    Query('sum(netaware_zone_pairs{topology=~"$topology", basis=~"stale|inferred|absent"})'),
                    bad_above=0,
                ),
                number(
                    "Oldest measurement",
                    "s",
                    "Age of the oldest measurement in use, by the controller's clock.",
                    Query('max(netaware_zone_measurement_age_seconds{topology=~"$topology"})'),
                ),
                number(
                    "Length of a round",
                    "s",
                    "Time in which every planned pair is probed once.",
                    Query("max(netaware_plan_interval_seconds)"),
                ),
                number(
                    "Slowest pair, p50",
                    "s",
                    "The longest median round trip between two zones.",
                    Query('max(netaware:pair_latency_seconds{quantile="0.5"})'),
                ),
                number(
                    "Failed probes",
                    "percentunit",
                    "Share of the last 15 minutes' probes that ended without a measurement.",
                    Query(
                        'sum(netaware:pair_runs:rate15m{outcome!~"ok|over-budget"} or vector(0))'
                        ' / sum(netaware:pair_runs:rate15m{outcome!="over-budget"})'
                    ),
                    bad_above=0.1,
                ),
                matrix(
                    "Cost from zone to zone",
                    "none",
                    "Costs as the scheduler reads them. Rows are origins, columns destinations; darker is farther.",
                    Query('netaware_network_cost{level="zone", topology=~"$topology"}', table=True),
                    by=("origin", "destination"),
                    height=11,
                ),
                matrix(
                    "Round trip from zone to zone, p50",
                    "s",
                    "Medians of the newest runs. One node per zone pair measures, so each pair is shown in the direction measured.",
                    Query(f'netaware:pair_latency_seconds{{quantile="0.5", {PAIR}}}', table=True),
                    by=("origin_zone", "destination_zone"),
                    height=11,
                ),
            ],
        ),
        (
            "Over time",
            [
                history(
                    "Round trips by zone pair, p50",
                    "s",
                    "Each row is a pair of zones, coloured by the median of its newest run; a change of route shows as a step.",
                    Query(
                        f'netaware:pair_latency_seconds{{quantile="0.5", {PAIR}}}',
                        "{{origin_zone}} to {{destination_zone}}",
                    ),
                    width=24,
                    height=12,
                ),
                *(
                    lines(
                        f"Round trips, p{name}",
                        "s",
                        f"p{name} of each zone pair's newest run. Percentiles of several runs are never averaged.",
                        Query(
                            f'netaware:pair_latency_seconds{{quantile="{quantile}", {PAIR}}}',
                            "{{origin_zone}} to {{destination_zone}}",
                        ),
                        width=8,
                        height=9,
                    )
                    for name, quantile in (("50", "0.5"), ("90", "0.9"), ("99", "0.99"))
                ),
                lines(
                    "Round trips between regions, median of zones",
                    "s",
                    "Median over the zone pairs between two regions.",
                    Query("netaware:region_latency_seconds", "{{origin_region}} to {{destination_region}}"),
                ),
                heat(
                    "How run medians are spread",
                    "s",
                    "Medians of runs over all zone pairs, by the histogram's classes from 50 µs up in doublings.",
                    Query("sum by (le) (netaware:region_rtt_seconds:histogram_rate15m)", "{{le}}", heatmap=True),
                ),
                lines(
                    "Against the pair's own week",
                    "percentunit",
                    "Median round trip over the week's median of the same pair; 1 is as always. The alert is at 1.5.",
                    Query(
                        f'netaware:pair_latency_seconds{{quantile="0.5", {PAIR}}}'
                        " / netaware:pair_latency_seconds:median1w",
                        "{{origin_zone}} to {{destination_zone}}",
                    ),
                ),
                lines(
                    "Costs",
                    "none",
                    "Costs between zones as written. They hold still while the latency moves within its noise.",
                    Query(
                        'netaware_network_cost{level="zone", topology=~"$topology"}', "{{origin}} to {{destination}}"
                    ),
                ),
            ],
        ),
        (
            "Trust",
            [
                stacked(
                    "What costs rest on",
                    "short",
                    "Directed zone pairs by what their cost rests on.",
                    Query('sum by (basis) (netaware_zone_pairs{topology=~"$topology"})', "{{basis}}"),
                    width=8,
                ),
                stacked(
                    "Probes by outcome",
                    "cps",
                    "Runs per second by how they ended. over-budget: put off because the prober had used its share of CPU.",
                    Query("sum by (outcome) (netaware:pair_runs:rate15m)", "{{outcome}}"),
                    width=8,
                ),
                lines(
                    "Trusted samples",
                    "percentunit",
                    "Share of the last half hour in which the newest sample of a pair was free of doubts.",
                    Query("netaware:pair_trusted:ratio30m", "{{origin_zone}} to {{destination_zone}}"),
                    width=8,
                    defaults={"min": 0, "max": 1},
                ),
                lines(
                    "Loss",
                    "percentunit",
                    "Lost datagrams, or retransmitted segments, over transactions of the newest run.",
                    Query(f"netaware_probe_loss_ratio{{{PAIR}}}", "{{origin_zone}} to {{destination_zone}}"),
                    width=8,
                ),
                lines(
                    "Age of the newest sample",
                    "s",
                    "As the agents tell it; it grows to a round's length and starts again.",
                    Query(f"netaware_probe_sample_age_seconds{{{PAIR}}}", "{{origin_zone}} to {{destination_zone}}"),
                    width=8,
                ),
                stacked(
                    "Nodes that take no part",
                    "short",
                    "Nodes that the probe plan leaves out, by reason.",
                    Query("sum by (reason) (netaware_plan_left_out)", "{{reason}}"),
                    width=8,
                ),
            ],
        ),
    ],
)

APPGROUPS = Dashboard(
    "netaware-appgroups",
    "netaware / AppGroups and scheduling",
    "Whether applications are as near together as they asked to be, and how the scheduler extender fares.",
    [variable("appgroup", "AppGroup", "label_values(netaware_appgroup_pods, appgroup)")],
    [
        (
            "AppGroups",
            [
                number(
                    "Dependencies violated",
                    "short",
                    "Dependencies whose pods are farther apart than their maxNetworkCost allows, over all groups chosen.",
                    Query('sum(netaware_appgroup_dependencies{appgroup=~"$appgroup", verdict="violated"})'),
                    bad_above=0,
                    width=6,
                ),
                number(
                    "Dependencies met",
                    "percentunit",
                    "Share of the placed dependencies within their maxNetworkCost.",
                    Query(
                        'sum(netaware_appgroup_dependencies{appgroup=~"$appgroup", verdict="met"})'
                        ' / sum(netaware_appgroup_dependencies{appgroup=~"$appgroup", verdict=~"met|violated|unknown"})'
                    ),
                    width=6,
                ),
                number(
                    "Pods running",
                    "short",
                    "Running pods of the groups chosen.",
                    Query('sum(netaware_appgroup_pods{appgroup=~"$appgroup", state="running"})'),
                    width=6,
                ),
                number(
                    "Faults in specs",
                    "short",
                    "Dependencies that lead nowhere, duplicate selectors and the like; the condition SpecValid names them.",
                    Query('sum(netaware_appgroup_spec_faults{appgroup=~"$appgroup"} or vector(0))'),
                    bad_above=0,
                    width=6,
                ),
                history(
                    "Dependencies met, by group",
                    "percentunit",
                    "Each row is a group; the share of its placed dependencies within their maxNetworkCost.",
                    Query('netaware:appgroup_dependencies_met:ratio{appgroup=~"$appgroup"}', "{{appgroup}}"),
                    width=24,
                    height=7,
                    defaults={"min": 0, "max": 1},
                ),
                stacked(
                    "Dependencies by verdict",
                    "short",
                    "met: within maxNetworkCost. violated: beyond it. unknown: no cost is known. idle: one side has no placed pod.",
                    Query('sum by (verdict) (netaware_appgroup_dependencies{appgroup=~"$appgroup"})', "{{verdict}}"),
                ),
                lines(
                    "Pods by group",
                    "short",
                    "Pods wanted (numMembers), placed on a node, and running.",
                    Query(
                        'sum by (appgroup, state) (netaware_appgroup_pods{appgroup=~"$appgroup"})',
                        "{{appgroup}} {{state}}",
                    ),
                ),
            ],
        ),
        (
            "Gates and plans",
            [
                lines(
                    "Pods behind their gate",
                    "short",
                    "Pods of AppGroups that wait for the workloads before theirs.",
                    Query("sum(netaware_gated_pods)", "gated"),
                    width=6,
                ),
                lines(
                    "Time behind the gate",
                    "s",
                    "p50 and p99 of the time from a pod's creation to its release, over the last 15 minutes.",
                    Query("histogram_quantile(0.5, sum by (le) (rate(netaware_gate_wait_seconds_bucket[15m])))", "p50"),
                    Query(
                        "histogram_quantile(0.99, sum by (le) (rate(netaware_gate_wait_seconds_bucket[15m])))", "p99"
                    ),
                    width=6,
                ),
                stacked(
                    "Releases",
                    "cps",
                    "Pods released per second. turn: the workloads before theirs are placed. waited: they were not, in time.",
                    Query("sum by (cause) (rate(netaware_gate_releases_total[15m]))", "{{cause}}"),
                    width=6,
                ),
                stacked(
                    "Where pods landed",
                    "cps",
                    "Placed pods per second, as their group's plan wanted it or elsewhere.",
                    Query("sum by (how) (rate(netaware_placed_pods_total[15m]))", "{{how}}"),
                    width=6,
                ),
            ],
        ),
        (
            "Scheduler extender",
            [
                stacked(
                    "Decisions",
                    "cps",
                    "Answers per second by verb and result. neutral: the pod is none of ours, or nothing is known for it.",
                    Query("sum by (verb, result) (rate(netaware_extender_decisions_total[5m]))", "{{verb}} {{result}}"),
                    width=8,
                ),
                lines(
                    "Time to answer",
                    "s",
                    "p50 and p99 of the time from the whole request to the answer.",
                    Query(
                        "histogram_quantile(0.5, sum by (verb, le) (rate(netaware_extender_duration_seconds_bucket[5m])))",
                        "{{verb}} p50",
                    ),
                    Query(
                        "histogram_quantile(0.99, sum by (verb, le) (rate(netaware_extender_duration_seconds_bucket[5m])))",
                        "{{verb}} p99",
                    ),
                    width=8,
                ),
                lines(
                    "Nodes refused",
                    "cps",
                    "Nodes per second that the filter refused on network grounds.",
                    Query("sum(rate(netaware_extender_nodes_refused_total[5m]))", "refused"),
                    width=8,
                ),
            ],
        ),
    ],
)

BANDWIDTH = Dashboard(
    "netaware-bandwidth",
    "netaware / Bandwidth",
    "What uplinks offer, what flows, what paths between zones are promised, and whether pods' limits hold.",
    [
        variable("node", "Node", "label_values(netaware_node_bandwidth_known, node)"),
        variable("namespace", "Namespace", "label_values(netaware_pod_bandwidth_verdict, namespace)"),
    ],
    [
        (
            "Nodes",
            [
                number(
                    "Capacity published",
                    "bps",
                    "Sum over the nodes chosen of what they publish as network.aware.com/bandwidth.",
                    Query('sum(netaware:node_bandwidth_capacity:bps{node=~"$node"})'),
                    width=6,
                ),
                number(
                    "Nodes of unknown capacity",
                    "short",
                    "Nodes that publish nothing, because nothing trustworthy tells their speed.",
                    Query('count(netaware_node_bandwidth_known{node=~"$node"} == 0) or vector(0)'),
                    bad_above=0,
                    width=6,
                ),
                number(
                    "Busiest uplink",
                    "percentunit",
                    "The highest utilisation of any node's uplink now.",
                    Query('max(instance:netaware_network_utilization:ratio{node=~"$node"})'),
                    bad_above=0.9,
                    width=6,
                ),
                number(
                    "Limits that do not hold",
                    "short",
                    "Pod limits with a verdict other than enforced, not-applicable and other-enforcer.",
                    Query(
                        'count(netaware_pod_bandwidth_verdict{namespace=~"$namespace",'
                        ' verdict!~"enforced|not-applicable|other-enforcer"}) or vector(0)'
                    ),
                    bad_above=0,
                    width=6,
                ),
                history(
                    "Utilisation by node",
                    "percentunit",
                    "The busier direction of each node's uplink over its capacity.",
                    Query('instance:netaware_network_utilization:ratio{node=~"$node"}', "{{node}}"),
                    width=24,
                    height=9,
                    defaults={"min": 0, "max": 1},
                ),
                lines(
                    "Sent",
                    "bps",
                    "By the physical uplinks of each node, mean of about 15 seconds.",
                    Query('netaware:node_transmit:bps{node=~"$node"}', "{{node}}"),
                    width=8,
                ),
                lines(
                    "Received",
                    "bps",
                    "By the physical uplinks of each node, mean of about 15 seconds.",
                    Query('netaware:node_receive:bps{node=~"$node"}', "{{node}}"),
                    width=8,
                ),
                lines(
                    "Capacity",
                    "bps",
                    "What each node publishes, after the reserve. A step is a failover or a changed link.",
                    Query('netaware:node_bandwidth_capacity:bps{node=~"$node"}', "{{node}}"),
                    width=8,
                ),
            ],
        ),
        (
            "Between zones",
            [
                lines(
                    "Allocated between zones",
                    "bps",
                    "What placed pods of AppGroups have asked of each path by minBandwidth.",
                    Query(
                        '8 * netaware_bandwidth_allocated_bytes_per_second{level="zone"}',
                        "{{origin}} to {{destination}}",
                    ),
                ),
                lines(
                    "Allocated over capacity",
                    "percentunit",
                    "Above 1 more is promised than there is; the alert follows after ten minutes.",
                    Query(
                        'netaware_bandwidth_allocated_bytes_per_second{level="zone"}'
                        ' / (netaware_bandwidth_capacity_bytes_per_second{level="zone"} > 0)',
                        "{{origin}} to {{destination}}",
                    ),
                ),
            ],
        ),
        (
            "Pods' limits",
            [
                stacked(
                    "Verdicts",
                    "short",
                    "Limits of pods by the agents' verdict, per direction.",
                    Query(
                        'sum by (direction, verdict) (netaware:pod_bandwidth_verdicts:count{namespace=~"$namespace"})',
                        "{{direction}} {{verdict}}",
                    ),
                    width=6,
                ),
                lines(
                    "In use",
                    "Bps",
                    "What pods with limits use, mean of about 15 seconds.",
                    Query(
                        'netaware_pod_bandwidth_used_bytes_per_second{namespace=~"$namespace"}',
                        "{{namespace}}/{{pod}} {{direction}}",
                    ),
                    width=6,
                ),
                lines(
                    "Limit in force",
                    "Bps",
                    "Effective rate of each limit as the kernel has it.",
                    Query(
                        'netaware_pod_bandwidth_effective_rate_bytes_per_second{namespace=~"$namespace"}',
                        "{{namespace}}/{{pod}} {{direction}}",
                    ),
                    width=6,
                ),
                lines(
                    "Worst queueing time",
                    "s",
                    "How long a packet can wait in a limit's queue when it is full.",
                    Query(
                        'netaware_pod_bandwidth_queue_seconds{namespace=~"$namespace"}',
                        "{{namespace}}/{{pod}} {{direction}}",
                    ),
                    width=6,
                ),
                table(
                    "Limits that do not hold",
                    "none",
                    "Each with the agent's verdict; docs/bandwidth.md has the table of verdicts.",
                    Query(
                        'netaware_pod_bandwidth_verdict{namespace=~"$namespace",'
                        ' verdict!~"enforced|not-applicable|other-enforcer"}',
                        table=True,
                    ),
                    hide=("instance", "job", "endpoint", "container", "Value"),
                    width=24,
                ),
            ],
        ),
    ],
)

AGENTS = Dashboard(
    "netaware-agents",
    "netaware / Agents and controller",
    "Health of netaware itself: what runs, what it costs, what it writes.",
    [],
    [
        (
            "Running",
            [
                number(
                    "Agents answering",
                    "short",
                    "Agents that Prometheus can scrape.",
                    Query('sum(up{job=~".*netaware-agent.*"})'),
                    width=6,
                ),
                number(
                    "Agents not answering",
                    "short",
                    "Agents that Prometheus knows and cannot scrape.",
                    Query('count(up{job=~".*netaware-agent.*"} == 0) or vector(0)'),
                    bad_above=0,
                    width=6,
                ),
                number(
                    "Leaders",
                    "short",
                    "Controllers that lead; one is right.",
                    Query("sum(netaware_leader)"),
                    bad_above=1,
                    width=6,
                ),
                number(
                    "Objects that cannot be read",
                    "short",
                    "Objects of the API server that the controller leaves out because they are malformed.",
                    Query("sum(netaware_malformed_objects)"),
                    bad_above=0,
                    width=6,
                ),
            ],
        ),
        (
            "What it costs",
            [
                lines(
                    "Memory of agents",
                    "bytes",
                    "Resident memory; the budget is 64 MB.",
                    Query('process_resident_memory_bytes{job=~".*netaware-agent.*"}', "{{instance}}"),
                    width=8,
                ),
                lines(
                    "CPU of agents",
                    "percentunit",
                    "Share of a core, netperf's own time not included: it is a child.",
                    Query('rate(process_cpu_seconds_total{job=~".*netaware-agent.*"}[5m])', "{{instance}}"),
                    width=8,
                ),
                lines(
                    "Memory of controllers",
                    "bytes",
                    "Resident memory; the budget is 200 MB at 10,000 nodes.",
                    Query('process_resident_memory_bytes{job=~".*netaware-controller.*"}', "{{instance}}"),
                    width=8,
                ),
            ],
        ),
        (
            "What it does",
            [
                stacked(
                    "Writes of results",
                    "cps",
                    "Writes to the results ConfigMap per second, by outcome.",
                    Query("sum by (outcome) (rate(netaware_probe_results_writes_total[5m]))", "{{outcome}}"),
                    width=8,
                ),
                stacked(
                    "Writes of capacity",
                    "cps",
                    "Writes to the agents' own nodes per second, by outcome; a quiet cluster has next to none.",
                    Query("sum by (outcome) (rate(netaware_node_bandwidth_writes_total[15m]))", "{{outcome}}"),
                    width=8,
                ),
                stacked(
                    "Writes of the controller",
                    "cps",
                    "Plans, weights and statuses written per second; a quiet network causes none.",
                    Query("sum by (what) (rate(netaware_topology_writes_total[5m]))", "topology {{what}}"),
                    Query("sum by (what) (rate(netaware_plan_writes_total[5m]))", "{{what}}"),
                    Query("sum(rate(netaware_appgroup_writes_total[5m]))", "appgroup status"),
                    width=8,
                ),
                lines(
                    "Objects in memory",
                    "short",
                    "What the controller mirrors, by kind.",
                    Query("max by (kind) (netaware_mirrored_objects)", "{{kind}}"),
                ),
                lines(
                    "Events lost",
                    "cps",
                    "Events that could not be delivered, by cause.",
                    Query("sum by (cause) (rate(netaware_events_lost_total[15m])) or vector(0)", "{{cause}}"),
                ),
            ],
        ),
    ],
)

DESCHEDULER = Dashboard(
    "netaware-descheduler",
    "netaware / Descheduler",
    "Which nodes are too full, what is moved, whether it helped, and when it stops.",
    [],
    [
        (
            "Now",
            [
                number(
                    "Hot nodes",
                    "short",
                    "Nodes over a high threshold for long enough to act.",
                    Query("sum(netaware_descheduler_hot_nodes)"),
                    bad_above=0,
                    width=6,
                ),
                number(
                    "Stuck nodes",
                    "short",
                    "Hot nodes that the newest round could not relieve as needed.",
                    Query("sum(netaware_descheduler_stuck_nodes)"),
                    bad_above=0,
                    width=6,
                ),
                number(
                    "Budget of this hour",
                    "percentunit",
                    "Evictions of the last hour over those allowed; at 100 % nothing more moves.",
                    Query(
                        "sum(netaware_descheduler_hourly_budget_spent) / (sum(netaware_descheduler_hourly_budget) > 0)"
                    ),
                    bad_above=0.99,
                    width=6,
                ),
                number(
                    "Workloads at rest",
                    "short",
                    "Workloads left alone for a while because moving them did not help.",
                    Query("sum(netaware_descheduler_resting_workloads)"),
                    width=6,
                ),
            ],
        ),
        (
            "Over time",
            [
                stacked(
                    "Nodes by load",
                    "short",
                    "over: above a high threshold. under: at or below all low ones. unknown: no usage, so neither source nor target.",
                    Query("sum by (load) (netaware_descheduler_nodes)", "{{load}}"),
                ),
                stacked(
                    "Evictions",
                    "short",
                    "Per hour, by strategy and result.",
                    Query(
                        "sum by (strategy, result) (increase(netaware_descheduler_evictions_total[1h]))",
                        "{{strategy}} {{result}}",
                    ),
                ),
                stacked(
                    "How moves ended",
                    "short",
                    "Per hour: helped, returned to the same node, did not cool it, did not lower the cost, were lost.",
                    Query("sum by (outcome) (increase(netaware_descheduler_moves_ended_total[1h]))", "{{outcome}}"),
                ),
                stacked(
                    "Pods passed over",
                    "short",
                    "In the newest round, by the reason for which they were left where they are.",
                    Query("sum by (reason) (netaware_descheduler_skipped_pods)", "{{reason}}"),
                ),
                lines(
                    "Time to decide a round",
                    "s",
                    "p50 and p99 of the pure part of a round.",
                    Query(
                        "histogram_quantile(0.5, sum by (le) (rate(netaware_descheduler_plan_seconds_bucket[15m])))",
                        "p50",
                    ),
                    Query(
                        "histogram_quantile(0.99, sum by (le) (rate(netaware_descheduler_plan_seconds_bucket[15m])))",
                        "p99",
                    ),
                ),
                stacked(
                    "Rounds",
                    "cps",
                    "Rounds per second by outcome; usage-missing means that Prometheus or metrics.k8s.io did not answer.",
                    Query("sum by (outcome) (rate(netaware_descheduler_rounds_total[15m]))", "{{outcome}}"),
                ),
            ],
        ),
    ],
)

DASHBOARDS = (LATENCY, APPGROUPS, BANDWIDTH, AGENTS, DESCHEDULER)


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
            {"type": "dashboards", "tags": ["netaware"], "title": "netaware", "asDropdown": True, "includeVars": False}
        ],
        "templating": {"list": [_datasource(), *dashboard.variables]},
        "annotations": {"list": [_alerts()]},
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


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": ORANGE,
        "expr": 'ALERTS{alertname=~"Netaware.*", alertstate="firing"}',
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
        "fieldConfig": {"defaults": {"unit": panel.unit, **panel.defaults}, "overrides": list(panel.overrides)},
        "options": dict(panel.options),
        "transformations": list(panel.transformations),
        "targets": [_target(query, chr(ord("A") + i)) for i, query in enumerate(panel.queries)],
    }


def _target(query: Query, reference: str) -> dict[str, Any]:
    target: dict[str, Any] = {
        "refId": reference,
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
    }
    if query.table:
        target |= {"format": "table", "instant": True, "range": False}
    if query.heatmap:
        target |= {"format": "heatmap"}
    return target


def main() -> int:
    """Write the files, or with ``--check`` compare."""
    stale = []
    for dashboard in DASHBOARDS:
        path = HERE / f"{dashboard.uid.removeprefix('netaware-')}.json"
        text = json.dumps(encode(dashboard), indent=2, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        print(f"not current: {', '.join(stale)}; run {Path(__file__).name}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
