"""Topology files: what ships is what is promised, and every mistake is named with file and field."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubekit.errors import ConfigError
from lab.topology import Link, load, parse, parse_duration_us, parse_loss, site_pair


def minimal() -> dict[str, Any]:
    zones = [{"name": "z1", "nodes": [{"name": "n1"}]}, {"name": "z2", "nodes": [{"name": "n2", "cpu": 2}]}]
    return {
        "name": "two",
        "regions": [{"name": "r1", "zones": zones}],
        "links": [{"between": ["z1", "z2"], "rtt": "5ms", "jitter": "100us", "loss": "0.5%", "rate": "100M"}],
    }


def error_of(data: dict[str, Any] | str) -> str:
    text = data if isinstance(data, str) else yaml.safe_dump(data)
    with pytest.raises(ConfigError) as caught:
        parse(text, "lab.yaml")
    return str(caught.value)


def test_four_zones_is_two_regions_of_four_zones_with_eight_nodes() -> None:
    topology = load("four-zones")
    assert topology.zones == ("z1", "z2", "z3", "z4")
    assert [node.name for node in topology.nodes] == [f"n{i}" for i in range(1, 9)]
    assert {node.region for node in topology.nodes} == {"us-west-1", "us-east-1"}
    assert topology.link("z1", "z2").rtt_us < topology.link("z1", "z3").rtt_us


def test_kubecon_is_a_master_and_fifteen_zones_with_a_hundred_and_five_different_delays() -> None:
    topology = load("kubecon")
    assert len(topology.nodes) == 16
    assert topology.zones == tuple(f"z{i}" for i in range(1, 16))
    assert {node.region for node in topology.nodes} == {"belgium"}
    master = topology.nodes[0]
    assert (master.name, master.zone, master.control_plane) == ("master", "", True)
    delays = {topology.link(a, b).rtt_us for a, b in itertools.combinations(topology.zones, 2)}
    assert len(delays) == 105


@pytest.mark.parametrize("name", ["cloud-region", "continents", "four-zones", "kubecon"])
def test_every_pair_of_zones_has_a_delay_of_its_own(name: str) -> None:
    topology = load(name)
    pairs = list(itertools.combinations(topology.zones, 2))
    assert len({topology.link(a, b).rtt_us for a, b in pairs}) == len(pairs)


def test_addresses_are_of_ipv4_and_on_demand_of_both_families_but_of_no_other_choice() -> None:
    assert not parse(yaml.safe_dump(minimal()), "lab.yaml").dual_stack
    assert parse(yaml.safe_dump(minimal() | {"ipFamilies": ["IPv4", "IPv6"]}), "lab.yaml").dual_stack
    for families in ([], ["IPv6"], ["IPv6", "IPv4"], ["IPv5"]):
        assert "lab.yaml: ipFamilies" in error_of(minimal() | {"ipFamilies": families})


def test_a_file_is_read_with_its_units() -> None:
    topology = parse(yaml.safe_dump(minimal()), "lab.yaml")
    assert topology.link("z2", "z1") == Link(rtt_us=5000.0, jitter_us=100.0, loss=0.005, rate_bps=100_000_000)
    assert [(n.name, n.cpu, n.nic_bps) for n in topology.nodes] == [("n1", "4", 10**9), ("n2", "2", 10**9)]
    assert topology.link("z1", "z1").rtt_us == 150.0


def test_a_topology_from_a_path_and_an_unknown_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(minimal()))
    assert load(str(file)).name == "two"
    with pytest.raises(ConfigError, match=r"--topology: nowhere: .*four-zones, hundred-zones, kubecon, planet, none"):
        load("nowhere")


def test_an_unknown_field_is_named_with_its_path() -> None:
    data = minimal()
    data["regions"][0]["zones"][1]["nodes"][0]["gpu"] = 1
    assert error_of(data).startswith("lab.yaml: regions[0].zones[1].nodes[0].gpu: is no field of this section")
    data = minimal() | {"zonez": []}
    assert error_of(data).startswith("lab.yaml: zonez: is no field of this section")


def test_a_missing_field_is_named_with_its_path() -> None:
    data = minimal()
    del data["links"][0]["rtt"]
    assert error_of(data).startswith("lab.yaml: links[0].rtt: is missing")


@pytest.mark.parametrize("delay", ["fast", "5", 5, "-5ms", "5 parsecs", True, [1], None, ".inf", "1e3ms", "11s"])
def test_a_delay_that_is_no_number_with_a_unit_is_named(delay: object) -> None:
    data = minimal()
    data["links"][0]["rtt"] = delay
    assert error_of(data).startswith("lab.yaml: links[0].rtt: ")


@pytest.mark.parametrize("loss", ["lots", "101%", 0.5, "-1%"])
def test_a_loss_that_is_no_percentage_is_named(loss: object) -> None:
    data = minimal()
    data["links"][0]["loss"] = loss
    assert error_of(data).startswith("lab.yaml: links[0].loss: ")


def test_a_zone_without_nodes_is_named() -> None:
    data = minimal()
    data["regions"][0]["zones"][1]["nodes"] = []
    assert error_of(data).startswith("lab.yaml: regions[0].zones[1].nodes: zone z2 has no node")


def test_a_pair_without_a_link_is_named() -> None:
    data = minimal() | {"links": []}
    assert error_of(data).startswith("lab.yaml: links: no link between z1 and z2")


def test_a_link_given_twice_in_either_direction_is_an_error() -> None:
    data = minimal()
    data["links"].append({"between": ["z2", "z1"], "rtt": "1ms"})
    assert error_of(data).startswith("lab.yaml: links[1].between: the pair z1, z2 has a link already")


def test_a_link_to_nowhere_or_to_itself_is_an_error() -> None:
    data = minimal()
    data["links"][0]["between"] = ["z1", "z9"]
    assert "'z9' is no zone" in error_of(data)
    data["links"][0]["between"] = ["z1", "z1"]
    assert "names z1 twice" in error_of(data)


def test_names_given_twice_are_errors() -> None:
    data = minimal()
    data["regions"][0]["zones"][1]["nodes"][0]["name"] = "n1"
    assert "two nodes named n1" in error_of(data)
    data = minimal()
    data["regions"][0]["zones"][1]["name"] = "z1"
    assert "two zones named z1" in error_of(data)


def test_a_field_given_twice_is_an_error_with_its_line() -> None:
    assert error_of("name: a\nname: b\nregions: []\n") == "lab.yaml: is not YAML: line 2: the field name is there twice"


@pytest.mark.parametrize(
    ("field", "value"), [("cpu", "lots"), ("memory", "0"), ("pods", "-1"), ("nic", "1 Gbit"), ("name", "Node_1")]
)
def test_a_node_that_cannot_be_is_named_with_the_field(field: str, value: str) -> None:
    data = minimal()
    data["regions"][0]["zones"][0]["nodes"][0][field] = value
    assert error_of(data).startswith(f"lab.yaml: regions[0].zones[0].nodes[0].{field}: ")


def test_jitter_above_the_round_trip_is_an_error() -> None:
    data = minimal()
    data["links"][0]["jitter"] = "6ms"
    assert error_of(data).startswith("lab.yaml: links[0].jitter: 6ms is more than the round trip")


@pytest.mark.parametrize("text", ["", "[]", "just text", "name: [", "name: two"])
def test_a_file_that_is_no_topology_is_an_error(text: str) -> None:
    assert error_of(text).startswith("lab.yaml: ")


def test_durations_and_losses() -> None:
    assert [parse_duration_us(text, "rtt") for text in ("500us", "1.5ms", "2s", "0", 0)] == [
        500.0,
        1500.0,
        2e6,
        0.0,
        0.0,
    ]
    assert [parse_loss(text, "loss") for text in ("0.1%", "100%", 0)] == [0.001, 1.0, 0.0]


def test_a_pair_has_one_key_whichever_way_it_is_named() -> None:
    assert site_pair("b", "a") == site_pair("a", "b") == ("a", "b")
