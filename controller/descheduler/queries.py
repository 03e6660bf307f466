"""What is asked of Prometheus by default: the kubelet's resource metrics, cAdvisor's network counters, our agents' rates.

No default looks back further than two minutes, so that a series which ended is missing from the answer well before usage
expires; an instant query carries the time of the question and not that of the sample.
"""

from __future__ import annotations

from controller.descheduler.strict import Section


class Queries(Section, frozen=True):
    """Expressions by purpose, and the labels by which their series are told apart. An empty expression is not asked.

    Attributes:
        node_cpu: cores in use, per node.
        node_memory: bytes in use, per node.
        node_bandwidth: bits per second, the busier of transmit and receive, per node.
        pod_cpu, pod_memory, pod_bandwidth: the same per pod.
        node_label: label that holds the node's name.
        namespace_label, pod_label: labels that name a pod.
    """

    node_cpu: str = "sum by (node) (rate(node_cpu_usage_seconds_total[2m]))"
    node_memory: str = "max by (node) (last_over_time(node_memory_working_set_bytes[2m]))"
    node_bandwidth: str = (
        "8 * max by (node) (last_over_time("
        '{__name__=~"netaware_node_network_(transmit|receive)_bytes_per_second"}[2m]))'
    )
    pod_cpu: str = "sum by (namespace, pod) (rate(pod_cpu_usage_seconds_total[2m]))"
    pod_memory: str = "max by (namespace, pod) (last_over_time(pod_memory_working_set_bytes[2m]))"
    pod_bandwidth: str = (
        "8 * max by (namespace, pod) ("
        'label_replace(sum by (namespace, pod) (rate(container_network_transmit_bytes_total{pod!=""}[2m])),'
        ' "way", "transmit", "", "")'
        ' or label_replace(sum by (namespace, pod) (rate(container_network_receive_bytes_total{pod!=""}[2m])),'
        ' "way", "receive", "", ""))'
    )
    node_label: str = "node"
    namespace_label: str = "namespace"
    pod_label: str = "pod"
