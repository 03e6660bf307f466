"""Which group a pod belongs to, and where its pods can be at all."""

from __future__ import annotations

import itertools
import random
from typing import cast

import msgspec

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.membership import CONSENT_LABEL, Membership
from controller.cluster.pods import GroupPod
from controller.cluster.resources import AppGroup
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.group_pods import GroupPods
from controller.scheduler.state import State
from kubekit.stores import Store
from kubekit.wire import Object, ObjectMeta

NAMESPACES = ("a", "b", "c", "shared")
CONSENTING = [
    Object(metadata=ObjectMeta(name=name, labels={CONSENT_LABEL: ".".join(NAMESPACES)})) for name in NAMESPACES
]
NOWHERE_FIRST = NetworkOverheadArgs(namespaces=())


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
            searched = tuple(chance.sample(NAMESPACES, chance.randrange(3)))
            rules = NetworkOverheadArgs(namespaces=searched, search_everywhere=everywhere)
            membership = Membership.from_objects((), CONSENTING if consent else (), rules)
            for home in chance.sample(NAMESPACES, 3):
                made = group(home, tuple(chance.choices(("", *NAMESPACES), k=2)))
                membership.on_change(made.metadata.key, None, made)
            for key, namespace in itertools.product(membership.groups, NAMESPACES):
                held = membership.may_hold(key)
                limited += held is not None and namespace not in held
                if membership.group_of(namespace, "shop") == key:
                    assert held is None or namespace in held
    assert limited > 100


def test_groups_that_come_change_and_go_are_as_if_the_last_ones_had_come_alone() -> None:
    chance = random.Random(2)
    named = 0
    for _ in range(60):
        membership, alive = Membership.from_objects((), CONSENTING, NOWHERE_FIRST), dict[str, AppGroup]()
        for _ in range(25):
            home = chance.choice(NAMESPACES)
            key, old = f"{home}/shop", alive.get(f"{home}/shop")
            new = group(home, tuple(chance.choices(("", *NAMESPACES), k=2))) if chance.random() < 0.7 else None
            if old is None and new is None:
                continue
            membership.on_change(key, old, new)
            alive = {k: v for k, v in {**alive, key: new}.items() if v is not None}
            fresh = Membership.from_objects(chance.sample(list(alive.values()), len(alive)), CONSENTING, NOWHERE_FIRST)
            for namespace in NAMESPACES:
                expected = fresh.group_of(namespace, "shop")
                assert (
                    membership.group_of(namespace, "shop") == membership.copy().group_of(namespace, "shop") == expected
                )
                named += bool(expected) and not expected.startswith(f"{namespace}/")
    assert named > 100


class Held:
    """In the place of a store: what it holds."""

    def __init__(self) -> None:
        self.items: dict[str, GroupPod] = {}

    def get(self, key: str) -> GroupPod | None:
        return self.items.get(key)


def test_a_pod_whose_label_names_another_group_now_is_of_that_one_alone() -> None:
    held = Held()
    pods = GroupPods(cast("Store[GroupPod]", held), State(SchedulerConfig(), "netaware-system"), lambda: 0.0)
    old: GroupPod | None = None
    for label in ("shop", "bank"):
        labels = {"appgroup.diktyo.x-k8s.io": label}
        new = GroupPod(ObjectMeta(name="p", namespace="d", labels=labels, resource_version=label))
        held.items["d/p"] = new
        assert pods.on_change("d/p", old, new) == f"d/{label}"
        old = new
    assert (pods.of("d/shop"), pods.of("d/bank")) == ([], [old])
    del held.items["d/p"]
    pods.on_change("d/p", old, None)
    assert pods.of("d/bank") == []
