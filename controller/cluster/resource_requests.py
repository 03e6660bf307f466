"""Requests of pods and allocatable resources of nodes as integers: millicores for cpu, plain units otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

from controller.cluster.pods import Container, ContainerStatus, PodSpec, PodStatus
from kubekit import quantity
from kubekit.errors import QuantityError

PODS_RESOURCE = "pods"
"""Resource of which each pod requests 1."""
PORT_PREFIX = "port:"
"""Prefix of host ports; each is a resource of which a node has 1."""
Amounts = dict[str, int]
"""Amounts by resource."""
Number = TypeVar("Number", int, float)
MAX_AMOUNT = 1 << 60
"""Upper limit of amounts, so that sums fit into 64 bits: a user may request eight exabytes for each container."""


def parse_amount(name: str, text: str | int) -> int:
    """Parse a quantity: millicores for cpu, plain units otherwise.

    Raises:
        QuantityError: the text is not a quantity.
    """
    return quantity.parse_milli(text) if name == "cpu" else quantity.parse_int(text)


@lru_cache(maxsize=4096)
def parse_amount_or_zero(name: str, text: str) -> int:
    """Parse a quantity and limit it to `MAX_AMOUNT`; an invalid quantity, which the API server would reject, is 0."""
    try:
        return limit_amount(parse_amount(name, text))
    except QuantityError:
        return 0


def limit_amount(value: int) -> int:
    """Limit an amount, or a sum of amounts, to ± `MAX_AMOUNT`."""
    return min(max(value, -MAX_AMOUNT), MAX_AMOUNT)


def parse_amounts(quantities: Mapping[str, str] | None) -> Amounts:
    """Parse a node's allocatable or a container's requests (`parse_amount_or_zero`)."""
    return {name: parse_amount_or_zero(name, text) for name, text in (quantities or {}).items()}


def requests_of(spec: PodSpec, status: PodStatus | None = None) -> Amounts:
    """A pod's requests by kube-scheduler's rule (component-helpers/resource, PodRequests, Kubernetes 1.36).

    The maximum of two sums: all containers and sidecars; an init container and the sidecars that started before it. Pod-level
    requests replace the maximum, and the overhead is added. Each pod also requests 1 of `PODS_RESOURCE`. The ``status`` of a pod on a
    node has its pending resizes in place.
    """
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ())) if status else ()
    status_by_name = {container.name: container for container in statuses}
    is_infeasible = has_infeasible_resize(status)
    total: Amounts = {}
    for container in spec.containers or ():
        requests = _container_requests(container, status_by_name.get(container.name), is_infeasible=is_infeasible)
        add_amounts(total, requests)
    sidecars: Amounts = {}
    init_peak: Amounts = {}
    for container in spec.init_containers or ():
        requests = _container_requests(container, status_by_name.get(container.name), is_infeasible=is_infeasible)
        if container.restart_policy == "Always":
            add_amounts(total, requests)
            add_amounts(sidecars, requests)
            requests = {}
        for name in requests.keys() | sidecars.keys():
            init_peak[name] = max(init_peak.get(name, 0), requests.get(name, 0) + sidecars.get(name, 0))
    for name, value in init_peak.items():
        total[name] = max(total.get(name, 0), value)
    total |= {
        name: value
        for name, value in parse_amounts(spec.resources.requests).items()
        if name in {"cpu", "memory"} or name.startswith("hugepages-")
    }
    add_amounts(total, parse_amounts(spec.overhead))
    total[PODS_RESOURCE] = 1
    return total


def has_infeasible_resize(status: PodStatus | None) -> bool:
    """Whether the pod's node can never grant the pending resize in place."""
    conditions = status.conditions or () if status else ()
    return any(c.type == "PodResizePending" and c.reason == "Infeasible" for c in conditions)


def _container_requests(container: Container, status: ContainerStatus | None, *, is_infeasible: bool) -> Amounts:
    """The maximum of a container's actual, allocated and desired requests. Desired requests of an infeasible resize do not count."""
    desired = parse_amounts(container.resources.requests)
    if status is None or (status.resources is None and not status.allocated_resources):
        return desired
    requests = parse_amounts(status.resources.requests if status.resources else None)
    for amounts in (parse_amounts(status.allocated_resources), {} if is_infeasible else desired):
        requests |= {name: max(value, requests.get(name, 0)) for name, value in amounts.items()}
    return requests


def ports_of(spec: PodSpec) -> tuple[str, ...]:
    """A pod's host ports as resources, by kube-scheduler's rule (pkg/scheduler/util, GetHostPorts, Kubernetes 1.36).

    Init containers that are not sidecars have ended before the others start, so their ports do not count.
    """
    sidecars = [c for c in spec.init_containers or () if c.restart_policy == "Always"]
    ports = (port for container in (*(spec.containers or ()), *sidecars) for port in container.ports or ())
    return tuple(f"{PORT_PREFIX}{port.protocol}/{port.host_port}" for port in ports if port.host_port)


def requests_with_ports_of(spec: PodSpec, status: PodStatus | None = None) -> Amounts:
    """A pod's requests (`requests_of`), and 1 for each of its host ports (`ports_of`)."""
    return requests_of(spec, status) | dict.fromkeys(ports_of(spec), 1)


def capacity_of(name: str, allocatable: Mapping[str, int]) -> int:
    """A node's allocatable amount of a resource; 1 for each host port."""
    return 1 if name.startswith(PORT_PREFIX) else allocatable.get(name, 0)


def first_insufficient(
    requests: Mapping[str, int], allocatable: Mapping[str, int], *other_requests: Mapping[str, float]
) -> str:
    """Name of the first resource of which a node has too little for a pod, beside other pods; empty if it has enough."""
    for name, value in requests.items():
        free: float | None = allocatable.get(name)
        # Only if absent, because a call for each resource of each host would take a tenth of a plan's time.
        if free is None:
            free = capacity_of(name, allocatable)
        for amounts in other_requests:
            free -= amounts.get(name, 0)
        if value > free and value > 0:
            return name
    return ""


def add_amounts(total: dict[str, Number], more: Mapping[str, Number], sign: int = 1) -> None:
    """Add amounts to ``total``, which is changed; ``sign`` -1 subtracts them."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + sign * value
