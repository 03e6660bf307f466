"""Names that other programs know us by: resource, annotations, condition, events. Changing one breaks somebody."""

from __future__ import annotations

BANDWIDTH = "network.aware.com/bandwidth"
"""The extended resource, integer bits per second (node bandwidth capacity, docs/contracts)."""

AGENT_ANNOTATION = "netaware.io/agent"
"""On the node: compact JSON of address, port, version and prober. Absent means that no agent answers there."""

CAPACITY_ANNOTATION = "netaware.io/bandwidth-capacity"
"""On the node, set by a person: a quantity in bits per second that outranks whatever the agent finds."""

OWNER_ANNOTATION = "netaware.io/bandwidth-owner"
"""On the node: who writes the resource. A value other than ours tells the agent to keep its hands off."""

SOURCE_ANNOTATION = "netaware.io/bandwidth-source"
"""On the node: where the published number came from, in words."""

CONDITION = "NetawareBandwidth"
"""Node condition: True, the capacity is published and known; False, it is unknown or disputed, and the message says why."""

COMPONENT = "netaware-agent"
"""Reporter of events and value of the owner annotation."""

INGRESS_ANNOTATION = "kubernetes.io/ingress-bandwidth"
EGRESS_ANNOTATION = "kubernetes.io/egress-bandwidth"

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"
