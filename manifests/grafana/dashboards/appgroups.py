"""AppGroups: what their dependencies cost, what is violated, who waits."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, history, lines, matrix, number, stacked, variable

APPGROUPS = Dashboard(
    "netaware-appgroups",
    "netaware / AppGroups and scheduling",
    "Whether applications are as near together as they asked to be, and how the scheduler extender fares.",
    [
        variable("namespace", "Namespace", "label_values(netaware_appgroup_pods, appgroup)", "/^([^\\/]+)\\//"),
        variable("appgroup", "AppGroup", 'label_values(netaware_appgroup_pods{appgroup=~"$namespace/.*"}, appgroup)'),
    ],
    [
        (
            "AppGroups",
            [
                number(
                    "Dependencies violated",
                    "short",
                    "Dependencies whose pods are farther apart than their maxNetworkCost allows, over all groups chosen.",
                    Query(
                        'sum(netaware_appgroup_dependencies{appgroup=~"$appgroup", appgroup=~"$namespace/.*", verdict="violated"})'
                    ),
                    bad_above=0,
                    width=6,
                ),
                number(
                    "Dependencies met",
                    "percentunit",
                    "Share of the placed dependencies within their maxNetworkCost.",
                    Query(
                        'sum(netaware_appgroup_dependencies{appgroup=~"$appgroup", appgroup=~"$namespace/.*", verdict="met"})'
                        ' / sum(netaware_appgroup_dependencies{appgroup=~"$appgroup", appgroup=~"$namespace/.*", verdict=~"met|violated|unknown"})'
                    ),
                    width=6,
                ),
                number(
                    "Pods running",
                    "short",
                    "Running pods of the groups chosen.",
                    Query(
                        'sum(netaware_appgroup_pods{appgroup=~"$appgroup", appgroup=~"$namespace/.*", state="running"})'
                    ),
                    width=6,
                ),
                number(
                    "Faults in specs",
                    "short",
                    "Dependencies that lead nowhere, duplicate selectors and the like; the condition SpecValid names them.",
                    Query(
                        'sum(netaware_appgroup_spec_faults{appgroup=~"$appgroup", appgroup=~"$namespace/.*"} or vector(0))'
                    ),
                    bad_above=0,
                    width=6,
                ),
                history(
                    "Dependencies met, by group",
                    "percentunit",
                    "Each row is a group; the share of its placed dependencies within their maxNetworkCost.",
                    Query(
                        'netaware:appgroup_dependencies_met:ratio{appgroup=~"$appgroup", appgroup=~"$namespace/.*"}',
                        "{{appgroup}}",
                    ),
                    width=24,
                    height=7,
                    defaults={"min": 0, "max": 1},
                ),
                stacked(
                    "Dependencies by verdict",
                    "short",
                    "met: within maxNetworkCost. violated: beyond it. unknown: no cost is known. idle: one side has no placed pod.",
                    Query(
                        'sum by (verdict) (netaware_appgroup_dependencies{appgroup=~"$appgroup", appgroup=~"$namespace/.*"})',
                        "{{verdict}}",
                    ),
                ),
                lines(
                    "Pods by group",
                    "short",
                    "Pods wanted (numMembers), placed on a node, and running.",
                    Query(
                        'sum by (appgroup, state) (netaware_appgroup_pods{appgroup=~"$appgroup", appgroup=~"$namespace/.*"})',
                        "{{appgroup}} {{state}}",
                    ),
                ),
            ],
        ),
        (
            "Traffic and money",
            [
                number(
                    "Price per month",
                    "short",
                    "Price of the traffic of the chosen groups in a month of 730 hours, by traffic.prices and in their currency.",
                    Query(
                        'sum by (currency) (netaware_appgroup_traffic_price_per_month{namespace=~"$namespace"})',
                        "{{currency}}",
                    ),
                    width=6,
                ),
                number(
                    "Across zones",
                    "percentunit",
                    "Share of the groups' bytes that leave their zone.",
                    Query(
                        'sum(netaware_appgroup_traffic_bytes_per_second{namespace=~"$namespace", crossing="true"})'
                        ' / sum(netaware_appgroup_traffic_bytes_per_second{namespace=~"$namespace"})'
                    ),
                    width=6,
                ),
                number(
                    "Drift",
                    "short",
                    "Dependencies in which real traffic differs from what the groups declare; the condition AsDescribed names them.",
                    Query('sum(netaware_appgroup_traffic_drift{namespace=~"$namespace"})'),
                    bad_above=0,
                    width=6,
                ),
                number(
                    "Last read",
                    "dateTimeFromNow",
                    "When traffic was last read from Prometheus; traffic.intervalS says how often that should be.",
                    Query("max(netaware_traffic_read_timestamp_seconds) * 1000"),
                    width=6,
                ),
                stacked(
                    "Price per month, by group",
                    "short",
                    "Each group's traffic, as its workloads call, priced as if it went on for a month of 730 hours.",
                    Query(
                        "sum by (namespace, appgroup, currency)"
                        ' (netaware_appgroup_traffic_price_per_month{namespace=~"$namespace"})',
                        "{{namespace}}/{{appgroup}} {{currency}}",
                    ),
                ),
                stacked(
                    "Traffic of groups",
                    "Bps",
                    "Bytes per second that groups' workloads exchange as callers, answers included, by whether they leave their zone.",
                    Query(
                        'sum by (crossing) (netaware_appgroup_traffic_bytes_per_second{namespace=~"$namespace"})',
                        "leaves its zone: {{crossing}}",
                    ),
                ),
                matrix(
                    "Bytes between zones",
                    "Bps",
                    "Calls from the zone on the left to the one above, answers included, of all workloads.",
                    Query(
                        "sum by (client_zone, server_zone) (netaware_zone_pair_traffic_bytes_per_second)", table=True
                    ),
                    by=("client_zone", "server_zone"),
                    width=24,
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
                    Query("max(netaware_gated_pods)", "gated"),
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
                    Query("sum by (result) (rate(netaware_placed_pods_total[15m]))", "{{result}}"),
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
