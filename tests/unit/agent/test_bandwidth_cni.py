"""The node's CNI configuration and the runtime's cache of CNI results, whose entries have libcni's form (``cachedInfo``)."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from agent.bandwidth.cni import Attachment, Network, ResultCache, read_network

UID = "0f3a1b2c-0000-4000-8000-000000000001"
REQUESTED_BANDWIDTH = {"ingressRate": 10000000, "ingressBurst": 2147483647}


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


def test_other_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "rubbish").write_bytes(b"\xff{")
    write_entry(tmp_path, "other-kind", kind="cniCacheV9")
    write_entry(tmp_path, "no-uid", cniArgs=None)
    write_entry(tmp_path, "odd-config", config="!", result=None, capabilityArgs=None)
    assert ResultCache(tmp_path).read_attachments()[UID].plugins == ()
    assert ResultCache(tmp_path / "missing").read_attachments() == {}


def test_the_network_is_named_by_the_first_configuration(tmp_path: Path) -> None:
    (tmp_path / "10-broken.conflist").write_text("{")
    (tmp_path / "20-calico.conflist").write_text('{"name": "k8s-pod-network", "plugins": []}')
    (tmp_path / "30-other.conf").write_text('{"name": "other"}')
    (tmp_path / "00-readme.txt").write_text('{"name": "no"}')
    assert read_network(tmp_path).name == "k8s-pod-network"
    assert read_network(tmp_path / "missing") == Network()
