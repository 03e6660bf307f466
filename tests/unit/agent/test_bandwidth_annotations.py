"""What pods ask for, in good and bad input."""

from __future__ import annotations

import pytest

from agent.bandwidth.annotations import read_annotation, scheduled_bps, spec_of
from kubekit.wire import Container, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements

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


def test_a_pod_that_reserves_another_bandwidth_than_it_is_limited_to_is_reported() -> None:
    sample = spec_of(pod(container("1000000"), ingress="10M", egress="10M"))
    assert sample.mismatch == (
        "scheduled for 1000000 bit/s of network.aware.com/bandwidth, but kubernetes.io/ingress-bandwidth is 10000000 bit/s"
        " and kubernetes.io/egress-bandwidth is 10000000 bit/s"
    )
    assert spec_of(pod(container("10M"), ingress="10M", egress="10000k")).mismatch == ""
    assert spec_of(pod(container("10M"))).mismatch == ""
    assert spec_of(pod(container(), egress="10M")).mismatch == ""
