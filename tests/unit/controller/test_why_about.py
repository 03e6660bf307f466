"""`why KIND NAME`: what touches a thing is told of it, by whatever name a finding calls it, and a typo does not read as health."""

from __future__ import annotations

import pytest

from controller.cli.diagnose import about
from controller.cli.session import NotFoundError
from controller.diagnosis.facts import Facts
from controller.diagnosis.snapshot import LeaseFact
from tests.unit.controller.situations import DOWN, NOW_S, agents, facts, network, no_node, status, waiting

FULL = "0/4 nodes are available: 4 Insufficient cpu."


def codes(kind: str, name: str, of: Facts) -> list[str]:
    return [finding.code for finding in about(kind, name, "web", of)]


@pytest.mark.parametrize("of", [no_node(FULL), facts(pods=waiting(created=NOW_S - 700))], ids=["no-node", "gated"])
def test_what_hurts_an_appgroups_pods_is_about_the_appgroup(of: Facts) -> None:
    assert len(codes("appgroup", "shop", of)) == 1


def test_a_zone_is_told_of_its_nodes_and_pairs_and_a_node_of_its_zone() -> None:
    one = facts(agents=agents(n1=DOWN))
    assert codes("zone", "z1", one) == codes("node", "n1", one) == ["agents-down"]
    assert codes("zone", "z0", one) == codes("node", "n0", one) == []
    both = facts(agents=agents(n1=DOWN, n3=DOWN))
    assert codes("node", "n3", both) == ["zone-without-agent"]
    assert codes("zone", "z0", both) == []
    assert codes("zone", "z0", facts(network=network(inferred=(("z0", "z1"),)))) == ["pairs-unmeasured"]


@pytest.mark.parametrize(("kind", "name"), [("appgroup", "shop"), ("zone", "z0"), ("node", "n0"), ("pod", "any")])
def test_what_stops_everything_is_about_each_thing(kind: str, name: str) -> None:
    frozen = facts(control_plane=status(lease=LeaseFact("a", NOW_S - 60)))
    assert codes(kind, name, frozen) == ["no-leader"]


@pytest.mark.parametrize("kind", ["appgroup", "zone", "node"])
def test_a_typo_does_not_read_as_health(kind: str) -> None:
    with pytest.raises(NotFoundError, match=f"there is no {kind} 'nope'"):
        about(kind, "nope", "web", facts())
