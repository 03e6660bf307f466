"""Hosts that a plan cannot tell apart: fewer are looked at, and no plan is worth less."""

from __future__ import annotations

import msgspec

from controller.cluster.hosts import Host, host_of
from controller.cluster.pods import GroupPod
from controller.scheduler.placement.worker import NodeEquivalenceClasses, names_hosts, part_of
from kubekit.wire import Node

ZONE = "topology.kubernetes.io/zone"


def host(name: str, zone: str = "a", cpu: str = "4", **labels: str) -> Host:
    all_labels = {ZONE: zone, "kubernetes.io/hostname": name, **labels}
    body = {"metadata": {"name": name, "labels": all_labels}, "status": {"allocatable": {"cpu": cpu}}}
    return host_of(msgspec.convert(body, Node))


def test_of_each_kind_there_are_as_many_as_there_are_pods_and_those_spoken_of() -> None:
    alike = NodeEquivalenceClasses()
    for i in range(9):
        alike.take(f"n{i}", host(f"n{i}"), {})
    alike.take("big", host("big", cpu="64"), {})
    alike.take("far", host("far", zone="b"), {})
    alike.take("gpu", host("gpu", accelerator="yes"), {})
    alike.take("used", host("used"), {"cpu": 1000})
    others = ["big", "far", "gpu", "used"]
    assert alike.enough(2, ()) == sorted(["n0", "n1", *others])
    assert alike.enough(1, ("n7", "gone")) == sorted(["n0", "n7", *others])
    alike.take("used", host("used"), {"cpu": 0})
    assert alike.enough(99, ()) == sorted([*(f"n{i}" for i in range(9)), *others])
    alike.take("n0", None, {})
    assert "n0" not in alike.enough(99, ())


def test_hosts_that_are_spoken_of_stand_for_no_other_of_their_kind() -> None:
    """They were refused, or promised to another group: whoever saw these alone would find no room beside any number of free ones."""
    alike = NodeEquivalenceClasses()
    for i in range(9):
        alike.take(f"n{i}", host(f"n{i}"), {})
    assert alike.enough(1, ("n0", "n1")) == ["n0", "n1", "n2"]


def test_pods_that_ask_for_hosts_by_name_are_known() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    by_field = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    specs = [
        ({"nodeSelector": {"kubernetes.io/hostname": "n1"}}, True),
        ({"affinity": by_field}, True),
        ({"nodeSelector": {"disk": "ssd"}}, False),
        ({}, False),
    ]
    for spec, named in specs:
        assert names_hosts([msgspec.convert({"spec": spec}, GroupPod)]) == named


def test_a_part_of_the_cluster_keeps_what_its_hosts_hold() -> None:
    hosts = {name: host(name) for name in ("n1", "n2")}
    assert part_of(hosts, {"n1": {"cpu": 5}, "n2": {"cpu": 6}}, ["n2"]) == ({"n2": hosts["n2"]}, {"n2": {"cpu": 6}})
