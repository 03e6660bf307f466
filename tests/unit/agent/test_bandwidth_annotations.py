"""What pods ask for, in good and bad input."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from agent.bandwidth.annotations import find_contested_pods, read_annotation, scheduled_bps, spec_of
from kubekit.wire import Container, ObjectMeta, OwnerReference, Pod, PodSpec, PodStatus, ResourceRequirements

BANDWIDTH = "network.aware.com/bandwidth"
TOO_SMALL = "resource is unreasonably small (< 1kbit)"
TOO_LARGE = "resource is unreasonably large (> 1Pbit)"


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("10M", 10**7),
        ("1k", 1000),
        ("1P", 10**15),
        ("1Gi", 2**30),
        ("10000000", 10**7),
        ("1e6", 10**6),
        # Value() rounds up, before the bounds are asked.
        ("999500m", 1000),
        ("1500500m", 1501),
    ],
)
def test_quantities_are_bits_per_second(text: str, rate_bps: int) -> None:
    assert read_annotation(text).rate_bps == rate_bps


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("10m", TOO_SMALL),
        ("0", TOO_SMALL),
        ("-5M", TOO_SMALL),
        ("1e30", TOO_LARGE),
        ("1001T", TOO_LARGE),
        ("999", TOO_SMALL),
        ("998500m", TOO_SMALL),
        ("10E", TOO_LARGE),
        ("1000000000000000500m", TOO_LARGE),
    ],
)
def test_what_is_out_of_range_is_refused_in_the_words_that_users_know(text: str, problem: str) -> None:
    spec = read_annotation(text)
    assert (spec.rate_bps, spec.problem) == (None, problem)


@pytest.mark.parametrize("text", ["ten", "", "10 M", "10Mbit", "١٠M"])
def test_what_is_no_quantity_is_refused_and_shown(text: str) -> None:
    spec = read_annotation(text)
    assert spec.rate_bps is None
    assert repr(text) in spec.problem


def container(amount: str | None = None, *, restart: str | None = None) -> Container:
    return Container(
        resources=ResourceRequirements(limits={BANDWIDTH: amount} if amount else None), restart_policy=restart
    )


def pod(*containers: Container, sidecars: tuple[Container, ...] = (), **annotations: str) -> Pod:
    named = {f"kubernetes.io/{key}-bandwidth": value for key, value in annotations.items()}
    return Pod(
        metadata=ObjectMeta(name="p", namespace="default", uid="u", annotations=named),
        spec=PodSpec(containers=list(containers), init_containers=list(sidecars)),
        status=PodStatus(phase="Running", pod_ip="10.0.0.1"),
    )


def test_scheduled_bandwidth_is_the_sum_of_containers_and_sidecars() -> None:
    sidecars = container("1M", restart="Always"), container("100M")
    assert scheduled_bps(pod(container("10M"), container(), container("5M"), sidecars=sidecars)) == 16_000_000
    assert scheduled_bps(pod(container())) is None


def test_a_pod_that_reserves_another_bandwidth_than_it_is_limited_to_is_told() -> None:
    sample = spec_of(pod(container("1000000"), ingress="10M", egress="10M"))
    assert sample.mismatch == (
        "scheduled for 1000000 bit/s of network.aware.com/bandwidth, but kubernetes.io/ingress-bandwidth is 10000000 bit/s"
        " and kubernetes.io/egress-bandwidth is 10000000 bit/s"
    )
    assert spec_of(pod(container("10M"), ingress="10M", egress="10000k")).mismatch == ""
    assert spec_of(pod(container("10M"))).mismatch == ""
    assert spec_of(pod(container(), egress="10M")).mismatch == ""


KUBELETS = {
    "kubernetes.io/config.hash": "0123456789abcdef0123456789abcdef",
    "kubernetes.io/config.mirror": "0123456789abcdef0123456789abcdef",
    "kubernetes.io/config.source": "file",
}
OF_NODE = OwnerReference(api_version="v1", kind="Node", name="n1", uid="n", controller=True)


def mirror(annotations: Mapping[str, str], *owners: OwnerReference, uid: str = "u", name: str = "p") -> Pod:
    metadata = ObjectMeta(name=name, uid=uid, annotations=dict(annotations), owner_references=list(owners))
    return Pod(metadata=metadata, spec=PodSpec(node_name="n1"))


def test_static_pods_are_looked_up_by_the_hash_that_names_their_cgroups() -> None:
    found = spec_of(mirror(KUBELETS, OF_NODE))
    assert (found.cgroup_uid, found.refused_claim) == (KUBELETS["kubernetes.io/config.hash"], "")
    assert spec_of(mirror({})).cgroup_uid == "u"


@pytest.mark.parametrize(
    ("annotations", "owners", "lacking"),
    [
        ({"kubernetes.io/config.hash": "victim"}, (), "config.mirror"),
        ({**KUBELETS, "kubernetes.io/config.hash": "victim"}, (OF_NODE,), "config.mirror"),
        ({**KUBELETS, "kubernetes.io/config.source": "api"}, (OF_NODE,), "config.source"),
        (KUBELETS, (), "node n1"),
        (KUBELETS, (msgspec.structs.replace(OF_NODE, name="n2"),), "node n1"),
        (KUBELETS, (msgspec.structs.replace(OF_NODE, controller=None),), "node n1"),
        (KUBELETS, (msgspec.structs.replace(OF_NODE, kind="ReplicaSet", api_version="apps/v1"),), "node n1"),
    ],
)
def test_a_claim_to_a_cgroup_without_the_kubelets_proof_is_refused_and_the_pod_goes_by_its_uid(
    annotations: dict[str, str], owners: tuple[OwnerReference, ...], lacking: str
) -> None:
    found = spec_of(mirror(annotations, *owners))
    assert found.cgroup_uid == "u"
    assert lacking in found.refused_claim


def test_two_pods_that_claim_one_cgroup_are_both_refused() -> None:
    first, second = (spec_of(mirror(KUBELETS, OF_NODE, uid=uid, name=uid)) for uid in ("u1", "u2"))
    assert set(find_contested_pods([first, second])) == {"u1", "u2"}
    assert "u2" in find_contested_pods([first, second])["u1"]
    assert find_contested_pods([first]) == {}


def test_whoever_claims_a_pods_own_uid_hurts_only_himself() -> None:
    uid = "0f3a1b2c-0000-4000-8000-000000000001"
    forged = {name: uid.replace("-", "") for name in KUBELETS} | {"kubernetes.io/config.source": "file"}
    victim, liar = spec_of(mirror({}, uid=uid)), spec_of(mirror(forged, OF_NODE, uid="liar"))
    assert set(find_contested_pods([victim, liar])) == {"liar"}
