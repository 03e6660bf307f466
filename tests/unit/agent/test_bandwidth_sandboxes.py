"""A pod's processes, counters and CNI results are found in procfs and in libcni's cache (``cachedInfo``)."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent.bandwidth.cni import Attachment, Network, ResultCache, read_network
from agent.bandwidth.counters import parse_device_counters, read_device_counters
from agent.bandwidth.meters import DeviceCounters
from agent.bandwidth.processes import find_sandboxes, is_in_host_network, parse_cgroup, read_pod_interface_index

UID = "0f3a1b2c-4d5e-4f60-8a7b-9c0d1e2f3a4b"
PLAIN_UID = UID.replace("-", "")
UNDERSCORED_UID = UID.replace("-", "_")
CONTAINER = "c0ffee" + "0" * 58
POD_SLICE = f"kubepods-burstable-pod{UNDERSCORED_UID}.slice"
CONTAINER_CGROUPS = (
    f"0::/kubepods.slice/kubepods-burstable.slice/{POD_SLICE}/cri-containerd-{CONTAINER}.scope",
    f"0::/kubepods.slice/kubepods-pod{UNDERSCORED_UID}.slice/crio-{CONTAINER}.scope",
    f"0::/kubepods/besteffort/pod{UID}/{CONTAINER}",
    f"0::/../../{POD_SLICE}/cri-containerd-{CONTAINER}.scope",
    f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-{POD_SLICE}/cri-containerd-{CONTAINER}.scope",
    f"12:pids:/kubepods/burstable/pod{UID}/{CONTAINER}\n3:cpu:/kubepods/burstable/pod{UID}/{CONTAINER}\n0::/",
    f"0::/system.slice/containerd.service/{POD_SLICE}:cri-containerd:{CONTAINER}",
    f"0::/kubepods.slice/kubepods-pod{PLAIN_UID}.slice/cri-containerd-{CONTAINER}.scope",
)
OTHER_CGROUPS = (
    "0::/",
    "12:pids:/user.slice\n0::/user.slice/user-0.slice",
    f"0::/kubepods.slice/{POD_SLICE}/crio-conmon-{CONTAINER}.scope",
    "",
)
REQUESTED_BANDWIDTH = {"ingressRate": 10_000_000, "ingressBurst": 2_147_483_647}
DEVICE_TABLE = b"""Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0: 5000      50    0    0    0     0          0         0    90000     900    0    0    0     0       0          0
"""


def write_process(proc: Path, pid: int, cgroup: str, start_ticks: int, name: str = "app") -> None:
    """Write a process's files in procfs; ``start_ticks`` is its start time since boot."""
    directory = proc / str(pid)
    (directory / "net").mkdir(parents=True)
    (directory / "cgroup").write_text(cgroup)
    stat = f"{pid} ({name}) S " + " ".join(["0"] * 18) + f" {start_ticks} 0 0\n"
    (directory / "stat").write_text(stat, errors="surrogateescape")


def encode_config(name: str, *plugins: str) -> str:
    """A network configuration as the cache has it."""
    return base64.b64encode(json.dumps({"name": name, "plugins": [{"type": p} for p in plugins]}).encode()).decode()


def write_entry(directory: Path, name: str, *, mtime: int = 1000, **changes: Any) -> None:
    """Write a cached result of the bandwidth plugin's network, except for ``changes``."""
    entry = {
        "kind": "cniCacheV1",
        "containerId": "a" * 64,
        "config": encode_config("cbr0", "bridge", "bandwidth"),
        "ifName": "eth0",
        "networkName": "cbr0",
        "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "p"], ["K8S_POD_UID", UID]],
        "capabilityArgs": {"bandwidth": REQUESTED_BANDWIDTH},
        "result": {"cniVersion": "1.0.0", "interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/x"}]},
        **changes,
    }
    (directory / name).write_text(json.dumps(entry))
    os.utime(directory / name, (mtime, mtime))


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        *((cgroup, (PLAIN_UID, CONTAINER)) for cgroup in CONTAINER_CGROUPS),
        (f"0::/kubepods/pod{UID}/init", (PLAIN_UID, "")),
        *((cgroup, None) for cgroup in OTHER_CGROUPS),
    ],
)
def test_a_cgroup_names_pod_and_container_in_every_layout(cgroup: str, expected: tuple[str, str] | None) -> None:
    assert parse_cgroup(cgroup) == expected


