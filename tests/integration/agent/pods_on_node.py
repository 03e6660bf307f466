"""Pods as the kernel sees them: a network namespace with a veth pair to the host and a real process in a pod's cgroup.

Not simulated: namespace, devices, process and cgroup are the kernel's. Simulated: the container runtime that would have
made them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.bandwidth.annotations import PodBandwidthSpec, read_annotation
from agent.bandwidth.cni import Network, ResultCache
from agent.bandwidth.rules import RepairPolicy, plan_limits, plugin_ifb_name
from agent.bandwidth.snapshot import take_snapshot as take_snapshot_of
from agent.bandwidth.state import Action, BandwidthPlan, BandwidthSnapshot, LimitStatus
from agent.bandwidth.tc_writer import execute as execute_action

PROC = Path("/proc")
NETWORK = "test-net"
ENFORCE = RepairPolicy(enforce=True)


def run(command: str) -> str:
    """Run a command and return what it prints; its error is the test's."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def run_bench(script: str) -> Any:
    """Run a bench as a program in a network namespace of its own, where no other devices come and go; returns its JSON."""
    inside = ["unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, script]
    # With bytecode, as in the image.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(Path(__file__).parents[3])
    return json.loads(subprocess.run(inside, env=env, stdout=subprocess.PIPE, check=True).stdout)


def cgroup_hierarchy() -> Path:
    """A cgroup hierarchy that we can make groups in: v2 where it is mounted, else one of v1."""
    for root in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids")):
        if (root / "cgroup.procs").exists():
            return root
    msg = "no cgroup hierarchy is mounted"
    raise FileNotFoundError(msg)


@dataclass
class NodePod:
    """One pod on this machine."""

    name: str
    host_address: str
    address: str
    namespace: str
    host_device: str
    groups: Path
    node: tuple[str, ...] = ()
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    container: str = field(default_factory=lambda: uuid.uuid4().hex + uuid.uuid4().hex)
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the pod's process."""
        assert self.process is not None
        return self.process.pid

    def adopt(self, uid: str) -> None:
        """Put the process into the cgroup of the pod with this uid."""
        self.uid = uid
        group = self.groups / f"kubepods/burstable/pod{uid}/{self.container}"
        group.mkdir(parents=True)
        (group / "cgroup.procs").write_text(str(self.pid))

    def on_host(self, command: str) -> str:
        """Run a command in the network namespace that has the other end of the pod's devices."""
        return run(" ".join((*self.node, command)))

    def command(self, *arguments: str) -> list[str]:
        """A command inside the pod's network namespace."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def spec(self, *, ingress: str = "", egress: str = "") -> PodBandwidthSpec:
        """The pod as the rules see it."""
        texts = {"ingress": ingress, "egress": egress}
        limits = {direction: read_annotation(text) for direction, text in texts.items() if text}
        return PodBandwidthSpec(namespace="test", name=self.name, uid=self.uid, limits=limits)  # type: ignore[arg-type]


def take_snapshot(*limits: PodBandwidthSpec) -> BandwidthSnapshot:
    """The snapshot that the rules decide from."""
    return asyncio.run(take_snapshot_of(PROC, Network(NETWORK), limits, ResultCache(PROC / "none")))


def execute(action: Action) -> None:
    """Change the kernel as the agent does."""
    asyncio.run(execute_action(action))


def plan(*limits: PodBandwidthSpec, policy: RepairPolicy = ENFORCE) -> BandwidthPlan:
    """The plan of the rules for this machine now."""
    return plan_limits(take_snapshot(*limits), policy)


def enforce(*limits: PodBandwidthSpec, policy: RepairPolicy = ENFORCE) -> BandwidthPlan:
    """Execute the plan's actions, and plan again."""
    for action in plan(*limits, policy=policy).actions:
        execute(action)
    return plan(*limits, policy=policy)


def of_pod(found: BandwidthPlan, pod: NodePod) -> dict[str, LimitStatus]:
    """A pod's statuses, by direction."""
    return {status.direction: status for status in found.statuses if status.pod.uid == pod.uid}


def wait_until_inside(pid: int, namespace: str) -> None:
    """Wait until a process that `ip netns exec` started has entered the namespace."""
    inside = Path("/run/netns", namespace).stat().st_ino
    ends = time.monotonic() + 30
    while (PROC / str(pid) / "ns/net").stat().st_ino != inside:
        assert time.monotonic() < ends, f"process {pid} does not enter {namespace}"
        time.sleep(0.005)


@contextmanager
def node_pod(number: int, *, adopt_uid: bool = False, node_namespace: str = "") -> Iterator[NodePod]:
    """A pod, numbered 0..250; everything is removed afterwards, whatever happened.

    With ``adopt_uid`` its process gets into a cgroup only when `NodePod.adopt` says what the pod's uid is. With
    ``node_namespace`` its node is not this machine but the network namespace of that name.
    """
    tag = uuid.uuid4().hex[:6]
    top = cgroup_hierarchy() / f"natest-{tag}"
    pod = NodePod(
        name=f"pod-{number}-{tag}",
        host_address=f"10.251.{number}.1",
        address=f"10.251.{number}.2",
        namespace=f"napod-{tag}",
        host_device=f"nap{tag}",
        groups=top,
        node=("ip", "netns", "exec", node_namespace) if node_namespace else (),
    )
    try:
        run(f"ip netns add {pod.namespace}")
        pod.on_host(f"ip link add {pod.host_device} type veth peer name eth0 netns {pod.namespace}")
        pod.on_host(f"ip addr add {pod.host_address}/30 dev {pod.host_device}")
        pod.on_host(f"ip link set {pod.host_device} up")
        for part in (f"addr add {pod.address}/30 dev eth0", "link set eth0 up", "link set lo up"):
            run(f"ip -n {pod.namespace} {part}")
        pod.process = subprocess.Popen(pod.command("sleep", "3600"))
        wait_until_inside(pod.pid, pod.namespace)
        if not adopt_uid:
            pod.adopt(pod.uid)
        yield pod
    finally:
        if pod.process is not None:
            pod.process.kill()
            pod.process.wait()
        remove_groups(top)
        subprocess.run(["ip", "netns", "del", pod.namespace], check=False, capture_output=True)
        ifb = plugin_ifb_name(NETWORK, pod.container)
        for device in (pod.host_device, ifb):
            subprocess.run([*pod.node, "ip", "link", "del", device], check=False, capture_output=True)


def remove_groups(top: Path) -> None:
    """Remove cgroups whose processes have ended."""
    for directory, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):
            Path(directory).rmdir()
