"""From which nodes a pod's volumes can be reached, by whichever side says that they are bound."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.pods import GroupPod
from controller.cluster.volumes import PersistentVolume, PersistentVolumeClaim, Volumes

ZONE = "topology.kubernetes.io/zone"


def in_zones(*zones: str) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": list(zones)}]}]}


def volume(name: str = "pv", *, claim: str = "", zones: tuple[str, ...] = ("z1",), **labels: str) -> PersistentVolume:
    spec: dict[str, Any] = {"nodeAffinity": {"required": in_zones(*zones)}} if zones else {}
    if claim:
        spec["claimRef"] = {"namespace": "d", "name": claim}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": spec}, PersistentVolume)


def claim(name: str, bound: str = "") -> PersistentVolumeClaim:
    body = {"metadata": {"name": name, "namespace": "d"}, "spec": {"volumeName": bound}}
    return msgspec.convert(body, PersistentVolumeClaim)


def pod(**volume_of: Any) -> GroupPod:
    body = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"volumes": [{"name": "v", **volume_of}]}}
    return msgspec.convert(body, GroupPod)


WITH_CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "data"}}
EPHEMERAL: dict[str, Any] = {"ephemeral": {}}


@pytest.mark.parametrize(
    ("volumes", "claims", "of_pod", "wanted"),
    [
        ([volume()], [claim("data", "pv")], WITH_CLAIM, [in_zones("z1")]),
        ([volume()], [claim("p-v", "pv")], EPHEMERAL, [in_zones("z1")]),
        ([volume(claim="data")], [], WITH_CLAIM, [in_zones("z1")]),  # a file without claims
        ([volume(claim="data")], [claim("data")], WITH_CLAIM, [in_zones("z1")]),  # the claim's side lags behind
        ([volume(zones=(), **{ZONE: "z1__z2"})], [claim("data", "pv")], WITH_CLAIM, [in_zones("z1", "z2")]),
        (
            [volume(zones=("z1",), **{"failure-domain.beta.kubernetes.io/zone": "z1"})],
            [claim("data", "pv")],
            WITH_CLAIM,
            [in_zones("z1"), in_zones("z1")],
        ),
        ([volume(claim="other")], [claim("data")], WITH_CLAIM, []),
        ([volume()], [claim("data", "pv")], {"emptyDir": {}}, []),
        ([], [claim("data", "pv")], WITH_CLAIM, []),
        ([volume(zones=())], [claim("data", "pv")], WITH_CLAIM, []),
    ],
)
def test_what_volumes_demand_of_a_node(
    volumes: list[PersistentVolume], claims: list[PersistentVolumeClaim], of_pod: Any, wanted: list[Any]
) -> None:
    found = Volumes.among(volumes, claims).demands_of(pod(**of_pod))
    assert [msgspec.to_builtins(demand) for demand in found] == wanted


def test_changes_are_followed_and_counted_only_where_an_answer_may_change() -> None:
    known, asked = Volumes(), pod(**WITH_CLAIM)
    one, other = volume(claim="data"), volume(claim="data", zones=("z2",))
    known.take_volume("pv", None, one)
    seen = known.version
    known.take_volume("pv", one, volume(claim="data", zones=("z1",), note="a label that says nothing"))
    assert (known.version, len(known.demands_of(asked))) == (seen, 1)
    known.take_volume("pv", one, other)
    assert known.version > seen
    assert msgspec.to_builtins(known.demands_of(asked)[0]) == in_zones("z2")
    known.take_volume("pv", other, None)
    assert known.demands_of(asked) == ()
    known.take_claim("d/data", None, claim("data", "pv2"))
    known.take_volume("pv2", None, volume("pv2"))
    assert len(known.demands_of(asked)) == 1
    known.take_claim("d/data", claim("data", "pv2"), None)
    assert known.demands_of(asked) == ()
