"""Which AppGroup a pod belongs to, and in which namespaces a group may have pods."""

from __future__ import annotations

import itertools
import random
from typing import cast

import msgspec

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import AppGroup
from controller.cluster.membership import CONSENT_LABEL, Membership
from controller.cluster.pods import Pod
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.group_pods import MAX_LAG_S, GroupPods
from controller.scheduler.state import State
from kubekit.stores import Store
from kubekit.wire import Object, ObjectMeta
from tests.support.bodies import make_appgroup_spec

NAMESPACES = ("a", "b", "c", "shared")
CONSENTING = [
    Object(metadata=ObjectMeta(name=name, labels={CONSENT_LABEL: ".".join(NAMESPACES)})) for name in NAMESPACES
]
NOWHERE_FIRST = NetworkOverheadArgs(namespaces=())


def group(namespace: str, names: tuple[str, ...]) -> AppGroup:
    """A group of one workload in each of these namespaces."""
    namespaces = {f"w{i}": name for i, name in enumerate(names)}
    spec = make_appgroup_spec({selector: {} for selector in namespaces}, namespaces=namespaces)
    body = {"metadata": {"name": "shop", "namespace": namespace}, "spec": spec}
    return msgspec.convert(body, AppGroup)


def test_a_group_has_pods_only_in_its_pod_namespaces() -> None:
    rng = random.Random(1)
    excluded_count = 0
    for search_everywhere, has_consent in itertools.product((True, False), repeat=2):
        for _ in range(100):
            searched = tuple(rng.sample(NAMESPACES, rng.randrange(3)))
            rules = NetworkOverheadArgs(namespaces=searched, search_everywhere=search_everywhere)
            membership = Membership.from_objects((), CONSENTING if has_consent else (), rules)
            for group_namespace in rng.sample(NAMESPACES, 3):
                new = group(group_namespace, tuple(rng.choices(("", *NAMESPACES), k=2)))
                membership.on_group_change(new.metadata.key, None, new)
            for key, namespace in itertools.product(membership.groups, NAMESPACES):
                namespaces = membership.pod_namespaces(key)
                excluded_count += namespaces is not None and namespace not in namespaces
                if membership.group_key_of(namespace, "shop") == key:
                    assert namespaces is None or namespace in namespaces
    assert excluded_count > 100


def test_membership_depends_only_on_the_last_state() -> None:
    rng = random.Random(2)
    foreign_count = 0
    for _ in range(60):
        membership, groups = Membership.from_objects((), CONSENTING, NOWHERE_FIRST), dict[str, AppGroup]()
        for _ in range(25):
            group_namespace = rng.choice(NAMESPACES)
            key, old = f"{group_namespace}/shop", groups.get(f"{group_namespace}/shop")
            new = group(group_namespace, tuple(rng.choices(("", *NAMESPACES), k=2))) if rng.random() < 0.7 else None
            if old is None and new is None:
                continue
            membership.on_group_change(key, old, new)
            groups = {k: v for k, v in {**groups, key: new}.items() if v is not None}
            fresh = Membership.from_objects(rng.sample(list(groups.values()), len(groups)), CONSENTING, NOWHERE_FIRST)
            for namespace in NAMESPACES:
                expected = fresh.group_key_of(namespace, "shop")
                for index in (membership, membership.copy()):
                    assert index.group_key_of(namespace, "shop") == expected
                foreign_count += bool(expected) and not expected.startswith(f"{namespace}/")
    assert foreign_count > 100


class OnePodStore:
    """Stands in for a store with at most one pod."""

    pod: Pod | None = None

    def get(self, _: str) -> Pod | None:
        return self.pod


def pod(label: str = "shop", version: str = "1") -> Pod:
    labels = {"appgroup.diktyo.x-k8s.io": label}
    return Pod(ObjectMeta(name="p", namespace="d", labels=labels, resource_version=version))


def test_a_pod_whose_label_changes_belongs_to_the_new_group_alone() -> None:
    store = OnePodStore()
    pods = GroupPods(cast("Store[Pod]", store), State(SchedulerConfig(), "netaware-system"), lambda: 0.0)
    for old, new in ((None, pod("shop")), (pod("shop"), pod("bank"))):
        store.pod = new
        assert pods.on_change("d/p", old, new) == f"d/{new.group}"
    assert (pods.pods_of("d/shop"), pods.pods_of("d/bank")) == ([], [store.pod])
    pods.on_change("d/p", store.pod, None)
    assert pods.pods_of("d/bank") == []


def test_a_written_pod_counts_until_the_store_has_it_or_a_later_version() -> None:
    store, now = OnePodStore(), [0.0]
    pods = GroupPods(cast("Store[Pod]", store), State(SchedulerConfig(), "netaware-system"), lambda: now[0])
    first, second, third, fourth = (pod(version=version) for version in "1234")

    def newest(shown: Pod | None) -> Pod | None:
        old, store.pod = store.pod, shown
        pods.on_change("d/p", old, shown)
        return next(iter(pods.pods_of("d/shop")), None)

    assert newest(first) is first
    pods.record_write("d/p", first, second)
    assert newest(first) is second
    pods.record_write("d/p", second, third)  # The store is two versions behind.
    assert (newest(first), newest(second), newest(fourth)) == (third, third, fourth)
    assert newest(first) is first, "the write is forgotten once the store was ahead"
    pods.record_write("d/p", first, second)
    assert newest(None) is None, "a deleted pod is gone"
    store.pod = first
    pods.record_write("d/p", first, second)
    now[0] = MAX_LAG_S
    assert newest(first) is first
    store.pod = second
    pods.record_write("d/p", first, second)
    assert newest(first) is first, "the store had shown the write before its answer"
