"""The agent reads and repairs limits of real versions of the CNI bandwidth plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.agent.cni_plugins import MAIN_VERSION, pod_with_plugins
from tests.integration.agent.pods_on_node import enforce, needs_root, read_statuses, run_command

pytestmark = [pytest.mark.real_nodes, needs_root]
RATE_BPS = 20_000_000


@pytest.mark.parametrize(("version", "main_plugin"), [("v1.1.1", "bridge"), (MAIN_VERSION, "ptp")])
def test_the_plugins_limits_are_read_changed_and_deleted_by_the_plugin(
    version: str, main_plugin: str, tmp_path: Path
) -> None:
    burst = RATE_BPS // 10  # a tenth of a second
    requested = {"ingressRate": RATE_BPS, "ingressBurst": burst, "egressRate": RATE_BPS, "egressBurst": burst}
    with pod_with_plugins(version, main_plugin, 60, requested, tmp_path) as pod:
        statuses = read_statuses(pod.make_spec(ingress=str(RATE_BPS), egress=str(RATE_BPS))).values()
        assert {status.verdict for status in statuses} == {"enforced"}
        assert [status.device_name for status in statuses] == [pod.host_device, pod.ifb_name]
        assert {status.rate_bytes_per_s for status in statuses} == {RATE_BPS // 8}

        # A changed annotation changes the limit of the running pod, whatever kind it was of.
        changed_statuses = enforce(pod.make_spec(ingress="5M", egress="5M")).values()
        assert [status.direction for status in changed_statuses] == ["ingress", "egress"]
        assert {status.verdict for status in changed_statuses} == {"enforced"}
        assert {status.rate_bytes_per_s for status in changed_statuses} == {5_000_000 // 8}
    assert pod.ifb_name not in run_command("ip -br link")
