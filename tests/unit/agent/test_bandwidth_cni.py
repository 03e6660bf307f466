"""The runtime's cache of CNI results. The entries have libcni's form (libcni/api.go, ``cachedInfo``)."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from agent.bandwidth.cni import Attachment, ResultCache

UID = "0f3a1b2c-0000-4000-8000-000000000001"


def entry(**changes: Any) -> dict[str, Any]:
    network = {"name": "cbr0", "plugins": [{"type": "bridge"}, {"type": "bandwidth"}]}
    return {
        "kind": "cniCacheV1",
        "containerId": "a" * 64,
        "config": base64.b64encode(json.dumps(network).encode()).decode(),
        "ifName": "eth0",
        "networkName": "cbr0",
        "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "p"], ["K8S_POD_UID", UID]],
        "capabilityArgs": {"bandwidth": {"ingressRate": 10000000, "ingressBurst": 2147483647}},
        "result": {"cniVersion": "1.0.0", "interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/x"}]},
        **changes,
    }


def write(directory: Path, name: str, content: dict[str, Any], mtime: int = 1000) -> None:
    (directory / name).write_text(json.dumps(content))
    os.utime(directory / name, (mtime, mtime))


def test_the_bandwidth_plugins_entry_wins_and_then_the_newest(tmp_path: Path) -> None:
    multus = base64.b64encode(json.dumps({"name": "multus", "type": "multus"}).encode()).decode()
    bridge = base64.b64encode(json.dumps({"name": "other", "plugins": [{"type": "bridge"}]}).encode()).decode()
    write(tmp_path, "other", entry(networkName="other", config=bridge), mtime=3500)
    write(tmp_path, "multus-a", entry(networkName="multus", config=multus), mtime=3000)
    write(tmp_path, "cbr0-old", entry(containerId="old"), mtime=1000)
    write(tmp_path, "cbr0-new", entry(containerId="new"), mtime=2000)
    write(tmp_path, "extra-net1", entry(ifName="net1", networkName="extra"), mtime=4000)
    cache = ResultCache(tmp_path)
    assert cache.read_attachments("eth0") == {
        UID: Attachment(
            pod_uid=UID,
            interface="eth0",
            container_id="new",
            network="cbr0",
            plugins=("bridge", "bandwidth"),
            requested_bandwidth={"ingressRate": 10000000, "ingressBurst": 2147483647},
        )
    }
    (tmp_path / "cbr0-new").unlink()
    assert cache.read_attachments("eth0")[UID].container_id == "old"
    write(tmp_path, "cbr0-old", entry(containerId="rewritten"), mtime=5000)
    assert cache.read_attachments("eth0")[UID].container_id == "rewritten"


def test_other_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "rubbish").write_bytes(b"\xff{")
    write(tmp_path, "other-kind", entry(kind="cniCacheV9"))
    write(tmp_path, "no-uid", entry(cniArgs=None))
    write(tmp_path, "odd-config", entry(config="!", result=None, capabilityArgs=None))
    found = ResultCache(tmp_path).read_attachments("eth0")
    assert found[UID].plugins == ()
    assert ResultCache(tmp_path / "missing").read_attachments("eth0") == {}
