"""What pods ask for, in good and bad input."""

from __future__ import annotations

import pytest

from agent.bandwidth.wanted import TOO_LARGE, TOO_SMALL, read_wish, scheduled_bps, wish_of
from kubekit.wire import Container, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements

BANDWIDTH = "network.aware.com/bandwidth"


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [("10M", 10**7), ("1k", 1000), ("1P", 10**15), ("1Gi", 2**30), ("10000000", 10**7), ("1e6", 10**6)],
)
def test_quantities_are_bits_per_second(text: str, rate_bps: int) -> None:
    assert read_wish(text).rate_bps == rate_bps


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("10m", TOO_SMALL),
        ("0", TOO_SMALL),
        ("-5M", TOO_SMALL),
        ("999", TOO_SMALL),
        ("1e30", TOO_LARGE),
        ("1001T", TOO_LARGE),
    ],
)
def test_what_is_out_of_range_is_refused_in_the_words_that_users_know(text: str, problem: str) -> None:
    wish = read_wish(text)
    assert (wish.rate_bps, wish.problem) == (None, problem)


@pytest.mark.parametrize("text", ["ten", "", "10 M", "10Mbit", "١٠M"])
def test_what_is_no_quantity_is_refused_and_shown(text: str) -> None:
    wish = read_wish(text)
    assert wish.rate_bps is None
    assert repr(text) in wish.problem


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
    sample = wish_of(pod(container("1000000"), ingress="10M", egress="10M"))
    assert sample.mismatch == (
        "scheduled for 1000000 bit/s of network.aware.com/bandwidth, but kubernetes.io/ingress-bandwidth is 10000000 bit/s"
        " and kubernetes.io/egress-bandwidth is 10000000 bit/s"
    )
    assert wish_of(pod(container("10M"), ingress="10M", egress="10000k")).mismatch == ""
    assert wish_of(pod(container("10M"))).mismatch == ""
    assert wish_of(pod(container(), egress="10M")).mismatch == ""


def test_static_pods_are_looked_up_by_the_hash_that_names_their_cgroups() -> None:
    mirror = pod(container())
    static = Pod(
        metadata=ObjectMeta(
            name="p", namespace="kube-system", uid="u", annotations={"kubernetes.io/config.hash": "abc"}
        ),
        spec=mirror.spec,
        status=mirror.status,
    )
    assert wish_of(static).cgroup_uid == "abc"
    assert wish_of(mirror).cgroup_uid == "u"


def test_calicos_own_annotations_are_noticed() -> None:
    calico = Pod(metadata=ObjectMeta(name="p", annotations={"qos.projectcalico.org/ingressBandwidth": "1M"}))
    assert wish_of(calico).calico
    assert not wish_of(pod(container(), ingress="1M")).calico
