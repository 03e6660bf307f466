"""The descheduler: what is too hot, what was moved, what it cost."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, lines, number, stacked

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
                    width=8,
                ),
                number(
                    "Stuck nodes",
                    "short",
                    "Hot nodes that the newest round could not relieve as needed.",
                    Query("sum(netaware_descheduler_stuck_nodes)"),
                    bad_above=0,
                    width=8,
                ),
                number(
                    "Workloads backed off",
                    "short",
                    "Workloads left alone for a while because moving them did not help.",
                    Query('sum(netaware_descheduler_backed_off{kind="workload"})'),
                    width=8,
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
                    "In the newest round, by the first condition that did not hold.",
                    Query("sum by (condition) (netaware_descheduler_skipped_pods)", "{{condition}}"),
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
