"""The topologies that come from tables of others: current, valid, and as far apart as their sources say."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from kubekit.errors import ConfigError
from lab.topologies.generate import HERE, topologies
from lab.topology import load, parse


def rtts_ms(name: str) -> list[float]:
    topology = load(name)
    return sorted(topology.link(a, b).rtt_us / 1000 for a, b in combinations(topology.zones, 2))


def test_the_files_are_what_the_generator_writes() -> None:
    assert {name: (HERE / name).read_text() for name in topologies()} == topologies()


@pytest.mark.parametrize(
    ("name", "zones", "least_ms", "most_ms"),
    [
        ("planet", 30, 0.63, 329),
        ("continents", 4, 117, 260),
        ("cloud-region", 5, 0.13, 2.16),
        ("hundred-zones", 100, 0.5, 305),
    ],
)
def test_zones_are_as_far_apart_as_the_source_says(name: str, zones: int, least_ms: float, most_ms: float) -> None:
    assert len(load(name).zones) == zones
    found = rtts_ms(name)
    assert found[0] == pytest.approx(least_ms, rel=0.1)
    assert found[-1] == pytest.approx(most_ms, rel=0.1)


def test_pairs_of_near_zones_differ_by_a_tenth_and_40_us_or_more() -> None:
    found = [ms * 1000 for ms in rtts_ms("cloud-region")]
    assert all(b - a >= max(40, 0.1 * a) for a, b in pairwise(found))


REGIONS = """\
name: t
regions:
  - {name: r1, zones: [{name: z1, nodes: [{name: a}]}, {name: z2, nodes: [{name: b}]}]}
  - {name: r2, zones: [{name: z3, nodes: [{name: c}]}]}
links: [{between: [z1, z3], rtt: 7ms}]
"""


def test_a_link_between_regions_holds_for_their_zones_but_for_those_with_a_link_of_their_own() -> None:
    text = REGIONS + "regionLinks: [{between: [r1, r1], rtt: 1ms}, {between: [r2, r1], rtt: 9ms}]\n"
    topology = parse(text, "t")
    assert [topology.link(*p).rtt_us for p in (("z1", "z2"), ("z1", "z3"), ("z2", "z3"))] == [1000, 7000, 9000]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("regionLinks: [{between: [r1, r9], rtt: 1ms}]\n", "regionLinks[0].between"),
        ("regionLinks: [{between: [r1, r2], rtt: 1ms}, {between: [r2, r1], rtt: 1ms}]\n", "regionLinks[1].between"),
        ("regionLinks: [{between: [r1, r2], rtt: 9ms}]\n", "no link between z1 and z2"),
    ],
)
def test_region_links_that_make_no_sense_are_refused_by_field(more: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(REGIONS + more, "t")
    assert named in str(caught.value)