def test_the_oldest_process_of_a_pod_is_found(tmp_path: Path) -> None:
    pause_container = "f" * 64
    write_process(tmp_path, 300, f"0::/kubepods/pod{UID}/{CONTAINER}", 900)
    not_utf8 = "a) (\udcff"
    write_process(tmp_path, 40000, f"0::/kubepods/pod{UID}/{pause_container}", 100, name=not_utf8)
    write_process(tmp_path, 77, "0::/init.scope", 1)
    (tmp_path / "self").mkdir()
    (tmp_path / "88").mkdir()  # ended between listing and reading
    sandboxes = find_sandboxes(tmp_path, [UID, "11111111-2222-3333-4444-555555555555"])
    assert {uid: (sandbox.pid, sandbox.container_id) for uid, sandbox in sandboxes.items()} == {
        UID: (40000, pause_container)
    }


def test_the_index_of_eth0_is_read_from_outside_the_namespace(tmp_path: Path) -> None:
    write_process(tmp_path, 5, "0::/", 1)
    (tmp_path / "5" / "net" / "igmp").write_text(
        "Idx\tDevice    : Count Querier\tReporter\n"
        "1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n"
        "13\t\udcff      :     1      V3\n14\teth0      :     1      V3\n",
        errors="surrogateescape",
    )
    assert read_pod_interface_index(tmp_path, 5) == 14
    assert read_pod_interface_index(tmp_path, 6) is None


def test_a_process_in_our_network_namespace_is_recognized() -> None:
    assert is_in_host_network(Path("/proc"), os.getpid())
    assert not is_in_host_network(Path("/proc"), 2**22 + 1)


def test_counters_of_eth0_are_found_among_many_devices(tmp_path: Path) -> None:
    file = tmp_path / "42" / "net" / "dev"
    file.parent.mkdir(parents=True)
    file.write_bytes(
        DEVICE_TABLE.replace(b"    lo:", b"".join(b"  v%d: 7\n" % number for number in range(9000)) + b"    lo:")
    )
    assert read_device_counters(tmp_path, [42]) == {42: DeviceCounters(5000, 90000, 900)}
    assert parse_device_counters(DEVICE_TABLE.replace(b" eth0:", b"eth01:")) is None
    assert parse_device_counters(DEVICE_TABLE[:230]) is None, "cut before eth0"


def test_the_bandwidth_plugins_entry_wins_and_then_the_newest(tmp_path: Path) -> None:
    write_entry(tmp_path, "other", networkName="other", config=encode_config("other", "bridge"), mtime=3500)
    write_entry(tmp_path, "multus-a", networkName="multus", config=encode_config("multus", "multus"), mtime=3000)
    write_entry(tmp_path, "cbr0-old", containerId="old", mtime=1000)
    write_entry(tmp_path, "cbr0-new", containerId="new", mtime=2000)
    write_entry(tmp_path, "extra-net1", ifName="net1", networkName="extra", mtime=4000)
    cache = ResultCache(tmp_path)
    assert cache.read_attachments() == {
        UID: Attachment(
            pod_uid=UID,
            container_id="new",
            network="cbr0",
            plugins=("bridge", "bandwidth"),
            requested_bandwidth=REQUESTED_BANDWIDTH,
        )
    }

    (tmp_path / "cbr0-new").unlink()
    assert cache.read_attachments()[UID].container_id == "old"
    write_entry(tmp_path, "cbr0-old", containerId="rewritten", mtime=5000)
    assert cache.read_attachments()[UID].container_id == "rewritten"


def test_a_file_that_is_still_written_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "cbr0").write_bytes(b"")
    (tmp_path / "removed").symlink_to("nowhere")
    os.utime(tmp_path / "cbr0", (1000, 1000))
    cache = ResultCache(tmp_path)
    assert cache.read_attachments() == {}
    write_entry(tmp_path, "cbr0", mtime=1000)
    assert cache.read_attachments()[UID].network == "cbr0"


def test_other_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "rubbish").write_bytes(b"\xff{")
    write_entry(tmp_path, "other-kind", kind="cniCacheV9")
    write_entry(tmp_path, "no-uid", cniArgs=None)
    write_entry(tmp_path, "odd-config", config="!", result=None, capabilityArgs=None)
    assert ResultCache(tmp_path).read_attachments()[UID].plugins == ()
    assert ResultCache(tmp_path / "missing").read_attachments() == {}


def test_the_network_is_named_by_the_first_configuration(tmp_path: Path) -> None:
    (tmp_path / "10-broken.conflist").write_text("{")
    (tmp_path / "11-empty.conflist").write_text('{"name": "empty", "plugins": []}')
    (tmp_path / "12-typeless.conf").write_text('{"name": "typeless"}')
    (tmp_path / "20-calico.conflist").write_text('{"name": "k8s-pod-network", "plugins": [{"type": "calico"}]}')
    (tmp_path / "30-other.conf").write_text('{"name": "other", "type": "bridge"}')
    (tmp_path / "00-readme.txt").write_text('{"name": "no"}')
    assert read_network(tmp_path).name == "k8s-pod-network"
    assert read_network(tmp_path / "missing") == Network()
