"""What pods ask for and nodes have, as integers: millicores for cpu, plain units for everything else, and one "pods" each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from controller.scheduler.pods import Container
from kubekit import quantity
from kubekit.errors import QuantityError

PODS_RESOURCE = "pods"
Amounts = dict[str, int]


@lru_cache(maxsize=4096)
def amount(name: str, text: str) -> int:
    """One quantity; what is none counts as 0, since the API server would not have let it through."""
    try:
        return quantity.parse_milli(text) if name == "cpu" else quantity.parse_int(text)
    except QuantityError:
        return 0


def amounts(texts: Mapping[str, str] | None) -> Amounts:
    """Quantities of a node's allocatable or of a container's requests."""
    return {name: amount(name, text) for name, text in (texts or {}).items()}


def requests_of(
    containers: Iterable[Container] | None,
    init_containers: Iterable[Container] | None,
    overhead: Mapping[str, str] | None,
) -> Amounts:
    """A pod's requests by kube-scheduler's rule.

    Containers and sidecars add up; an init container needs its own on top of the sidecars that started before it; the larger
    of both counts, plus the overhead.
    """
    total: Amounts = {}
    for container in containers or ():
        _add(total, amounts(container.resources.requests))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in init_containers or ():
        wanted = amounts(container.resources.requests)
        if container.restart_policy == "Always":
            _add(total, wanted)
            _add(sidecars, wanted)
            wanted = {}
        for name in wanted.keys() | sidecars.keys():
            peak[name] = max(peak.get(name, 0), wanted.get(name, 0) + sidecars.get(name, 0))
    for name, value in peak.items():
        total[name] = max(total.get(name, 0), value)
    _add(total, amounts(overhead))
    total[PODS_RESOURCE] = 1
    return total


def _add(total: Amounts, more: Amounts) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value
