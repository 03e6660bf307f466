"""The dashboard of netaware itself: its programs, their resource use, and their writes."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, Row, areas, stat, timeseries

AGENTS = Dashboard(
    "netaware-agents",
    "netaware / Agents and controller",
    "Health of netaware itself: its programs, their resource use, and their writes.",
    [],
    [
        Row(
            "Running",
            [
                stat(
                    "Agents up",
                    "short",
                    "Agents that Prometheus can scrape.",
                    Query('sum(up{job=~".*netaware-agent.*"})'),
                ),
                stat(
                    "Agents down",
                    "short",
                    "Agents that Prometheus discovers but cannot scrape.",
                    Query('count(up{job=~".*netaware-agent.*"} == 0) or vector(0)'),
                    bad_above=0,
                ),
                stat(
                    "Leaders",
                    "short",
                    "Controllers that lead; there should be exactly one.",
                    Query("sum(netaware_leader)"),
                    bad_above=1,
                ),
                stat(
                    "Malformed objects",
                    "short",
                    "Objects of the API server that the controller ignores because they are malformed.",
                    Query("sum(netaware_malformed_objects)"),
                    bad_above=0,
                ),
            ],
        ),
        Row(
            "Resource use",
            [
                timeseries(
                    "Memory of agents",
                    "bytes",
                    "Resident memory; the budget is 64 MB.",
                    Query('process_resident_memory_bytes{job=~".*netaware-agent.*"}', "{{instance}}"),
                ),
                timeseries(
                    "CPU of agents",
                    "percentunit",
                    "Cores in use, without those of the child process netperf.",
                    Query('rate(process_cpu_seconds_total{job=~".*netaware-agent.*"}[5m])', "{{instance}}"),
                ),
                timeseries(
                    "Memory of controllers",
                    "bytes",
                    "Resident memory; the budget is 200 MB at 10,000 nodes.",
                    Query('process_resident_memory_bytes{job=~".*netaware-controller.*"}', "{{instance}}"),
                ),
            ],
            panel_width=8,
        ),
        Row(
            "Writes and stores",
            [
                areas(
                    "Writes of results",
                    "cps",
                    "Writes to the results ConfigMap per second, by outcome.",
                    Query("sum by (outcome) (rate(netaware_probe_results_writes_total[5m]))", "{{outcome}}"),
                    width=8,
                ),
                areas(
                    "Writes of capacity",
                    "cps",
                    "Writes to the agents' own nodes per second, by outcome; a quiet cluster has almost none.",
                    Query("sum by (outcome) (rate(netaware_node_bandwidth_writes_total[15m]))", "{{outcome}}"),
                    width=8,
                ),
                areas(
                    "Writes of the controller",
                    "cps",
                    "Plans, weights and statuses written per second; a quiet network causes none.",
                    Query("sum by (field) (rate(netaware_topology_writes_total[5m]))", "topology {{field}}"),
                    Query("sum by (result) (rate(netaware_probe_plan_writes_total[5m]))", "{{result}}"),
                    Query("sum(rate(netaware_appgroup_writes_total[5m]))", "appgroup status"),
                    width=8,
                ),
                timeseries(
                    "Objects in memory",
                    "short",
                    "Objects in the controller's stores, by kind.",
                    Query("max by (kind) (netaware_informer_objects)", "{{kind}}"),
                ),
                timeseries(
                    "Events lost",
                    "cps",
                    "Events that could not be delivered, by cause.",
                    Query("sum by (cause) (rate(netaware_events_lost_total[15m])) or vector(0)", "{{cause}}"),
                ),
            ],
        ),
    ],
)
