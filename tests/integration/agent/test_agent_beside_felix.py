"""Calico's Felix as the one who limits: its own package sets the limits, our agent judges them and gets out of its way.

Calico is no Go module that can be had by version, so its sources are asked for: NETAWARE_CALICO names a checkout of 3.31 or later
(``git clone --depth 1 https://github.com/projectcalico/calico``). Without it what needs them is skipped; that our structure is the
one that Felix looks for is held without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.bandwidth.cni import Network
from agent.bandwidth.rules import Policy
from tests.integration.agent.pods_on_node import NETWORK, NodePod, node_pod, run
from tests.integration.agent.test_agent_limits import enforce, of_pod

pytestmark = [pytest.mark.real_nodes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")]
PACKAGE = "github.com/projectcalico/calico"
RATE = 20_000_000
DEFAULT_BURST = 4_294_967_296
"""Bits, where no annotation names one (libcalico-go, DefaultBurst of its QoS controls)."""
CALICO = Network(NETWORK, ("calico", "portmap"))
TOUCHING = Policy(enforce=True, repair_burst=True)


@pytest.fixture(scope="session")
def felix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that sets limits by Felix's own package."""
    sources, go = os.environ.get("NETAWARE_CALICO", ""), shutil.which("go")
    if not sources or go is None:
        pytest.skip("needs Go, and NETAWARE_CALICO to name a checkout of Calico")
    folder = tmp_path_factory.mktemp("felix")
    shutil.copy(Path(__file__).with_name("felix_limits.go"), folder / "main.go")
    replaced = "".join(f"replace {PACKAGE}{part} => {sources}{part}\n" for part in ("", "/lib/std"))
    (folder / "go.mod").write_text(f"module felixlimits\ngo 1.26\nrequire {PACKAGE} v0.0.0\n{replaced}")
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    done = subprocess.run(
        [go, "build", "-o", "felix", "."], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "felix"


@contextmanager
def workload() -> Iterator[NodePod]:
    """A pod whose device has a name as Calico gives it; Felix's intermediate devices go with it."""
    with node_pod(41) as pod:
        named = f"cali{pod.host_device[3:]}"
        run(f"ip link set {pod.host_device} down")
        run(f"ip link set {pod.host_device} name {named}")
        run(f"ip link set {named} up")
        pod.host_device = named
        before = felix_devices()
        try:
            yield pod
        finally:
            for name in felix_devices() - before:
                run(f"ip link del {name}")


def felix_devices() -> set[str]:
    return {line.split()[0] for line in run("ip -br link").splitlines() if line.startswith("bwcali")}


@pytest.mark.parametrize("burst", [DEFAULT_BURST, RATE // 10])
@pytest.mark.parametrize("rate", [1_000, 5_000_000, RATE, 500_000_000, 100_000_000_000])
def test_what_felix_sets_is_felixs_and_is_left_as_it_is(felix: Path, rate: int, burst: int) -> None:
    with workload() as pod:
        run(f"{felix} {pod.host_device} {rate} {rate} {burst}")
        before = run(f"tc qdisc show dev {pod.host_device}") + run(f"tc filter show dev {pod.host_device} ingress")
        judged = of_pod(enforce(pod.wish(ingress=str(rate), egress=str(rate)), policy=TOUCHING, network=CALICO), pod)
        assert {d: j.verdict for d, j in judged.items()} == {"ingress": "other-enforcer", "egress": "other-enforcer"}
        assert "not the CNI plugin" in judged["ingress"].detail
        assert judged["egress"].device in felix_devices()
        after = run(f"tc qdisc show dev {pod.host_device}") + run(f"tc filter show dev {pod.host_device} ingress")
        assert after == before


def test_felix_takes_over_a_limit_that_we_set_first(felix: Path) -> None:
    """On a ``clsact`` of ours its own code failed for ever with "invalid argument", and left an intermediate device each time."""
    with workload() as pod:
        wish = pod.wish(ingress=str(RATE), egress=str(RATE))
        judged = of_pod(enforce(wish, network=CALICO), pod)
        assert {d: j.verdict for d, j in judged.items()} == {"ingress": "enforced", "egress": "enforced"}
        ours = judged["egress"].device
        run(f"{felix} {pod.host_device} {RATE} {RATE} {DEFAULT_BURST}")
        judged = of_pod(enforce(wish, policy=TOUCHING, network=CALICO), pod)
        assert {d: j.verdict for d, j in judged.items()} == {"ingress": "other-enforcer", "egress": "other-enforcer"}
        assert ours not in run("ip -br link")
