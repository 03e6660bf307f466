"""What the runtime's cache of CNI results says. The entries have libcni's form (libcni/api.go, ``cachedInfo``)."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from agent.bandwidth.cni import ResultCache, parse_cached

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


def test_an_entry_names_container_network_devices_plugins_and_what_was_asked_for() -> None:
    parsed = parse_cached(json.dumps(entry()).encode())
    assert parsed is not None
    uid, interface, attachment = parsed
    assert (uid, interface, attachment.container, attachment.network) == (UID, "eth0", "a" * 64, "cbr0")
    assert attachment.plugins == ("bridge", "bandwidth")
    assert attachment.requested == {"ingressRate": 10000000, "ingressBurst": 2147483647}


def test_of_several_entries_the_bandwidth_plugins_then_the_newest_counts(tmp_path: Path) -> None:
    multus = base64.b64encode(json.dumps({"name": "multus", "type": "multus"}).encode()).decode()
    write(tmp_path, "multus-a", entry(networkName="multus", config=multus), mtime=3000)
    write(tmp_path, "cbr0-old", entry(containerId="old"), mtime=1000)
    write(tmp_path, "cbr0-new", entry(containerId="new"), mtime=2000)
    write(tmp_path, "extra-net1", entry(ifName="net1", networkName="extra"), mtime=4000)
    cache = ResultCache(tmp_path)
    assert (cache.read("eth0")[UID].network, cache.read("eth0")[UID].container) == ("cbr0", "new")
    (tmp_path / "cbr0-new").unlink()
    assert cache.read("eth0")[UID].container == "old"
    write(tmp_path, "cbr0-old", entry(containerId="rewritten"), mtime=5000)
    assert cache.read("eth0")[UID].container == "rewritten"


def test_files_that_are_something_else_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "rubbish").write_bytes(b"\xff{")
    write(tmp_path, "other-kind", entry(kind="cniCacheV9"))
    write(tmp_path, "no-uid", entry(cniArgs=None))
    write(tmp_path, "odd-config", entry(config="!", result=None, capabilityArgs=None))
    found = ResultCache(tmp_path).read("eth0")
    assert found[UID].plugins == ()
    assert ResultCache(tmp_path / "missing").read("eth0") == {}
