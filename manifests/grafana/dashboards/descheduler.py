"""The dashboard of the descheduler: anomalous nodes, evictions, and the results of moves."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, Row, areas, stat, timeseries

DESCHEDULER = Dashboard(
    "netaware-descheduler",
    "netaware / Descheduler",
    "Anomalous nodes, evictions, the results of moves, and reasons not to move pods.",
    [],
    [
        Row(
            "Now",
            [
                stat(
                    "Anomalous nodes",
                    "short",
                    "Nodes over a high threshold for long enough to act.",
                    Query("sum(netaware_descheduler_anomalous_nodes)"),
                    bad_above=0,
                    width=8,
                ),
                stat(
                    "Stuck nodes",
                    "short",
                    "Anomalous nodes that the newest round cannot relieve enough.",
                    Query("sum(netaware_descheduler_stuck_nodes)"),
                    bad_above=0,
                    width=8,
                ),
                stat(
                    "Workloads backed off",
                    "short",
                    "Workloads that are not moved for a while, because their last moves did not help.",
                    Query('sum(netaware_descheduler_backed_off{kind="workload"})'),
                    width=8,
                ),
            ],
        ),
        Row(
            "Over time",
            [
                areas(
                    "Nodes by load",
                    "short",
                    "over: above a high threshold. under: at or below all low thresholds. unknown: without usage, so neither source nor target.",
                    Query("sum by (load) (netaware_descheduler_nodes)", "{{load}}"),
                ),
                areas(
                    "Evictions",
                    "short",
                    "Evictions per hour, by strategy and result.",
                    Query(
                        "sum by (strategy, result) (increase(netaware_descheduler_evictions_total[1h]))",
                        "{{strategy}} {{result}}",
                    ),
                ),
                areas(
                    "Moves by outcome",
                    "short",
                    "Moves evaluated per hour, by outcome, such as helped, returned to the same node, or lost.",
                    Query("sum by (outcome) (increase(netaware_descheduler_moves_evaluated_total[1h]))", "{{outcome}}"),
                ),
                areas(
                    "Pods skipped",
                    "short",
                    "Pods that the newest round does not move, by the first condition that fails.",
                    Query("sum by (condition) (netaware_descheduler_skipped_pods)", "{{condition}}"),
                ),
                timeseries(
                    "Time to decide a round",
                    "s",
                    "p50 and p99 of the computation of a round, without reads and writes.",
                    *Query.quantiles("netaware_descheduler_plan_seconds", "15m"),
                ),
                areas(
                    "Rounds",
                    "cps",
                    "Rounds per second by outcome; usage-missing means that Prometheus or metrics.k8s.io did not answer.",
                    Query("sum by (outcome) (rate(netaware_descheduler_rounds_total[15m]))", "{{outcome}}"),
                ),
            ],
        ),
    ],
)
