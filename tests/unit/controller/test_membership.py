"""Which group a pod belongs to, and where its pods can be at all."""

from __future__ import annotations

import itertools
import random

import msgspec

from controller.cluster.membership import Membership
from controller.cluster.resources import AppGroup

NAMESPACES = ("a", "b", "c", "shared")


def group(namespace: str, names: tuple[str, ...]) -> AppGroup:
    """A group of one workload in each of these namespaces."""
    workloads = [
        {"workload": {"kind": "Deployment", "name": f"w{i}", "selector": f"w{i}", "namespace": name}}
        for i, name in enumerate(names)
    ]
    body = {"metadata": {"name": "shop", "namespace": namespace}, "spec": {"workloads": workloads}}
    return msgspec.convert(body, AppGroup)


def test_no_pod_of_a_group_is_where_it_may_hold_none() -> None:
    chance = random.Random(1)
    limited = 0
    for everywhere, consent in itertools.product((True, False), repeat=2):
        for _ in range(100):
            searched = chance.sample(NAMESPACES, chance.randrange(3))
            membership = Membership(searched, everywhere=everywhere, consent=consent)
            for home in chance.sample(NAMESPACES, 3):
                made = group(home, tuple(chance.choices(("", *NAMESPACES), k=2)))
                membership.take(made.metadata.key, None, made)
            for key, namespace in itertools.product(membership.groups, NAMESPACES):
                held = membership.may_hold(key)
                limited += held is not None and namespace not in held
                if membership.group_of(namespace, "shop") == key:
                    assert held is None or namespace in held
    assert limited > 100
