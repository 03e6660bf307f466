"""The contract between agent, controller, manifests and users: names, the announcement, and how often agents read connection tracking."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from kubekit.wire import DECODE_ERRORS

NETAWARE_NAMESPACE = "netaware-system"
"""The namespace of the manifests, and the default of both programs' settings."""
ApiVersion = Literal["netaware.io/v1alpha1"]
(API_VERSION,) = get_args(ApiVersion)
"""apiVersion of both programs' configuration files."""
CONTROLLER, AGENT = "netaware-controller", "netaware-agent"
"""Names of the programs, in events and managed fields, and of the objects that run them."""
SCHEDULER = "netaware-scheduler"
"""Name of the objects that run a kube-scheduler with netaware's extender."""

ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"
PART_OF_LABELS = {"app.kubernetes.io/part-of": "netaware"}
"""Labels of every object that the programs create."""
NAME_LABEL = "app.kubernetes.io/name"
AGENT_POD_SELECTOR, CONTROLLER_POD_SELECTOR = f"{NAME_LABEL}={AGENT}", f"{NAME_LABEL}={CONTROLLER}"
"""The programs' pods, in netaware's namespace."""

BANDWIDTH_RESOURCE = "network.aware.com/bandwidth"
"""The extended resource, in integer bits per second (node bandwidth capacity, docs/contracts)."""
INGRESS_ANNOTATION = "kubernetes.io/ingress-bandwidth"
EGRESS_ANNOTATION = "kubernetes.io/egress-bandwidth"
"""On a pod: its bandwidth limits, as the CNI bandwidth plugin reads them."""
CAPACITY_ANNOTATION = "netaware.io/bandwidth-capacity"
"""On a node, set by a user: a quantity in bits per second that overrides the detected capacity."""
BANDWIDTH_OWNER_ANNOTATION = "netaware.io/bandwidth-owner"
"""On a node: the writer of the resource. The agent does not write the resource if this is another value than `AGENT`."""
BANDWIDTH_SOURCE_ANNOTATION = "netaware.io/bandwidth-source"
"""On a node: text for users, the source of the published capacity."""

AGENT_ANNOTATION = "netaware.io/agent"
"""On a node: JSON of an `Announcement`. Absent if no agent answers probes on the node for a while."""
PLAN_LABEL = "netaware.io/plan"
"""On the ConfigMaps with probe plans; the value is ``true``."""
PLAN_SELECTOR = f"{PLAN_LABEL}=true"
PLAN_NAME_PREFIX = "netaware-plan-"
RESULTS_NAME = "netperf-metrics"
"""Name of the first results ConfigMap, and prefix of the names of its shards."""
PROBE_SECRET, PASSPHRASE_KEY = "netaware-probe", "passphrase"
"""Name of the Secret with the probing passphrase, and the Secret's key."""
PAGE_AUDIENCE, PAGE_TOKEN_HEADER = "netaware-page", "X-Netaware-Token"
"""Audience of tokens that open the page, and their HTTP header. The API server's proxy would consume ``Authorization``."""
PAGE_ACCOUNT = "netaware-page"
"""The ServiceAccount whose tokens open the page; it has no other rights."""
PAGE_DATA_PATH = "/api/v1/overview"
"""URL path of the page's data."""

HOT_TAINT = "netaware.io/hot"
"""On a node that is overutilized or soon would be, with effect PreferNoSchedule, if the descheduler may write taints."""
MEASURED_WEIGHTS_ANNOTATION = "netaware.io/measured-weights"
"""On an AppGroup: JSON of the measured bytes per second, both directions together, by the caller's and the callee's selector."""

MAX_ANNOTATION_BYTES = 512
"""Longest annotation that the agent writes on its node; the admission policy has the same limit."""
MIN_TRAFFIC_PAUSE_S, MAX_TRAFFIC_CPU_SHARE = 30.0, 0.005
"""Shortest pause between two readings of connection tracking, and the largest share of a core that readings may take."""


class Announcement(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of `AGENT_ANNOTATION`.

    Attributes:
        address: address at which the agent answers probes.
        port: port of netserver's control connections, or of the datagram responder.
        version: version of the agent.
        prober: ``netperf`` if netserver answers, else ``datagrams``.
        problem: text for users about a fault beside which probes are answered; empty if everything works.
    """

    address: str = ""
    port: int = 0
    version: str = ""
    prober: str = ""
    problem: str = ""


def encode_announcement(announcement: Announcement) -> str:
    """The annotation's value. If it is longer than `MAX_ANNOTATION_BYTES`, the problem is cut."""
    text = msgspec.json.encode(announcement).decode()
    if len(text.encode()) <= MAX_ANNOTATION_BYTES or not announcement.problem:
        return text
    shorter = announcement.problem[: min(240, len(announcement.problem) // 2)]
    return encode_announcement(msgspec.structs.replace(announcement, problem=shorter))


_decode = msgspec.json.Decoder(Announcement).decode


def decode_announcement(text: str) -> Announcement | None:
    """The announcement in an annotation; None if the annotation is missing, too long or invalid."""
    if not text or len(text) > MAX_ANNOTATION_BYTES:
        return None
    try:
        return _decode(text)
    except DECODE_ERRORS:
        return None


def traffic_pause_s(reading_cpu_s: float) -> float:
    """Pause after a reading of connection tracking that took ``reading_cpu_s`` of CPU time, by both limits."""
    return max(MIN_TRAFFIC_PAUSE_S, reading_cpu_s / MAX_TRAFFIC_CPU_SHARE)
