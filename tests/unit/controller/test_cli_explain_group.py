"""`explain group` and the page say the same of a zone's loss."""

from __future__ import annotations

from controller.cli.explain_group import explain_placed_group
from controller.cli.shared import state_of
from controller.diagnosis.zones import build_network
from controller.views.groups import build_groups
from tests.unit.controller.made_up import make_snapshot


def test_command_and_page_say_the_same_of_a_zones_loss() -> None:
    snapshot = make_snapshot(3)
    answer = explain_placed_group(state_of(snapshot, snapshot.pods), "default/online-boutique")
    page = build_groups(snapshot, build_network(snapshot))[0]
    assert answer.survival.losses == page.survival.losses
    assert answer.placed == 11
    lost = [name for loss in answer.survival.losses for name in loss.stops]
    assert sorted(lost) == sorted(w.selector for w in page.workloads), (
        "one replica each: every workload goes with its zone"
    )
