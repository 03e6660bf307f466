"""The dashboard of bandwidth: capacity, allocations, usage, and limits of pods."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, Row, areas, stat, status_history, table, timeseries, variable

UNENFORCED_LIMITS = (
    'netaware_pod_bandwidth_verdict{namespace=~"$namespace", verdict!~"enforced|not-applicable|other-enforcer"}'
)
LIMIT_LEGEND = "{{namespace}}/{{pod}} {{direction}}"

BANDWIDTH = Dashboard(
    "netaware-bandwidth",
    "netaware / Bandwidth",
    "Capacity and usage of uplinks, allocations between zones, and whether limits of pods are enforced.",
    [
        variable("node", "Node", "label_values(netaware_node_bandwidth_known, node)"),
        variable("namespace", "Namespace", "label_values(netaware_pod_bandwidth_verdict, namespace)"),
    ],
    [
        Row(
            "Nodes",
            [
                stat(
                    "Capacity published",
                    "bps",
                    "Sum of network.aware.com/bandwidth over the selected nodes.",
                    Query('sum(netaware:node_bandwidth_capacity:bps{node=~"$node"})'),
                ),
                stat(
                    "Nodes of unknown capacity",
                    "short",
                    "Nodes that publish no capacity, because they have no source for it.",
                    Query('count(netaware_node_bandwidth_known{node=~"$node"} == 0) or vector(0)'),
                    bad_above=0,
                ),
                stat(
                    "Busiest uplink",
                    "percentunit",
                    "The highest utilization of any node's uplink now.",
                    Query('max(instance:netaware_network_utilization:ratio{node=~"$node"})'),
                    bad_above=0.9,
                ),
                stat(
                    "Limits not enforced",
                    "short",
                    "Pod limits with a verdict other than enforced, not-applicable and other-enforcer.",
                    Query(f"count({UNENFORCED_LIMITS}) or vector(0)"),
                    bad_above=0,
                ),
                status_history(
                    "Utilization by node",
                    "percentunit",
                    "The busier direction of each node's uplink over its capacity.",
                    Query('instance:netaware_network_utilization:ratio{node=~"$node"}', "{{node}}"),
                    height=9,
                    defaults={"min": 0, "max": 1},
                ),
                timeseries(
                    "Sent",
                    "bps",
                    "Rate on the physical uplinks of each node, mean of about 15 seconds.",
                    Query('netaware:node_transmit:bps{node=~"$node"}', "{{node}}"),
                    width=8,
                ),
                timeseries(
                    "Received",
                    "bps",
                    "Rate on the physical uplinks of each node, mean of about 15 seconds.",
                    Query('netaware:node_receive:bps{node=~"$node"}', "{{node}}"),
                    width=8,
                ),
                timeseries(
                    "Capacity",
                    "bps",
                    "Published capacity of each node, without the reserve. A step is a failover or a changed link.",
                    Query('netaware:node_bandwidth_capacity:bps{node=~"$node"}', "{{node}}"),
                    width=8,
                ),
            ],
        ),
        Row(
            "Between zones",
            [
                timeseries(
                    "Allocated between zones",
                    "bps",
                    "Sum of minBandwidth over the dependencies of placed pods, by path.",
                    Query(
                        '8 * netaware_bandwidth_allocated_bytes_per_second{level="zone"}',
                        "{{origin}} to {{destination}}",
                    ),
                ),
                timeseries(
                    "Allocated over capacity",
                    "percentunit",
                    "Above 1, more is allocated than the path has; the alert fires after ten minutes.",
                    Query(
                        'netaware_bandwidth_allocated_bytes_per_second{level="zone"}'
                        ' / (netaware_bandwidth_capacity_bytes_per_second{level="zone"} > 0)',
                        "{{origin}} to {{destination}}",
                    ),
                ),
            ],
        ),
        Row(
            "Limits of pods",
            [
                areas(
                    "Verdicts",
                    "short",
                    "Limits of pods by the agents' verdict, per direction.",
                    Query(
                        'sum by (direction, verdict) (netaware:pod_bandwidth_verdicts:count{namespace=~"$namespace"})',
                        "{{direction}} {{verdict}}",
                    ),
                ),
                timeseries(
                    "In use",
                    "Bps",
                    "Rate of pods with limits, mean of about 15 seconds.",
                    Query('netaware_pod_bandwidth_used_bytes_per_second{namespace=~"$namespace"}', LIMIT_LEGEND),
                ),
                timeseries(
                    "Effective limit",
                    "Bps",
                    "Rate of each limit in the kernel.",
                    Query(
                        'netaware_pod_bandwidth_effective_rate_bytes_per_second{namespace=~"$namespace"}',
                        LIMIT_LEGEND,
                    ),
                ),
                timeseries(
                    "Longest queueing time",
                    "s",
                    "Longest time that a packet can wait in the queue of a limit.",
                    Query('netaware_pod_bandwidth_queue_seconds{namespace=~"$namespace"}', LIMIT_LEGEND),
                ),
                table(
                    "Limits not enforced",
                    "none",
                    "Limits with the agent's verdict; docs/bandwidth.md has the table of verdicts.",
                    Query(UNENFORCED_LIMITS, format="table"),
                    hide=("instance", "job", "endpoint", "container", "Value"),
                ),
            ],
            panel_width=6,
        ),
    ],
)
