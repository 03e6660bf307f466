"""The Services that select a pod: the index finds the same ones as a scan, after any changes."""

from __future__ import annotations

import random
from itertools import product

import msgspec

from controller.cluster.services import Routing, Service, ServiceIndex
from kubekit.wire import ObjectMeta

KEYS, VALUES, NAMESPACES = ("app", "tier", "zone"), ("a", "b", "c"), ("x", "y")


def draw_service(rng: random.Random, name: str, namespace: str) -> Service:
    selector = {key: rng.choice(VALUES) for key in rng.sample(KEYS, rng.randint(0, 3))}
    spec = {
        "selector": selector or (None if rng.random() < 0.5 else {}),
        "clusterIP": rng.choice(["None", "10.0.0.1"]),
        "trafficDistribution": rng.choice(["", "PreferSameZone", "PreferSameNode"]),
    }
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "spec": spec}, Service)


def list_routings(index: ServiceIndex) -> list[Routing]:
    """The routing of calls to a pod of each namespace and each combination of labels."""
    pods = product(NAMESPACES, product(VALUES, repeat=len(KEYS)))
    labelled = ((namespace, dict(zip(KEYS, values, strict=True))) for namespace, values in pods)
    return [index.routing_to([ObjectMeta(namespace=namespace, labels=labels)]) for namespace, labels in labelled]


def test_the_index_finds_the_same_services_as_a_scan() -> None:
    rng, index = random.Random(3), ServiceIndex()
    services: dict[str, Service] = {}
    for _ in range(400):
        namespace, name = rng.choice(NAMESPACES), f"s{rng.randrange(12)}"
        key = f"{namespace}/{name}"
        new = draw_service(rng, name, namespace) if rng.random() < 0.7 else None
        old_routings = list_routings(index)
        has_changed = index.on_change(key, services.get(key), new)
        assert has_changed or list_routings(index) == old_routings, "a change of routing is returned"

        services.pop(key, None)
        if new is not None:
            services[key] = new
        labels = {key: rng.choice(VALUES) for key in KEYS}
        for pod_namespace in NAMESPACES:
            matching = [services[key] for key in sorted(services) if services[key].selects(pod_namespace, labels)]
            with_address = [service for service in matching if not service.is_headless]
            assert index.services_selecting(pod_namespace, labels) == (with_address or matching)
