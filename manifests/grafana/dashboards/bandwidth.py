"""Bandwidth: capacity, what is asked for and allocated, and whether limits hold."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, history, lines, number, stacked, table, variable

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
                    "Nodes that publish nothing, because no source of their capacity is known.",
                    Query('count(netaware_node_bandwidth_known{node=~"$node"} == 0) or vector(0)'),
                    bad_above=0,
                    width=6,
                ),
                number(
                    "Busiest uplink",
                    "percentunit",
                    "The highest utilization of any node's uplink now.",
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
                    "Effective limit",
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
