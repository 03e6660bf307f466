"""The agent reads and repairs limits of real versions of the CNI bandwidth plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.bandwidth.rules import plugin_ifb_name
from tests.integration.agent.cni_plugins import MAIN_VERSION, pod_with_plugins
from tests.integration.agent.pods_on_node import NETWORK, enforce, plan, run, statuses_of_pod

pytestmark = [pytest.mark.real_nodes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")]
RATE = 20_000_000
VERSIONS = [("v1.1.1", "bridge"), (MAIN_VERSION, "ptp")]


@pytest.mark.parametrize(("version", "main"), VERSIONS)
def test_the_plugins_limits_are_read_changed_and_deleted_by_the_plugin(version: str, main: str, tmp_path: Path) -> None:
    burst = RATE // 10  # a tenth of a second
    requested = {"ingressRate": RATE, "ingressBurst": burst, "egressRate": RATE, "egressBurst": burst}
    with pod_with_plugins(version, main, 60, requested, tmp_path) as pod:
        spec = pod.spec(ingress=str(RATE), egress=str(RATE))
        statuses = statuses_of_pod(plan(spec), pod)
        limits = {d: (s.verdict, s.device_name, s.rate_bytes_per_s) for d, s in statuses.items()}
        name = plugin_ifb_name(NETWORK, pod.container)
        assert limits == {
            "ingress": ("enforced", pod.host_device, RATE // 8),
            "egress": ("enforced", name, RATE // 8),
        }
        # A changed annotation changes the limit of the running pod, whatever kind it was of.
        changed = statuses_of_pod(enforce(pod.spec(ingress="5M", egress="5M")), pod)
        assert {d: (s.verdict, s.rate_bytes_per_s) for d, s in changed.items()} == {
            "ingress": ("enforced", 625_000),
            "egress": ("enforced", 625_000),
        }
    assert name not in run("ip -br link")
