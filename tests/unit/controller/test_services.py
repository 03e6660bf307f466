"""The Services that select a pod: the index finds the same ones as a scan, after any changes."""

from __future__ import annotations

import random
from itertools import product

import msgspec

from controller.cluster.services import Routing, Service, ServiceIndex
from kubekit.wire import ObjectMeta

KEYS, VALUES = ("app", "tier", "zone"), ("a", "b", "c")


def service(rng: random.Random, name: str, namespace: str) -> Service:
    selector = {key: rng.choice(VALUES) for key in rng.sample(KEYS, rng.randint(0, 3))}
    spec = {
        "selector": selector or (None if rng.random() < 0.5 else {}),
        "clusterIP": rng.choice(["None", "10.0.0.1"]),
        "trafficDistribution": rng.choice(["", "PreferSameZone", "PreferSameNode"]),
    }
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "spec": spec}, Service)


def routings(index: ServiceIndex) -> list[Routing]:
    labels = (dict(zip(KEYS, values, strict=True)) for values in product(VALUES, repeat=len(KEYS)))
    return [index.routing_to([ObjectMeta(namespace=n, labels=pod_labels)]) for pod_labels in labels for n in ("x", "y")]


def test_the_index_finds_the_same_services_as_a_scan() -> None:
    rng, index = random.Random(3), ServiceIndex()
    services: dict[str, Service] = {}
    for _ in range(400):
        namespace, name = rng.choice(("x", "y")), f"s{rng.randrange(12)}"
        key = f"{namespace}/{name}"
        new = service(rng, name, namespace) if rng.random() < 0.7 else None
        before = routings(index)
        changed = index.on_change(key, services.get(key), new)
        assert changed or routings(index) == before, "a change of routing is returned"
        services.pop(key, None)
        if new is not None:
            services[key] = new
        labels = {key: rng.choice(VALUES) for key in KEYS}
        for pod_namespace in ("x", "y"):
            matching = [services[key] for key in sorted(services) if services[key].selects(pod_namespace, labels)]
            assert index.services_selecting(pod_namespace, labels) == (
                [s for s in matching if not s.is_headless] or matching
            )
