"""The dashboard of AppGroups: their dependencies, traffic, gates, and the scheduler extender."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, Row, areas, matrix, stat, status_history, timeseries, variable

GROUPS = 'appgroup=~"$appgroup", appgroup=~"$namespace/.*"'
"""Selector of the chosen AppGroups."""

APPGROUPS = Dashboard(
    "netaware-appgroups",
    "netaware / AppGroups and scheduling",
    "Dependencies, traffic and gates of AppGroups, and the work of the scheduler extender.",
    [
        variable("namespace", "Namespace", "label_values(netaware_appgroup_pods, appgroup)", "/^([^\\/]+)\\//"),
        variable("appgroup", "AppGroup", 'label_values(netaware_appgroup_pods{appgroup=~"$namespace/.*"}, appgroup)'),
    ],
    [
        Row(
            "AppGroups",
            [
                stat(
                    "Dependencies violated",
                    "short",
                    "Dependencies of the selected groups whose pods are farther apart than maxNetworkCost allows.",
                    Query(f'sum(netaware_appgroup_dependencies{{{GROUPS}, verdict="violated"}})'),
                    bad_above=0,
                ),
                stat(
                    "Dependencies met",
                    "percentunit",
                    "Share of the placed dependencies within their maxNetworkCost.",
                    Query(
                        f'sum(netaware_appgroup_dependencies{{{GROUPS}, verdict="met"}})'
                        f' / sum(netaware_appgroup_dependencies{{{GROUPS}, verdict=~"met|violated|unknown"}})'
                    ),
                ),
                stat(
                    "Pods running",
                    "short",
                    "Running pods of the selected groups.",
                    Query(f'sum(netaware_appgroup_pods{{{GROUPS}, state="running"}})'),
                ),
                stat(
                    "Faults in specs",
                    "short",
                    "Mistakes such as dependencies on unknown workloads or duplicate selectors; the condition SpecValid names them.",
                    Query(f"sum(netaware_appgroup_spec_faults{{{GROUPS}}} or vector(0))"),
                    bad_above=0,
                ),
                status_history(
                    "Dependencies met, by group",
                    "percentunit",
                    "Share of the placed dependencies within their maxNetworkCost; each row is a group.",
                    Query(f"netaware:appgroup_dependencies_met:ratio{{{GROUPS}}}", "{{appgroup}}"),
                    height=7,
                    defaults={"min": 0, "max": 1},
                ),
                areas(
                    "Dependencies by verdict",
                    "short",
                    "met: within maxNetworkCost. violated: above it. unknown: without a known cost. idle: one side has no placed pod.",
                    Query(f"sum by (verdict) (netaware_appgroup_dependencies{{{GROUPS}}})", "{{verdict}}"),
                ),
                timeseries(
                    "Pods by group",
                    "short",
                    "Required pods (numMembers), pods on a node, and running pods.",
                    Query(f"sum by (appgroup, state) (netaware_appgroup_pods{{{GROUPS}}})", "{{appgroup}} {{state}}"),
                ),
            ],
        ),
        Row(
            "Traffic and money",
            [
                stat(
                    "Price per month",
                    "short",
                    "Price of the selected groups' traffic in a month of 730 hours, by traffic.prices and in their currency.",
                    Query(
                        'sum by (currency) (netaware_appgroup_traffic_price_per_month{namespace=~"$namespace"})',
                        "{{currency}}",
                    ),
                ),
                stat(
                    "Across zones",
                    "percentunit",
                    "Share of the groups' bytes that leave their zone.",
                    Query(
                        'sum(netaware_appgroup_traffic_bytes_per_second{namespace=~"$namespace", crossing="true"})'
                        ' / sum(netaware_appgroup_traffic_bytes_per_second{namespace=~"$namespace"})'
                    ),
                ),
                stat(
                    "Drift",
                    "short",
                    "Dependencies whose traffic differs from what the groups declare; the condition AsDescribed names them.",
                    Query('sum(netaware_appgroup_traffic_drift{namespace=~"$namespace"})'),
                    bad_above=0,
                ),
                stat(
                    "Traffic last read",
                    "dateTimeFromNow",
                    "Time since traffic was last read from Prometheus, every traffic.intervalS.",
                    Query("max(netaware_traffic_read_timestamp_seconds) * 1000"),
                ),
                areas(
                    "Price per month, by group",
                    "short",
                    "Price of the traffic of each group's workloads as callers, if it lasted for a month of 730 hours.",
                    Query(
                        "sum by (namespace, appgroup, currency)"
                        ' (netaware_appgroup_traffic_price_per_month{namespace=~"$namespace"})',
                        "{{namespace}}/{{appgroup}} {{currency}}",
                    ),
                ),
                areas(
                    "Traffic of groups",
                    "Bps",
                    "Bytes per second of the groups' workloads as callers, with responses, by whether the bytes leave their zone.",
                    Query(
                        'sum by (crossing) (netaware_appgroup_traffic_bytes_per_second{namespace=~"$namespace"})',
                        "leaves its zone: {{crossing}}",
                    ),
                ),
                matrix(
                    "Bytes between zones",
                    "Bps",
                    "Traffic of all workloads from the callers' zone (row) to the callees' zone (column), with responses.",
                    Query(
                        "sum by (client_zone, server_zone) (netaware_zone_pair_traffic_bytes_per_second)",
                        format="table",
                    ),
                    row_label="client_zone",
                    column_label="server_zone",
                    width=24,
                ),
            ],
        ),
        Row(
            "Gates and plans",
            [
                timeseries(
                    "Gated pods",
                    "short",
                    "Pods of AppGroups that wait at their gate for earlier workloads.",
                    Query("max(netaware_gated_pods)", "gated"),
                ),
                timeseries(
                    "Time at the gate",
                    "s",
                    "p50 and p99 of the time from a pod's creation to its release, over the last 15 minutes.",
                    *Query.quantiles("netaware_gate_wait_seconds", "15m"),
                ),
                areas(
                    "Releases",
                    "cps",
                    "Released pods per second. turn: earlier workloads are placed. waited: the longest wait has passed.",
                    Query("sum by (cause) (rate(netaware_gate_releases_total[15m]))", "{{cause}}"),
                ),
                areas(
                    "Pods placed as planned",
                    "cps",
                    "Placed pods per second: on the node that their group's plan chose, or elsewhere.",
                    Query("sum by (result) (rate(netaware_placed_pods_total[15m]))", "{{result}}"),
                ),
            ],
            panel_width=6,
        ),
        Row(
            "Scheduler extender",
            [
                areas(
                    "Decisions",
                    "cps",
                    "Answers per second, by verb and result. neutral: the pod has no AppGroup, or no costs are known for it.",
                    Query("sum by (verb, result) (rate(netaware_extender_decisions_total[5m]))", "{{verb}} {{result}}"),
                ),
                timeseries(
                    "Time to answer",
                    "s",
                    "p50 and p99 of the time from the end of the request to the answer.",
                    *Query.quantiles("netaware_extender_duration_seconds", "5m", "verb"),
                ),
                timeseries(
                    "Nodes refused",
                    "cps",
                    "Nodes per second that the filter refused because of dependencies.",
                    Query("sum(rate(netaware_extender_nodes_refused_total[5m]))", "refused"),
                ),
            ],
            panel_width=8,
        ),
    ],
)
