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
from tests.unit.controller.scheduler_objects import make_gated_pod

NAMESPACES = ("a", "b", "c", "shared")
CONSENTING = [
    Object(metadata=ObjectMeta(name=name, labels={CONSENT_LABEL: ".".join(NAMESPACES)})) for name in NAMESPACES
]
NO_SEARCHED_NAMESPACES = NetworkOverheadArgs(namespaces=())


def make_group(namespace: str, names: tuple[str, ...]) -> AppGroup:
    """A group of one workload in each of these namespaces."""
    namespaces = {f"w{i}": name for i, name in enumerate(names)}
    spec = make_appgroup_spec({selector: {} for selector in namespaces}, namespaces=namespaces)
    body = {"metadata": {"name": "shop", "namespace": namespace}, "spec": spec}
    return msgspec.convert(body, AppGroup)


class OnePod:
    """Groups of one pod; stands in for the store of it."""

    def __init__(self) -> None:
        self.stored: Pod | None = None
        self.now_s = 0.0
        state = State(SchedulerConfig(), "netaware-system")
        self.group_pods = GroupPods(cast("Store[Pod]", self), state, lambda: self.now_s)

    def get(self, _: str) -> Pod | None:
        return self.stored

    def show(self, pod: Pod | None) -> Pod | None:
        """Put a version of the pod into the store; returns the version that counts."""
        old, self.stored = self.stored, pod
        self.group_pods.on_change("d/p", old, pod)
        return next(iter(self.group_pods.pods_of("d/shop")), None)


def make_pod(label: str = "shop", version: str = "1", uid: str = "u") -> Pod:
    labels = {"appgroup.diktyo.x-k8s.io": label}
    return Pod(ObjectMeta(name="p", namespace="d", uid=uid, labels=labels, resource_version=version))


V1, V2, V3, V4 = (make_pod(version=version) for version in "1234")


def test_a_group_has_pods_only_in_its_pod_namespaces() -> None:
    rng = random.Random(1)
    excluded_count = 0
    for search_everywhere, has_consent in itertools.product((True, False), repeat=2):
        for _ in range(100):
            searched = tuple(rng.sample(NAMESPACES, rng.randrange(3)))
            rules = NetworkOverheadArgs(namespaces=searched, search_everywhere=search_everywhere)
            membership = Membership.from_objects((), CONSENTING if has_consent else (), rules)
            for group_namespace in rng.sample(NAMESPACES, 3):
                new = make_group(group_namespace, tuple(rng.choices(("", *NAMESPACES), k=2)))
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
        membership, groups = Membership.from_objects((), CONSENTING, NO_SEARCHED_NAMESPACES), dict[str, AppGroup]()
        for _ in range(25):
            group_namespace = rng.choice(NAMESPACES)
            key, old = f"{group_namespace}/shop", groups.get(f"{group_namespace}/shop")
            new = (
                make_group(group_namespace, tuple(rng.choices(("", *NAMESPACES), k=2))) if rng.random() < 0.7 else None
            )
            if old is None and new is None:
                continue
            membership.on_group_change(key, old, new)
            groups.pop(key, None)
            groups |= {key: new} if new is not None else {}
            fresh = Membership.from_objects(
                rng.sample(list(groups.values()), len(groups)), CONSENTING, NO_SEARCHED_NAMESPACES
            )
            for namespace in NAMESPACES:
                expected = fresh.group_key_of(namespace, "shop")
                for index in (membership, membership.copy()):
                    assert index.group_key_of(namespace, "shop") == expected
                foreign_count += bool(expected) and not expected.startswith(f"{namespace}/")
    assert foreign_count > 100


def test_a_pod_is_indexed_by_its_present_label_and_uid() -> None:
    one_pod, moved_pod = OnePod(), make_pod("bank")
    one_pod.show(V1)
    assert one_pod.show(moved_pod) is None
    assert one_pod.group_pods.pods_of("d/bank") == [moved_pod]
    one_pod.show(None)
    assert one_pod.group_pods.pods_of("d/bank") == []
    for one_pod.now_s, uid in ((1.0, "a"), (5.0, "b")):
        one_pod.show(make_pod(uid=uid))
    assert one_pod.group_pods.first_seen_at == {"d/p": 5.0}, "another pod of this name"


def test_pods_are_counted_as_gated_until_their_gate_opens() -> None:
    one_pod = OnePod()
    one_pod.show(make_gated_pod(name="p", group="shop", metadata={"namespace": "d"}))
    assert one_pod.group_pods.gated_count() == 1
    one_pod.show(V1)
    assert one_pod.group_pods.gated_count() == 0


def test_a_written_pod_counts_until_the_store_has_it_or_a_later_version() -> None:
    one_pod = OnePod()
    assert one_pod.show(V1) is V1
    one_pod.group_pods.record_write("d/p", V1, V2)
    assert one_pod.show(V1) is V2
    one_pod.group_pods.record_write("d/p", V2, V3)  # The store is two versions behind.
    assert [one_pod.show(version) for version in (V1, V2, V4)] == [V3, V3, V4]
    assert one_pod.show(V1) is V1, "the write is forgotten once the store was ahead"
    one_pod.show(V2)
    one_pod.group_pods.record_write("d/p", V1, V2)
    assert one_pod.show(V1) is V1, "a write that the store shows before its answer is not recorded"


def test_a_written_pod_counts_until_it_is_deleted_and_no_longer_than_the_longest_lag_of_the_store() -> None:
    one_pod = OnePod()
    one_pod.show(V1)
    one_pod.group_pods.record_write("d/p", V1, V2)
    assert one_pod.show(None) is None

    one_pod.show(V1)
    one_pod.group_pods.record_write("d/p", V1, V2)
    one_pod.now_s = MAX_LAG_S
    assert one_pod.show(V1) is V1
