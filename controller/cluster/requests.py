"""Requests and allocatable as integers: millicores for cpu, plain units otherwise, and one "pods" for each pod."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

from controller.cluster.pods import ContainerStatus, GroupPodSpec, GroupPodStatus, PodContainer
from kubekit import quantity
from kubekit.errors import QuantityError

PODS_RESOURCE = "pods"
RESIZE_PENDING, INFEASIBLE = "PodResizePending", "Infeasible"
PORT_PREFIX = "port:"
"""A host's port as a resource of which it has one."""
Amounts = dict[str, int]
T = TypeVar("T", int, float)
MAX_AMOUNT = 1 << 60
"""Largest amount of a resource; larger requests count as this, so that sums fit into 64 bits. Any user may request eight exabytes per
container.
"""


def parse_amount(name: str, text: str | int) -> int:
    """Parse a quantity: millicores for cpu, plain units otherwise.

    Raises:
        QuantityError: the text is no quantity.
    """
    return quantity.parse_milli(text) if name == "cpu" else quantity.parse_int(text)


@lru_cache(maxsize=4096)
def amount_or_zero(name: str, text: str) -> int:
    """Parse a quantity, at most `MAX_AMOUNT`; an invalid one, which the API server would refuse, counts as 0."""
    try:
        return clamp_amount(parse_amount(name, text))
    except QuantityError:
        return 0


def clamp_amount(value: int) -> int:
    """An amount, or a sum of amounts, that fits into a table."""
    return min(max(value, -MAX_AMOUNT), MAX_AMOUNT)


def parse_amounts(texts: Mapping[str, str] | None) -> Amounts:
    """Quantities of a node's allocatable or of a container's requests."""
    return {name: amount_or_zero(name, text) for name, text in (texts or {}).items()}


def requests_of(spec: GroupPodSpec, status: GroupPodStatus | None = None) -> Amounts:
    """A pod's requests by kube-scheduler's rule (component-helpers/resource, PodRequests, Kubernetes 1.36).

    Containers and sidecars add up; an init container needs its own on top of the sidecars that started before it; the larger
    of both counts. What the pod asks for as a whole stands in place of that, and the overhead is added. A container that is
    being resized in place holds the larger of what it has and what it is to have.

    Args:
        spec: of the pod.
        status: of a pod on a node; one that waits holds nothing yet.
    """
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ())) if status else ()
    held = {found.name: found for found in statuses}
    infeasible = is_infeasible(status)
    total: Amounts = {}
    for container in spec.containers or ():
        add_amounts(total, _wanted(container, held.get(container.name), infeasible=infeasible))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers or ():
        wanted = _wanted(container, held.get(container.name), infeasible=infeasible)
        if container.restart_policy == "Always":
            add_amounts(total, wanted)
            add_amounts(sidecars, wanted)
            wanted = {}
        for name in wanted.keys() | sidecars.keys():
            peak[name] = max(peak.get(name, 0), wanted.get(name, 0) + sidecars.get(name, 0))
    for name, value in peak.items():
        total[name] = max(total.get(name, 0), value)
    total |= {name: value for name, value in parse_amounts(spec.resources.requests).items() if _is_of_pods(name)}
    add_amounts(total, parse_amounts(spec.overhead))
    total[PODS_RESOURCE] = 1
    return total


def ports_of(spec: GroupPodSpec) -> tuple[str, ...]:
    """The ports of its host that a pod takes, as resources, by kube-scheduler's rule (pkg/scheduler/util, GetHostPorts, 1.36): those of
    its containers and sidecars, not of init containers that are done before these run.
    """
    sidecars = [c for c in spec.init_containers or () if c.restart_policy == "Always"]
    ports = (port for container in (*(spec.containers or ()), *sidecars) for port in container.ports or ())
    return tuple(f"{PORT_PREFIX}{port.protocol}/{port.host_port}" for port in ports if port.host_port)


def host_requests_of(spec: GroupPodSpec, status: GroupPodStatus | None = None) -> Amounts:
    """All that a pod takes of its host: `requests_of`, and one of each of `ports_of`."""
    return requests_of(spec, status) | dict.fromkeys(ports_of(spec), 1)


def capacity_of(name: str, allocatable: Mapping[str, int]) -> int:
    """A host's total of a resource; of each port one."""
    return 1 if name.startswith(PORT_PREFIX) else allocatable.get(name, 0)


def first_insufficient(wanted: Mapping[str, int], allocatable: Mapping[str, int], *taken: Mapping[str, float]) -> str:
    """The first resource of which a host has too little left; empty where it has enough of all."""
    for name, value in wanted.items():
        left: float | None = allocatable.get(name)
        if left is None:  # Inlined: a call for each resource of each host would take a tenth of a plan's time.
            left = capacity_of(name, allocatable)
        for held in taken:
            left -= held.get(name, 0)
        if value > left and value > 0:
            return name
    return ""


def _wanted(container: PodContainer, held: ContainerStatus | None, *, infeasible: bool) -> Amounts:
    """Requests of a container; a resize that the node can never grant does not count."""
    wanted = parse_amounts(container.resources.requests)
    if held is None or (held.resources is None and not held.allocated_resources):
        return wanted
    has = parse_amounts(held.resources.requests if held.resources else None)
    for more in (parse_amounts(held.allocated_resources), {} if infeasible else wanted):
        has |= {name: max(value, has.get(name, 0)) for name, value in more.items()}
    return has


def is_infeasible(status: GroupPodStatus | None) -> bool:
    """Whether a resize in place was asked for that the pod's node can never grant."""
    conditions = status.conditions or () if status else ()
    return any(c.type == RESIZE_PENDING and c.reason == INFEASIBLE for c in conditions)


def _is_of_pods(name: str) -> bool:
    """Whether a pod may ask for a resource as a whole."""
    return name in {"cpu", "memory"} or name.startswith("hugepages-")


def add_amounts(total: dict[str, T], more: Mapping[str, T], sign: int = 1) -> None:
    """Add amounts to others, or (-1) take them away."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + sign * value
