"""Ranges of pod addresses, and fingerprints of images. Real nodes are tested in tests/e2e/test_real_nodes.py."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from lab.image_build import ImageRecipe, fingerprint_recipe
from lab.network import plan_network, pod_range_of_slot
from lab.topology import MAX_NODES, REAL, LabNode

REAL_NODE = LabNode("a1", "r1", "z1", "4", "16Gi", "110", 10**9, REAL)


def test_nodes_of_all_slots_have_different_pod_ranges() -> None:
    networks = [plan_network(slot, [REAL_NODE] * MAX_NODES) for slot in (0, 1, 249)]
    ranges = [ipaddress.IPv4Network(n.pod_ranges[0]) for network in networks for n in network.node_networks]
    assert len(set(ranges)) == 3 * MAX_NODES
    slot_range = ipaddress.IPv4Network(pod_range_of_slot(1))
    assert [slot_range.supernet_of(node_range) for node_range in ranges] == [
        MAX_NODES <= i < 2 * MAX_NODES for i in range(len(ranges))
    ]


def test_the_fingerprint_changes_with_files_that_the_dockerfile_copies(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a AS b\nCOPY one two/ ./\nFROM c\nCOPY --from=b /x /x\n")
    (tmp_path / "two" / "__pycache__").mkdir(parents=True)
    (tmp_path / "one").write_text("1")
    (tmp_path / "two" / "code.py").write_text("2")
    recipe = ImageRecipe("image", "Dockerfile", tmp_path)
    assert recipe.sources == ("one", "two")
    before = fingerprint_recipe(recipe)
    (tmp_path / "two" / "__pycache__" / "code.pyc").write_text("compiled")
    (tmp_path / "three").write_text("3")
    assert fingerprint_recipe(recipe) == before
    (tmp_path / "two" / "code.py").write_text("changed")
    assert fingerprint_recipe(recipe) != before
