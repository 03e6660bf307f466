"""Shipped topologies have their documented size and delays, and errors of topology files name file and field."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from kubekit.errors import ConfigError
from lab.commands.arguments import read_topology
from lab.topology import KUBELET_KINDS, Link, load_topology, parse_topology

TWO_ZONES = """\
name: two
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: n1}]}
      - {name: z2, nodes: [{name: n2, cpu: 2, kubelet: real}]}
links:
  - {between: [z1, z2], rtt: 5ms, jitter: 100us, loss: 0.5%}
"""


@pytest.mark.parametrize(
    ("name", "zone_count", "node_count", "min_rtt_us", "max_rtt_us"),
    [("four-zones", 4, 8, 1200, 27_000), ("kubecon", 15, 15, 1000, 24_000)],
)
def test_shipped_topologies_have_their_documented_zones_and_delays(
    name: str, zone_count: int, node_count: int, min_rtt_us: float, max_rtt_us: float
) -> None:
    topology = load_topology(name)
    assert len(topology.zones) == zone_count
    assert len(topology.nodes) == node_count
    rtts_us = [topology.link_between(*zones).rtt_us for zones in itertools.combinations(topology.zones, 2)]
    assert min(rtts_us) == pytest.approx(min_rtt_us, rel=0.1)
    assert max(rtts_us) == pytest.approx(max_rtt_us, rel=0.1)
    assert len(set(rtts_us)) == len(rtts_us), "every pair of zones has another delay"


def test_a_file_is_read_with_its_units_and_defaults(tmp_path: Path) -> None:
    topology_file = tmp_path / "mine.yaml"
    topology_file.write_text(TWO_ZONES)
    topology = load_topology(str(topology_file))
    assert topology.link_between("z2", "z1") == topology.link_between("z1", "z2") == Link(5000.0, 100.0, 0.005)
    assert topology.link_between("z1", "z1").rtt_us == 150.0
    nodes = [(node.name, node.cpu, node.nic_bps, node.kubelet) for node in topology.nodes]
    assert nodes == [("n1", "4", 10**9, "kwok"), ("n2", "2", 10**9, "real")]
    assert [node.name for node in topology.real_nodes] == ["n2"]
    assert len(topology.with_kubelets("real").real_nodes) == 2
    assert topology.with_kubelets("kwok").real_nodes == ()


def test_an_unknown_topology_is_an_error_with_the_shipped_names() -> None:
    with pytest.raises(ConfigError, match=r"--topology: nowhere: .*four-zones, kubecon, none"):
        load_topology("nowhere")


def test_the_option_nodes_makes_all_nodes_real_and_needs_a_topology() -> None:
    topology = read_topology("four-zones", "real")
    assert topology is not None
    assert len(topology.real_nodes) == len(topology.nodes)
    assert read_topology("none") is None
    for kubelets in KUBELET_KINDS:
        with pytest.raises(ConfigError, match="--nodes"):
            read_topology("none", kubelets)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("{name: n1}", "{name: n1, gpu: 1}", "regions[0].zones[0].nodes[0].gpu: is not a field"),
        ("rtt: 5ms, ", "", "links[0].rtt: is missing"),
        ("[{name: n1}]", "[]", "regions[0].zones[0].nodes: zone z1 has no node"),
        ("  - {between: [z1, z2], rtt: 5ms, jitter: 100us, loss: 0.5%}\n", "  []\n", "links: no link betw"),
        (
            "0.5%}\n",
            "0.5%}\n  - {between: [z2, z1], rtt: 1ms}\n",
            "links[1].between: the pair z1, z2 has a link already",
        ),
        ("between: [z1, z2]", "between: [z1, z9]", "links[0].between: 'z9' is not a zone"),
        ("between: [z1, z2]", "between: [z1, z1]", "links[0].between: names z1 twice"),
        ("name: n2", "name: n1", "two nodes named n1"),
        ("name: z2", "name: z1", "two zones named z1"),
        ("name: two", "name: two\nname: two", "is not YAML: line 2: the field name appears twice"),
        ("cpu: 2", "cpu: lots", "regions[0].zones[1].nodes[0].cpu: "),
        ("cpu: 2", "memory: 0", "regions[0].zones[1].nodes[0].memory: "),
        ("cpu: 2", "pods: -1", "regions[0].zones[1].nodes[0].pods: "),
        ("cpu: 2", "nic: 1 Gbit", "regions[0].zones[1].nodes[0].nic: "),
        ("name: n2", "name: Node_2", "regions[0].zones[1].nodes[0].name: "),
        ("kubelet: real", "kubelet: realistic", "nodes[0].kubelet: 'realistic'"),
        ("links:", "nodeDefaults: {kubelet: yes}\nlinks:", "nodeDefaults.kubelet"),
        ("jitter: 100us", "jitter: 6ms", "links[0].jitter: 6ms is more than the round trip"),
        *((TWO_ZONES, text, "lab.yaml: ") for text in ("", "[]", "just text", "name: [", "name: two")),
        *(("rtt: 5ms", f"rtt: {rtt}", "links[0].rtt: ") for rtt in ("fast", "5", "-5ms", "true", "[1]", ".inf", "11s")),
        *(("0.5%", loss, "links[0].loss: ") for loss in ("lots", "101%", "0.5", "-1%")),
    ],
)
def test_an_error_names_file_and_field(old: str, new: str, part: str) -> None:
    assert TWO_ZONES.count(old) == 1
    with pytest.raises(ConfigError, match=f"^lab.yaml: .*{re.escape(part.removeprefix('lab.yaml: '))}"):
        parse_topology(TWO_ZONES.replace(old, new), "lab.yaml")
