"""What proposals foretold: written, read again, never more than the page should carry, and held against what came of it."""

from __future__ import annotations

import msgspec
import pytest

from controller.cluster.resources import AppGroup
from controller.traffic.foretold import LARGEST, Foretold, read_foretold, write_foretold
from controller.views.groups import build_groups
from controller.views.network import build_network
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION, PROPOSAL_ANNOTATION
from tests.unit.controller.made_up import make_snapshot

SAID = Foretold(
    1.0, {"a": {"b": 10.0}}, {"a": {"a": 10.0}}, {"P1": {"a": 1}, "P2": {"b": 1}}, {"P1": {"a": 1}, "P2": {"a": 1}}
)


def group(text: str) -> AppGroup:
    return msgspec.convert({"metadata": {"name": "g", "annotations": {PROPOSAL_ANNOTATION: text}}}, AppGroup)


def test_what_was_written_is_read() -> None:
    assert read_foretold(group(write_foretold(SAID))) == SAID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"at": "x"}',
        '{"at": 1, "zonesThen": {"a": {"b": -1}}}',
        "[" * 100_000,
        " " * (LARGEST + 1),
    ],
)
def test_what_makes_no_sense_is_no_proposal(text: str) -> None:
    assert read_foretold(group(text)) is None


def test_a_large_group_goes_without_places_and_a_huge_table_without_anything() -> None:
    places = {f"workload-{number}": {"zone-1": 1, "zone-2": 1} for number in range(2000)}
    large = msgspec.structs.replace(SAID, places_before=places, places_then=places)
    assert read_foretold(group(write_foretold(large))) == msgspec.structs.replace(
        SAID, places_before={}, places_then={}
    )
    zones = {f"zone-{number}": {f"zone-{other}": 1.5 for other in range(100)} for number in range(100)}
    assert write_foretold(msgspec.structs.replace(SAID, zones_before=zones)) == ""


def test_a_view_holds_it_against_what_came_of_it() -> None:
    snapshot = make_snapshot(3)
    (found,) = snapshot.groups
    notes = {
        PROPOSAL_ANNOTATION: write_foretold(SAID),
        MEASURED_WEIGHTS_ANNOTATION: '{"P1": {"P2": 100.0}}',
    }
    metadata = msgspec.structs.replace(found.metadata, annotations=notes)
    snapshot = msgspec.structs.replace(snapshot, groups=(msgspec.structs.replace(found, metadata=metadata),))
    (view,) = build_groups(snapshot, build_network(snapshot))
    assert view.proposal is not None
    assert view.proposal.moved == ("P2",)
    told = {(pair.origin, pair.destination): pair for pair in view.proposal.zones}
    assert (told["a", "b"].before_bps, told["a", "b"].foretold_bps, told["a", "b"].now_bps) == (80.0, 0.0, 0.0)
    assert sum(pair.now_bps or 0.0 for pair in told.values()) == pytest.approx(800.0)
    (bare,) = build_groups(make_snapshot(3), build_network(make_snapshot(3)))
    assert bare.proposal is None
