"""Real nodes without a kubelet at hand: what the topology says, addresses, cgroups, images, and what is written for programs."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from lab.image_build import Recipe, fingerprint
from lab.network import plan_network, pod_ranges
from lab.realnode import cgroups
from lab.realnode.images import ImageReference, ImageStore
from lab.realnode.registry import Registry
from lab.topology import MAX_NODES, parse

MIXED = """\
name: mixed
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: a1}, {name: a2, kubelet: real}]}
      - {name: z2, nodes: [{name: b1, kubelet: real}]}
links:
  - {between: [z1, z2], rtt: 3ms}
"""


def test_no_two_nodes_of_any_two_slots_share_a_pod_address() -> None:
    node = parse(MIXED, "mixed.yaml").nodes[1]
    networks = [plan_network(slot, [node] * MAX_NODES) for slot in (0, 1, 249)]
    ranges = [ipaddress.IPv4Network(n.pod_ranges[0]) for network in networks for n in network.nodes]
    assert len(set(ranges)) == 3 * MAX_NODES
    whole = ipaddress.IPv4Network(pod_ranges(1)[0])
    assert [whole.supernet_of(one) for one in ranges] == [MAX_NODES <= i < 2 * MAX_NODES for i in range(len(ranges))]


def hierarchies_of_version_1(root: Path) -> Path:
    for name in ("cpu", "cpuset", "memory", "devices", "pids", "unified"):
        (root / name).mkdir()
    (root / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (root / "cpuset" / "cpuset.mems").write_text("0\n")
    (root / "cpuacct").symlink_to("cpu")
    return root


def test_a_nodes_cgroup_is_in_every_hierarchy_and_its_cpuset_is_filled_in(tmp_path: Path) -> None:
    root = hierarchies_of_version_1(tmp_path)
    cgroups.create("netaware-0-n1", root)
    cgroups.create("netaware-10-n1", root)
    assert (root / "cpuset" / "netaware-0-n1" / "cpuset.cpus").read_text() == "0-1\n"
    assert (root / "unified" / "netaware-0-n1").is_dir()
    assert cgroups.missing_controllers(root) == []
    join = cgroups.join("netaware-0-n1", "init", root)
    assert str(root / "memory/netaware-0-n1/cgroup.procs") in join
    assert not [word for word in join if "cpuacct" in word]


def test_only_the_slots_own_cgroups_are_removed_with_all_below_them(tmp_path: Path) -> None:
    root = hierarchies_of_version_1(tmp_path)
    (root / "memory" / "netaware-1-n1" / "kubepods" / "pod").mkdir(parents=True)
    (root / "unified" / "netaware-1-n1").mkdir()
    (root / "memory" / "netaware-10-n1").mkdir()
    cgroups.remove("netaware-1-*", root)
    assert [p.name for p in root.rglob("netaware-*")] == ["netaware-10-n1"]
    cgroups.remove("netaware-1-", root / "absent")


def test_a_controller_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb\n")
    assert cgroups.is_unified(tmp_path)
    assert cgroups.missing_controllers(tmp_path) == ["pids"]
    assert cgroups.join("n", "init", tmp_path)[4:] == [str(tmp_path / "n/init/cgroup.procs"), "--"]


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("netaware-agent", ImageReference("docker.io", "library/netaware-agent", "latest")),
        ("team/agent:1.2", ImageReference("docker.io", "team/agent", "1.2")),
        ("registry.k8s.io/pause:3.10.1", ImageReference("registry.k8s.io", "pause", "3.10.1")),
        ("localhost:5000/a/b:c", ImageReference("localhost:5000", "a/b", "c")),
        ("host:5000/a", ImageReference("host:5000", "a", "latest")),
    ],
)
def test_names_of_images_are_completed_as_containerd_does(name: str, reference: ImageReference) -> None:
    assert ImageReference.parse(name) == reference


async def test_the_registry_serves_an_image_under_the_name_of_any_registry(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    store = ImageStore(tmp_path / "store")
    store.add_program("registry.k8s.io/pause:1", program)
    async with TestClient(TestServer(Registry(store).application())) as client:
        answer = await client.get("/v2/pause/manifests/1", params={"ns": "registry.k8s.io"})
        manifest = json.loads(await answer.read())
        digest = answer.headers["Docker-Content-Digest"]
        assert answer.headers["Content-Type"] == manifest["mediaType"]
        assert (await client.get(f"/v2/pause/manifests/{digest}")).status == 200
        config = await client.get(f"/v2/pause/blobs/{manifest['config']['digest']}")
        assert json.loads(await config.read())["config"]["Entrypoint"] == ["/usr/local/bin/pause"]
        head = await client.head(f"/v2/pause/blobs/{manifest['layers'][0]['digest']}")
        assert int(head.headers["Content-Length"]) == manifest["layers"][0]["size"]
        for path in (
            "pause/manifests/2",
            "pause/manifests/1",
            "..%2f../manifests/1",
            "pause/blobs/sha256:..",
            "x/blobs/y",
        ):
            assert (await client.get(f"/v2/{path}")).status == 404
        assert (await client.get("/v2/")).status == 200
        (tmp_path / "outside").write_text("secret")
        refused = await client.get(f"/v2/{tmp_path.name}/manifests/outside", params={"ns": "../../.."})
        assert refused.status == 404
        assert "MANIFEST_UNKNOWN" in await refused.text()


def test_an_image_is_built_again_when_anything_changes_that_its_dockerfile_copies(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a AS b\nCOPY one two/ ./\nFROM c\nCOPY --from=b /x /x\n")
    (tmp_path / "two" / "__pycache__").mkdir(parents=True)
    (tmp_path / "one").write_text("1")
    (tmp_path / "two" / "code.py").write_text("2")
    recipe = Recipe("image", "Dockerfile", tmp_path)
    assert recipe.sources == ("one", "two")
    before = fingerprint(recipe)
    (tmp_path / "two" / "__pycache__" / "code.pyc").write_text("compiled")
    (tmp_path / "three").write_text("3")
    assert fingerprint(recipe) == before
    (tmp_path / "two" / "code.py").write_text("changed")
    assert fingerprint(recipe) != before
