"""Latency between zones, and how far it can be trusted."""

from __future__ import annotations

from dashboards.panels import PAIR, Dashboard, Query, heat, history, lines, matrix, number, stacked, variable

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
                    "Directed zone pairs whose cost is inferred, old or missing, or whose path is dead.",
                    Query(
                        'sum(netaware_zone_pairs{topology=~"$topology", basis=~"stale|inferred|absent|unreachable"})'
                    ),
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
                    Query("max(netaware_probe_plan_interval_seconds)"),
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
                    "Share of the last half hour in which the newest sample of a pair had no quality flag.",
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
                    Query(
                        f"time() - netaware_probe_sample_timestamp_seconds{{{PAIR}}}",
                        "{{origin_zone}} to {{destination_zone}}",
                    ),
                    width=8,
                ),
                stacked(
                    "Nodes that take no part",
                    "short",
                    "Nodes that the probe plan leaves out, by reason.",
                    Query("sum by (reason) (netaware_probe_plan_left_out)", "{{reason}}"),
                    width=8,
                ),
            ],
        ),
    ],
)
