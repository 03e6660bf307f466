"""What pods ask for and nodes have, as integers: millicores for cpu, plain units for everything else, and one "pods" each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from controller.cluster.pods import ContainerStatus, GroupPodSpec, GroupPodStatus, PodContainer
from kubekit import quantity
from kubekit.errors import QuantityError

PODS_RESOURCE = "pods"
RESIZE_PENDING, INFEASIBLE = "PodResizePending", "Infeasible"
PORT_PREFIX = "port:"
"""A host's port as a resource of which it has one."""
Amounts = dict[str, int]
MOST = 1 << 60
"""More than any node has of anything. What is beyond counts as this much, so that sums of two stay within the 64 bits of tables:
whoever may create a pod may also ask for eight exabytes in each of its containers.
"""


def parse_amount(name: str, text: str | int) -> int:
    """One quantity: millicores of cpu, plain units of everything else.

    Raises:
        QuantityError: the text is no quantity.
    """
    return quantity.parse_milli(text) if name == "cpu" else quantity.parse_int(text)


def port_name(protocol: str, port: int) -> str:
    """A host's port as a resource."""
    return f"{PORT_PREFIX}{protocol}/{port}"


@lru_cache(maxsize=4096)
def amount(name: str, text: str) -> int:
    """One quantity, `MOST` at most; what is none counts as 0, since the API server would not have let it through."""
    try:
        return bounded(parse_amount(name, text))
    except QuantityError:
        return 0


def bounded(value: int) -> int:
    """An amount, or a sum of amounts, that fits into a table."""
    return min(max(value, -MOST), MOST)


def amounts(texts: Mapping[str, str] | None) -> Amounts:
    """Quantities of a node's allocatable or of a container's requests."""
    return {name: amount(name, text) for name, text in (texts or {}).items()}


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
        _add(total, _wanted(container, held.get(container.name), infeasible=infeasible))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers or ():
        wanted = _wanted(container, held.get(container.name), infeasible=infeasible)
        if container.restart_policy == "Always":
            _add(total, wanted)
            _add(sidecars, wanted)
            wanted = {}
        for name in wanted.keys() | sidecars.keys():
            peak[name] = max(peak.get(name, 0), wanted.get(name, 0) + sidecars.get(name, 0))
    for name, value in peak.items():
        total[name] = max(total.get(name, 0), value)
    total |= {name: value for name, value in amounts(spec.resources.requests).items() if _is_of_pods(name)}
    _add(total, amounts(spec.overhead))
    total[PODS_RESOURCE] = 1
    return total


def _wanted(container: PodContainer, held: ContainerStatus | None, *, infeasible: bool) -> Amounts:
    """Of one container; a resize that its node can never grant is left out."""
    wanted = amounts(container.resources.requests)
    if held is None or (held.resources is None and not held.allocated_resources):
        return wanted
    has = amounts(held.resources.requests if held.resources else None)
    for more in (amounts(held.allocated_resources), {} if infeasible else wanted):
        has |= {name: max(value, has.get(name, 0)) for name, value in more.items()}
    return has


def is_infeasible(status: GroupPodStatus | None) -> bool:
    """Whether a resize in place was asked for that the pod's node can never grant."""
    conditions = status.conditions or () if status else ()
    return any(c.type == RESIZE_PENDING and c.reason == INFEASIBLE for c in conditions)


def _is_of_pods(name: str) -> bool:
    """Whether a pod may ask for a resource as a whole."""
    return name in {"cpu", "memory"} or name.startswith("hugepages-")


def _add(total: Amounts, more: Amounts) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value
