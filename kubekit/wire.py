"""Wire types: Kubernetes objects with the fields that several packages use; API resources, keys and times.

Frozen msgspec structs decode faster than the official client's models and need less memory. They have the fields that we read; packages
that need fewer or other fields define structs of their own.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Errors of decoding JSON that is invalid, of another type, not UTF-8, or nested too deeply."""
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Matches a valid namespace name (use ``fullmatch``)."""
FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
"""Phases of pods that use no resources any more."""
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""Marks the API server's copy of a static pod."""


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base of wire types: immutable, with camelCase names. Unknown fields are ignored; defaults are not encoded."""


class OwnerReference(Wire, frozen=True):
    """The object that owns this one; deleting the owner deletes it."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Wire, frozen=True):
    """The part of an object's metadata that we use."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None

    def label(self, key: str) -> str:
        """Value of a label; empty if the object does not have the label."""
        return (self.labels or {}).get(key, "")

    def annotation(self, key: str) -> str:
        """Value of an annotation; empty if the object does not have the annotation."""
        return (self.annotations or {}).get(key, "")

    @property
    def key(self) -> str:
        """``namespace/name``, or ``name`` alone for cluster-scoped objects."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Object(Wire, frozen=True):
    """An object of any kind, with its metadata only."""

    metadata: ObjectMeta = ObjectMeta()


class Condition(Wire, frozen=True):
    """metav1.Condition; also used for NodeCondition and PodCondition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0

    @property
    def changed_at_s(self) -> float | None:
        """Time of the last change of the condition's status, seconds since 1970; None if unknown."""
        return parse_time_or_none(self.last_transition_time)


class Taint(Wire, frozen=True):
    """A node's taint."""

    key: str
    effect: str = ""
    value: str = ""


class NodeAddress(Wire, frozen=True):
    """One address of a node."""

    type: str
    address: str


class NodeSpec(Wire, frozen=True):
    """The part of a node's spec that we read."""

    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeStatus(Wire, frozen=True):
    """The part of a node's status that we read."""

    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    addresses: list[NodeAddress] | None = None
    conditions: list[Condition] | None = None

    @property
    def internal_ip(self) -> str:
        """The first address of type InternalIP; empty if there is none."""
        return next((a.address for a in self.addresses or () if a.type == "InternalIP"), "")


class Node(Object, frozen=True):
    """v1 Node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        """Whether the condition Ready is True."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())


class ResourceRequirements(Wire, frozen=True):
    """Requests and limits of one container; quantities as text."""

    requests: dict[str, str] | None = None
    limits: dict[str, str] | None = None


class Container(Wire, frozen=True):
    """The part of a container that we read."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class SchedulingGate(Wire, frozen=True):
    """A scheduling gate of a pod."""

    name: str


class PodSpec(Wire, frozen=True):
    """The part of a pod's spec that we read."""

    node_name: str = ""
    scheduler_name: str = ""
    host_network: bool = False
    priority: int = 0
    scheduling_gates: list[SchedulingGate] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, str] | None = None


class PodIP(Wire, frozen=True):
    """One address of a pod."""

    ip: str = ""


class PodStatus(Wire, frozen=True):
    """The part of a pod's status that we read."""

    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    pod_ips: list[PodIP] | None = msgspec.field(name="podIPs", default=None)
    qos_class: str = ""
    conditions: list[Condition] | None = None


class Pod(Object, frozen=True):
    """v1 Pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_finished(self) -> bool:
        """Whether the pod succeeded or failed, so that it uses no resources any more."""
        return self.status.phase in FINISHED_PHASES


class ConfigMap(Object, frozen=True):
    """v1 ConfigMap without binaryData."""

    data: dict[str, str] | None = None


class ListMeta(Wire, frozen=True):
    """Metadata of a list page."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Resource(msgspec.Struct, frozen=True):
    """An API resource.

    Attributes:
        group: API group, empty for core.
        version: for example ``v1``.
        plural: for example ``nodes``.
        kind: for example ``Node``.
        is_namespaced: whether objects live in namespaces.
    """

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def type_meta(self) -> dict[str, str]:
        """``apiVersion`` and ``kind``, for objects to write."""
        return {"apiVersion": self.api_version, "kind": self.kind}

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of one object or its subresource; without a name, of the collection; without a namespace, in all namespaces."""
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if self.is_namespaced and namespace:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts += [p for p in (name, subresource) if p]
        return "/".join(parts)


NODES = Resource("", "v1", "nodes", "Node", is_namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", is_namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVICTIONS = Resource("policy", "v1", "evictions", "Eviction")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", is_namespaced=False
)


def split_key(key: str) -> tuple[str, str]:
    """Namespace (empty for cluster-scoped objects) and name in an `ObjectMeta.key`."""
    namespace, _, name = key.rpartition("/")
    return namespace, name


def format_time(unix_s: float, *, with_microseconds: bool = False) -> str:
    """An RFC 3339 time in UTC: to the second for metav1.Time, with ``with_microseconds`` to the microsecond for metav1.MicroTime."""
    moment = datetime.fromtimestamp(unix_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if with_microseconds else "%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time.

    Raises:
        ValueError: the text is not a time, or has no offset.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC")
    return moment.timestamp()


def parse_time_or_none(text: str | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None if it is absent or malformed."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None
