"""`explain group`: what zones hold, what surviving one costs, and that a group that does not ask for it is told the price."""

from __future__ import annotations

import msgspec
import pytest

from controller.cli.explain_group import (
    ExplainedGroup,
    explain_placed_group,
    price_line,
)
from controller.cli.shared import inputs_of
from controller.cluster.pod_info import PodReader
from controller.cluster.volumes import Volumes
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.diagnosis.zones import build_network
from controller.views.groups import build_groups
from tests.unit.controller.made_up import make_snapshot


def explained(snapshot: ClusterSnapshot) -> ExplainedGroup:
    inputs = inputs_of(snapshot, map(PodReader().read, snapshot.pods), Volumes())
    return explain_placed_group(inputs, "default/online-boutique", snapshot.pods)


def with_spread(snapshot: ClusterSnapshot, spread: str) -> ClusterSnapshot:
    group = snapshot.groups[0]
    meta = msgspec.structs.replace(group.metadata, annotations={"netaware.io/spread": spread})
    return msgspec.structs.replace(snapshot, groups=(msgspec.structs.replace(group, metadata=meta),))


def test_command_and_page_say_the_same_of_a_zones_loss() -> None:
    snapshot = make_snapshot(3)
    answer = explained(snapshot)
    page = build_groups(snapshot, build_network(snapshot))[0]
    assert answer.survival.losses == page.survival.losses
    assert answer.placed == 11
    lost = [name for loss in answer.survival.losses for name in loss.stops]
    assert sorted(lost) == sorted(w.selector for w in page.workloads), (
        "one replica each: every workload goes with its zone"
    )


def twice(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Two replicas of everything, on nodes with room for pods."""
    nodes = [
        msgspec.structs.replace(n, status=msgspec.structs.replace(n.status, allocatable={"pods": "110"}))
        for n in snapshot.nodes
    ]
    more = [
        msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, name=f"{pod.metadata.name}-more"))
        for pod in snapshot.pods
    ]
    return msgspec.structs.replace(snapshot, nodes=tuple(nodes), pods=(*snapshot.pods, *more))


def test_a_group_that_fits_nowhere_has_no_price() -> None:
    assert explained(make_snapshot(3)).could_pay_us is None


@pytest.mark.parametrize("spread", ["zone", "none"])
def test_the_price_is_what_plans_pay_or_would(spread: str) -> None:
    answer = explained(with_spread(twice(make_snapshot(3)), spread))
    paid, could = answer.survival.price_us, answer.could_pay_us
    price = paid if spread == "zone" else could
    assert (could if spread == "zone" else paid) is None
    assert price is not None
    assert price > 500, "half of the calls to any replica leave their zone"
    assert f"{price:.0f} µs" in price_line(answer)
