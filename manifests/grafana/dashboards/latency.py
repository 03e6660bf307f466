"""The dashboard of latency between zones: round trips, costs, and their quality."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, Row, areas, heatmap, matrix, stat, status_history, timeseries, variable

PAIR = 'origin_zone=~"$origin", destination_zone=~"$destination"'
"""Selector of the chosen pairs of zones."""
PAIR_LEGEND = "{{origin_zone}} to {{destination_zone}}"

LATENCY = Dashboard(
    "netaware-latency",
    "netaware / Latency and costs",
    "Round trips between zones as the agents measure them, the costs of paths, and the quality of both.",
    [
        variable("origin", "From zone", "label_values(netaware:pair_latency_seconds, origin_zone)"),
        variable("destination", "To zone", "label_values(netaware:pair_latency_seconds, destination_zone)"),
        variable("topology", "NetworkTopology", "label_values(netaware_zone_pairs, topology)"),
    ],
    [
        Row(
            "Now",
            [
                stat(
                    "Zone pairs measured",
                    "short",
                    "Directed zone pairs whose cost is based on a measurement of the pair or of the reverse pair.",
                    Query('sum(netaware_zone_pairs{topology=~"$topology", basis=~"measured|mirrored"})'),
                    width=4,
                ),
                stat(
                    "Not measured",
                    "short",
                    "Directed zone pairs whose cost is inferred, old or missing, or whose path is unreachable.",
                    Query(
                        'sum(netaware_zone_pairs{topology=~"$topology", basis=~"stale|inferred|absent|unreachable"})'
                    ),
                    bad_above=0,
                    width=4,
                ),
                stat(
                    "Oldest measurement",
                    "s",
                    "Age of the oldest measurement in use, by the controller's clock.",
                    Query('max(netaware_zone_measurement_age_seconds{topology=~"$topology"})'),
                    width=4,
                ),
                stat(
                    "Length of a round",
                    "s",
                    "Time in which each planned pair is probed once.",
                    Query("max(netaware_probe_plan_interval_seconds)"),
                    width=4,
                ),
                stat(
                    "Slowest pair, p50",
                    "s",
                    "The longest median round trip between two zones.",
                    Query('max(netaware:pair_latency_seconds{quantile="0.5"})'),
                    width=4,
                ),
                stat(
                    "Failed probes",
                    "percentunit",
                    "Share of the probes of the last 15 minutes that ended without a measurement.",
                    Query(
                        'sum(netaware:pair_runs:rate15m{outcome!~"ok|over-budget"} or vector(0))'
                        ' / sum(netaware:pair_runs:rate15m{outcome!="over-budget"})'
                    ),
                    bad_above=0.1,
                    width=4,
                ),
                matrix(
                    "Cost from zone to zone",
                    "none",
                    "Costs as the scheduler reads them. Rows are origins, columns are destinations.",
                    Query('netaware_network_cost{level="zone", topology=~"$topology"}', format="table"),
                    row_label="origin",
                    column_label="destination",
                    height=11,
                ),
                matrix(
                    "Round trip from zone to zone, p50",
                    "s",
                    "Medians of the newest samples. One node per zone pair measures, so each pair is shown in the measured direction.",
                    Query(f'netaware:pair_latency_seconds{{quantile="0.5", {PAIR}}}', format="table"),
                    row_label="origin_zone",
                    column_label="destination_zone",
                    height=11,
                ),
            ],
        ),
        Row(
            "Over time",
            [
                status_history(
                    "Round trips by zone pair, p50",
                    "s",
                    "Each row is a pair of zones, coloured by the median of its newest sample; a change of route is a step.",
                    Query(f'netaware:pair_latency_seconds{{quantile="0.5", {PAIR}}}', PAIR_LEGEND),
                    height=12,
                ),
                *(
                    timeseries(
                        f"Round trips, p{name}",
                        "s",
                        f"p{name} of each zone pair's newest sample. Percentiles of several samples are never averaged.",
                        Query(f'netaware:pair_latency_seconds{{quantile="{quantile}", {PAIR}}}', PAIR_LEGEND),
                        width=8,
                        height=9,
                    )
                    for name, quantile in (("50", "0.5"), ("90", "0.9"), ("99", "0.99"))
                ),
                timeseries(
                    "Round trips between regions, median of zones",
                    "s",
                    "Median over the zone pairs between two regions.",
                    Query("netaware:region_latency_seconds", "{{origin_region}} to {{destination_region}}"),
                ),
                heatmap(
                    "Distribution of medians",
                    "s",
                    "Medians of samples over all zone pairs; the histogram's buckets double from 50 µs.",
                    Query("sum by (le) (netaware:region_rtt_seconds:histogram_rate15m)", "{{le}}", format="heatmap"),
                ),
                timeseries(
                    "Compared with the last week",
                    "percentunit",
                    "Median round trip divided by the median of the same pair's last week. The alert fires above 1.5.",
                    Query(
                        f'netaware:pair_latency_seconds{{quantile="0.5", {PAIR}}}'
                        " / netaware:pair_latency_seconds:median1w",
                        PAIR_LEGEND,
                    ),
                ),
                timeseries(
                    "Costs",
                    "none",
                    "Costs between zones in the NetworkTopology. They do not change while the latency varies within its noise.",
                    Query(
                        'netaware_network_cost{level="zone", topology=~"$topology"}', "{{origin}} to {{destination}}"
                    ),
                ),
            ],
        ),
        Row(
            "Quality",
            [
                areas(
                    "Bases of costs",
                    "short",
                    "Directed zone pairs by the basis of their cost.",
                    Query('sum by (basis) (netaware_zone_pairs{topology=~"$topology"})', "{{basis}}"),
                ),
                areas(
                    "Probes by outcome",
                    "cps",
                    "Probes per second, by outcome. over-budget: a stream was skipped, because the node's bandwidth budget is spent.",
                    Query("sum by (outcome) (netaware:pair_runs:rate15m)", "{{outcome}}"),
                ),
                timeseries(
                    "Trusted samples",
                    "percentunit",
                    "Share of the last half hour in which the newest sample of a pair had no quality flag.",
                    Query("netaware:pair_trusted:ratio30m", PAIR_LEGEND),
                    defaults={"min": 0, "max": 1},
                ),
                timeseries(
                    "Loss",
                    "percentunit",
                    "Lost datagrams or retransmitted segments, divided by the transactions of the newest probe.",
                    Query(f"netaware_probe_loss_ratio{{{PAIR}}}", PAIR_LEGEND),
                ),
                timeseries(
                    "Age of the newest sample",
                    "s",
                    "By the agents' clocks; the age grows to the length of a round and starts again.",
                    Query(f"time() - netaware_probe_sample_timestamp_seconds{{{PAIR}}}", PAIR_LEGEND),
                ),
                areas(
                    "Nodes left out",
                    "short",
                    "Nodes that the probe plan leaves out, by reason.",
                    Query("sum by (reason) (netaware_probe_plan_left_out)", "{{reason}}"),
                ),
            ],
            panel_width=8,
        ),
    ],
)
