"""Annotations are parsed as by the CNI plugin, and compared with reservations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from agent.bandwidth.annotations import LimitSpec, read_annotation, read_spec
from kubekit import quantity
from kubekit.wire import Container, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements

BANDWIDTH = "network.aware.com/bandwidth"
TOO_SMALL = LimitSpec(None, "resource is unreasonably small (< 1kbit)")
TOO_LARGE = LimitSpec(None, "resource is unreasonably large (> 1Pbit)")


def make_container(amount: str | None = None, *, restart_policy: str | None = None) -> Container:
    return Container(
        resources=ResourceRequirements(limits={BANDWIDTH: amount} if amount else None), restart_policy=restart_policy
    )


def make_pod(*containers: Container, init_containers: Sequence[Container] = (), **annotations: str) -> Pod:
    named = {f"kubernetes.io/{key}-bandwidth": value for key, value in annotations.items()}
    return Pod(
        metadata=ObjectMeta(name="p", namespace="default", uid="u", annotations=named),
        spec=PodSpec(containers=list(containers), init_containers=list(init_containers)),
        status=PodStatus(phase="Running", pod_ip="10.0.0.1"),
    )


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("10M", LimitSpec(10**7)),
        ("1k", LimitSpec(1000)),
        ("1P", LimitSpec(10**15)),
        ("1Gi", LimitSpec(2**30)),
        ("1e6", LimitSpec(10**6)),
        # Fractions are rounded up before the bounds are checked.
        ("999500m", LimitSpec(1000)),
        ("1500500m", LimitSpec(1501)),
        ("0", TOO_SMALL),
        ("-5M", TOO_SMALL),
        ("999", TOO_SMALL),
        ("998500m", TOO_SMALL),
        ("1e30", TOO_LARGE),
        ("1000000000000000500m", TOO_LARGE),
        # The last text has Arabic digits.
        *((text, LimitSpec(None, f"{text!r} is not a quantity")) for text in ("ten", "10 M", "10Mbit", "١٠M")),
    ],
)
def test_an_annotation_is_a_rate_or_the_plugins_error(annotation: str, expected: LimitSpec) -> None:
    spec = read_annotation(annotation)
    assert spec.rate_bps == expected.rate_bps
    assert spec.problem.startswith(expected.problem)
    assert bool(spec.problem) is bool(expected.problem)


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("parse", [read_annotation, quantity.parse_int_or_none])
def test_a_long_annotation_does_not_block_an_agent_or_the_controller(parse: Callable[[str], object], sign: str) -> None:
    longest = sign + "9" * (256 << 10)
    started_s = time.process_time()
    parse(longest)
    assert time.process_time() - started_s < 0.5


def test_a_reservation_that_differs_from_the_limit_is_reported() -> None:
    mismatch = read_spec(make_pod(make_container("1000000"), ingress="10M", egress="10M")).mismatch
    assert "scheduled for 1000000 bit/s" in mismatch
    assert "kubernetes.io/ingress-bandwidth is 10000000 bit/s" in mismatch
    assert "kubernetes.io/egress-bandwidth is 10000000 bit/s" in mismatch


def test_reservations_of_containers_and_sidecars_add_up_as_in_the_scheduler() -> None:
    containers = make_container("10M"), make_container(), make_container("5M")
    sidecar, init_container = make_container("1M", restart_policy="Always"), make_container("100M")
    pod = make_pod(*containers, init_containers=[sidecar, init_container], egress="16M")
    assert read_spec(pod).mismatch == ""


def test_a_limit_without_a_reservation_and_the_reverse_are_no_mismatch() -> None:
    assert read_spec(make_pod(make_container(), egress="10M")).mismatch == ""
    assert read_spec(make_pod(make_container("10M"))).mismatch == ""
