"""Sets up pods without a container runtime: a network namespace with a veth pair to the host, and a process in a pod's cgroup."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from agent.bandwidth.annotations import PodBandwidthSpec, read_annotation
from agent.bandwidth.cni import Network, ResultCache
from agent.bandwidth.rules import RepairPolicy, plan_limits, plugin_ifb_name
from agent.bandwidth.snapshot import take_snapshot as take_snapshot_of
from agent.bandwidth.state import PLUGIN_HANDLE, Action, BandwidthPlan, BandwidthSnapshot, LimitStatus, SetEgressLimit
from agent.bandwidth.tc_writer import execute as execute_action
from tests.support.plugin_bucket import compute_plugin_params

PROC = Path("/proc")
NETWORK = "test-net"
ENFORCE = RepairPolicy(enforce=True)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")


def run_command(command: str) -> str:
    """Run a command and return its output; fails with its errors."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def run_bench(script: str) -> Any:
    """Run a benchmark in a network namespace without other devices; returns the JSON that it prints, empty without root."""
    if os.geteuid() != 0:
        print(f"{Path(script).stem}: needs root, skipped", file=sys.stderr)
        return {}
    inside = ["unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, script]
    # Images have bytecode.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(Path(__file__).parents[3])
    return json.loads(subprocess.run(inside, env=env, stdout=subprocess.PIPE, check=True).stdout)


def find_cgroup_hierarchy() -> Path:
    """A writable cgroup hierarchy: v2 if it is mounted, else one of v1."""
    for root in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids")):
        if (root / "cgroup.procs").exists():
            return root
    msg = "no cgroup hierarchy is mounted"
    raise FileNotFoundError(msg)


@dataclass
class NodePod:
    """A pod on this machine."""

    name: str
    host_address: str
    address: str
    namespace: str
    host_device: str
    cgroup_root: Path
    node: tuple[str, ...] = ()
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    container: str = field(default_factory=lambda: uuid.uuid4().hex + uuid.uuid4().hex)
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def ifb_name(self) -> str:
        """The name that the CNI bandwidth plugin gives the pod's ifb."""
        return plugin_ifb_name(NETWORK, self.container)

    def join_cgroup(self, uid: str) -> None:
        """Move the process into the cgroup of the pod with this uid."""
        self.uid = uid
        group = self.cgroup_root / f"kubepods/burstable/pod{uid}/{self.container}"
        group.mkdir(parents=True)
        (group / "cgroup.procs").write_text(str(self.pid))

    def run_on_host(self, command: str) -> str:
        return run_command(" ".join((*self.node, command)))

    def make_command(self, *arguments: str) -> list[str]:
        """The arguments that run a command in the pod's network namespace."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def make_spec(self, *, ingress: str = "", egress: str = "") -> PodBandwidthSpec:
        """The pod with limits, as the rules read it."""
        texts = {"ingress": ingress, "egress": egress}
        limits = {direction: read_annotation(text) for direction, text in texts.items() if text}
        return PodBandwidthSpec(namespace="test", name=self.name, uid=self.uid, limits=limits)  # type: ignore[arg-type]


def take_snapshot(*limits: PodBandwidthSpec) -> BandwidthSnapshot:
    """The snapshot of this machine for the rules."""
    return asyncio.run(take_snapshot_of(PROC, Network(NETWORK), limits, ResultCache(PROC / "none")))


def execute(action: Action) -> None:
    asyncio.run(execute_action(action))


def plan_on_machine(*limits: PodBandwidthSpec, policy: RepairPolicy = ENFORCE) -> BandwidthPlan:
    """The plan of the rules for this machine."""
    return plan_limits(take_snapshot(*limits), policy)


def read_statuses(limits: PodBandwidthSpec, *, policy: RepairPolicy = ENFORCE) -> dict[str, LimitStatus]:
    """The statuses of a pod's limits, by direction."""
    statuses = plan_on_machine(limits, policy=policy).statuses
    return {status.direction: status for status in statuses if status.pod.uid == limits.uid}


def enforce(limits: PodBandwidthSpec, *, policy: RepairPolicy = ENFORCE) -> dict[str, LimitStatus]:
    """Execute the plan's actions; returns the statuses of the pod's limits after that, by direction."""
    for action in plan_on_machine(limits, policy=policy).actions:
        execute(action)
    return read_statuses(limits, policy=policy)


def set_limits_as_plugin(pod: NodePod, rate_bps: int, burst_bytes: int) -> None:
    """Set limits with this burst in both directions, as the CNI bandwidth plugin does."""
    device_index = socket.if_nametoindex(pod.host_device)
    params = compute_plugin_params(rate_bps, burst_bytes)
    execute(SetEgressLimit(device_index, pod.host_device, pod.ifb_name, 1500, params, alias="", add_ingress_qdisc=True))
    with IPRoute() as netlink:  # with our exact parameters, see `agent.bandwidth.tc_writer`
        for index in (device_index, socket.if_nametoindex(pod.ifb_name)):
            netlink.tc("replace", "tbf", index=index, handle=PLUGIN_HANDLE, params=params)


def wait_until_in_namespace(pid: int, namespace: str) -> None:
    """Wait until a process of `ip netns exec` has entered the namespace."""
    inside = Path("/run/netns", namespace).stat().st_ino
    ends = time.monotonic() + 30
    while (PROC / str(pid) / "ns/net").stat().st_ino != inside:
        assert time.monotonic() < ends, f"process {pid} does not enter {namespace}"
        time.sleep(0.005)


@contextmanager
def running_process(pod: NodePod) -> Iterator[None]:
    """Run the pod's process in a new network namespace; both are removed after the block, with the pod's cgroups."""
    try:
        run_command(f"ip netns add {pod.namespace}")
        pod.process = subprocess.Popen(pod.make_command("sleep", "3600"))
        wait_until_in_namespace(pod.pid, pod.namespace)
        yield
    finally:
        if pod.process is not None:
            pod.process.kill()
            pod.process.wait()
        for directory, _, _ in os.walk(pod.cgroup_root, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()
        subprocess.run(["ip", "netns", "del", pod.namespace], check=False, capture_output=True)


@contextmanager
def node_pod(number: int, *, adopt_uid: bool = False, node_namespace: str = "") -> Iterator[NodePod]:
    """A pod with a number of 0 to 250; everything is removed after the block.

    With ``adopt_uid`` the caller moves its process into a cgroup by `NodePod.join_cgroup`. With ``node_namespace`` its node is that
    network namespace instead of this machine.
    """
    tag = uuid.uuid4().hex[:6]
    pod = NodePod(
        name=f"pod-{number}-{tag}",
        host_address=f"10.251.{number}.1",
        address=f"10.251.{number}.2",
        namespace=f"napod-{tag}",
        host_device=f"nap{tag}",
        cgroup_root=find_cgroup_hierarchy() / f"natest-{tag}",
        node=("ip", "netns", "exec", node_namespace) if node_namespace else (),
    )
    try:
        with running_process(pod):
            pod.run_on_host(f"ip link add {pod.host_device} type veth peer name eth0 netns {pod.namespace}")
            pod.run_on_host(f"ip addr add {pod.host_address}/30 dev {pod.host_device}")
            pod.run_on_host(f"ip link set {pod.host_device} up")
            for part in (f"addr add {pod.address}/30 dev eth0", "link set eth0 up", "link set lo up"):
                run_command(f"ip -n {pod.namespace} {part}")
            if not adopt_uid:
                pod.join_cgroup(pod.uid)
            yield pod
    finally:
        for device in (pod.host_device, pod.ifb_name):
            subprocess.run([*pod.node, "ip", "link", "del", device], check=False, capture_output=True)
