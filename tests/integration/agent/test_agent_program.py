"""The agent, run as a program, publishes capacity and limits pods on a real API server, also after outages."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from agent.bandwidth.annotations import Direction
from agent.capacity.publisher import POLL_S
from agent.node import OwnNode
from kubekit.client import JSON_PATCH, Client
from kubekit.wire import EVENTS, NODES, PODS, Pod, Wire
from lab.controlplane import ControlPlane, find_free_ports
from lab.credentials import save_credentials
from lab.polling import poll_until
from tests.integration.agent.agents import Agent, call_agent, create_pod, report_pod_address, running_agent
from tests.integration.agent.pods_on_node import NETWORK, NodePod, needs_root, node_pod, run_command
from tests.integration.conftest import CreateNode

BANDWIDTH = "network.aware.com/bandwidth"


class EventNote(Wire, frozen=True):
    """The fields of an event that tests read."""

    reason: str
    note: str
    type: str


class AnnotatedPod(NamedTuple):
    """A pod with annotations of 10 Mbit/s in both directions and a request of 1 Mbit/s, as an object and on this machine."""

    client: Client
    pod: Pod
    kernel_pod: NodePod

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace

    async def report_address(self) -> None:
        await report_pod_address(self.client, self.pod, self.kernel_pod.address)

    async def annotate(self, direction: Direction, rate: str) -> None:
        change = {"metadata": {"annotations": {f"kubernetes.io/{direction}-bandwidth": rate}}}
        await self.client.patch(PODS, self.pod.metadata.name, change, Pod, namespace=self.namespace)

    def read_root_qdisc(self) -> str:
        return run_command(f"tc qdisc show dev {self.kernel_pod.host_device} root")

    async def has_no_series(self, agent: Agent) -> bool:
        return not any(self.kernel_pod.name in labels for labels in await agent.read_metrics("netaware_pod_bandwidth_"))

    async def has_verdict(self, agent: Agent, verdict: str) -> bool:
        """Whether the agent's metrics show this verdict for each limit of the pod."""
        series = await agent.read_metrics("netaware_pod_bandwidth_verdict")
        series_of_pod = [labels for labels in series if f'pod="{self.kernel_pod.name}"' in labels]
        return bool(series_of_pod) and all(f'verdict="{verdict}"' in labels for labels in series_of_pod)


@pytest.fixture
def port() -> int:
    return find_free_ports(1)[0]


@pytest_asyncio.fixture
async def node_name(create_node: CreateNode) -> str:
    name = f"node-{uuid.uuid4().hex[:6]}"
    await create_node(name, zone="z1", region="r1", address="127.0.0.1")
    return name


@pytest.fixture
def flags(control_plane: ControlPlane, node_name: str, tmp_path: Path) -> list[str]:
    """Flags of the node's agent, which does not probe; a confined one cannot read another user's kubeconfig."""
    folder, token = tmp_path / "credentials", {"token": control_plane.admin_token}
    save_credentials(folder, control_plane.server, control_plane.authority.certificate, token)
    return [f"--node-name={node_name}", f"--credentials={folder}", "--probing=off"]


@pytest_asyncio.fixture
async def annotated_pod(client: Client, namespace: str, node_name: str) -> AsyncIterator[AnnotatedPod]:
    with node_pod(30, adopt_uid=True) as kernel_pod:
        annotations = {f"kubernetes.io/{direction}-bandwidth": "10M" for direction in ("ingress", "egress")}
        pod = await create_pod(client, namespace, kernel_pod.name, node_name, annotations, bandwidth="1M")
        kernel_pod.join_cgroup(pod.metadata.uid)
        yield AnnotatedPod(client, pod, kernel_pod)


@pytest_asyncio.fixture
async def enforcing_agent(
    annotated_pod: AnnotatedPod, flags: list[str], port: int, tmp_path: Path
) -> AsyncIterator[Agent]:
    """An agent that enforces limits with NET_ADMIN alone and a read-only root."""
    confine = [
        *("unshare", "--mount", "--", "sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh"),
        *("setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all", "--"),
    ]
    enforce = "--bandwidth=enforce", f"--cni-network={NETWORK}"
    async with running_agent(tmp_path, port, *flags, *enforce, prefix=confine) as agent:
        yield agent


async def read_bandwidth(client: Client, name: str) -> tuple[str | None, str | None]:
    """The bandwidth in the node's capacity and allocatable."""
    status = (await client.get(NODES, name, OwnNode)).status
    return (status.capacity or {}).get(BANDWIDTH), (status.allocatable or {}).get(BANDWIDTH)


async def wait_for_bandwidth(client: Client, name: str, value: str | None) -> None:
    """Wait until this value is published, for less than the agent's `POLL_S`: the watch of the node must show each change."""

    async def is_published() -> bool:
        return await read_bandwidth(client, name) == (value, value)

    await poll_until(is_published, timeout_s=POLL_S / 2)


async def test_a_zeroed_or_removed_capacity_is_published_again(
    client: Client, node_name: str, flags: list[str], port: int, tmp_path: Path
) -> None:
    async with running_agent(tmp_path, port, *flags, "--capacity=10G") as agent:
        await wait_for_bandwidth(client, node_name, "10G")
        path = "/status/capacity/network.aware.com~1bandwidth"
        for interference in ({"op": "replace", "path": path, "value": "0"}, {"op": "remove", "path": path}):
            await client.patch(NODES, node_name, [interference], OwnNode, patch_type=JSON_PATCH, subresource="status")
            await wait_for_bandwidth(client, node_name, "10G")
        assert await agent.stop() == 0
    assert await read_bandwidth(client, node_name) == ("10G", "10G"), "pods must still fit while the agent restarts"


async def test_the_nodes_annotation_wins_over_the_flag_and_stays_after_a_cleanup(
    client: Client, node_name: str, flags: list[str], port: int, tmp_path: Path
) -> None:
    annotation = {"netaware.io/bandwidth-capacity": "4G"}
    await client.patch(NODES, node_name, {"metadata": {"annotations": annotation}}, OwnNode)
    async with running_agent(tmp_path, port, *flags, "--capacity=10G"):
        await wait_for_bandwidth(client, node_name, "4G")
    # An agent that cleans up stays ready, so that a rollout reaches every node.
    async with running_agent(tmp_path, port, *flags, "--capacity=10G", "--cleanup") as agent:
        await wait_for_bandwidth(client, node_name, None)
        await poll_until(lambda: agent.is_ok("/readyz"))
    code, _, stderr = await call_agent("run", *flags, "--cleanup=once")
    assert code == 0, stderr
    assert await read_bandwidth(client, node_name) == (None, None)

    node = await client.get(NODES, node_name, OwnNode)
    annotations = node.metadata.annotations or {}
    assert {name: annotations[name] for name in annotations if name.startswith("netaware.io/")} == annotation
    assert "NetawareBandwidth" not in [condition.type for condition in node.status.conditions or ()]


async def test_an_agent_without_an_api_server_waits_and_stops_at_once(tmp_path: Path, port: int) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "server").write_text(f"http://127.0.0.1:{find_free_ports(1)[0]}")
    async with running_agent(tmp_path, port, "--node-name=n1", f"--credentials={folder}") as agent:
        await poll_until(lambda: agent.is_ok("/healthz"))
        status, body = await agent.get("/readyz")
        assert status == 503
        assert "node n1 was not read yet" in body
        await asyncio.sleep(1.0)
        assert agent.log.count("cannot watch") <= 4
        assert await agent.stop() == 0


async def test_an_invalid_flag_is_named_in_one_line_with_exit_code_2() -> None:
    code, stdout, stderr = await call_agent("run", "--node-name=n1", "--credentials=/does-not-exist")
    assert code == 2
    assert stdout == ""
    assert stderr.startswith("error: --credentials: /does-not-exist is not a directory")
    assert stderr.count("\n") == 1


@needs_root
async def test_a_pod_is_limited_once_it_has_an_address_with_net_admin_alone_and_a_read_only_root(
    enforcing_agent: Agent, annotated_pod: AnnotatedPod
) -> None:
    await poll_until(lambda: "the pod has no address yet" in enforcing_agent.log)
    assert "tbf" not in annotated_pod.read_root_qdisc()

    await annotated_pod.report_address()
    await poll_until(lambda: annotated_pod.has_verdict(enforcing_agent, "enforced"))
    assert "rate 10Mbit" in annotated_pod.read_root_qdisc()
    status = Path(f"/proc/{enforcing_agent.process.pid}/status").read_text()
    (capabilities,) = re.findall(r"^CapEff:\t(\S+)$", status, re.MULTILINE)
    assert int(capabilities, 16) == 1 << 12, "CAP_NET_ADMIN, capabilities(7)"
    assert await enforcing_agent.stop() == 0


@needs_root
async def test_a_limit_follows_its_annotation_is_restored_after_its_removal_and_ends_with_its_pod(
    client: Client, enforcing_agent: Agent, annotated_pod: AnnotatedPod, flags: list[str]
) -> None:
    kernel_pod = annotated_pod.kernel_pod
    await annotated_pod.report_address()
    await poll_until(lambda: annotated_pod.has_verdict(enforcing_agent, "enforced"))
    await annotated_pod.annotate("ingress", "30M")
    await poll_until(lambda: "rate 30Mbit" in annotated_pod.read_root_qdisc())

    run_command(f"tc qdisc del dev {kernel_pod.host_device} root")
    await poll_until(lambda: "rate 30Mbit" in annotated_pod.read_root_qdisc())

    code, _, stderr = await call_agent("run", *flags, "--bandwidth=enforce", "--cleanup=once")
    assert code == 0, stderr
    assert "limits removed count=" in stderr
    await poll_until(lambda: "rate 30Mbit" in annotated_pod.read_root_qdisc())

    pod = annotated_pod.pod.metadata
    await client.delete(PODS, pod.name, namespace=pod.namespace, grace_period_s=0)
    run_command(f"ip link del {kernel_pod.host_device}")
    await poll_until(lambda: kernel_pod.ifb_name not in run_command("ip -br link"))
    await poll_until(lambda: annotated_pod.has_no_series(enforcing_agent))


@needs_root
async def test_an_invalid_annotation_and_one_that_differs_from_the_request_are_events(
    client: Client, enforcing_agent: Agent, annotated_pod: AnnotatedPod
) -> None:
    await annotated_pod.report_address()
    await poll_until(lambda: annotated_pod.has_verdict(enforcing_agent, "enforced"))
    await annotated_pod.annotate("egress", "10m")

    async def are_events_sent() -> bool:
        events = await client.list(EVENTS, EventNote, namespace=annotated_pod.namespace)
        note_by_reason = {event.reason: event.note for event in events if event.type == "Warning"}
        return "unreasonably small (< 1kbit)" in note_by_reason.get("BandwidthInvalid", "") and (
            "scheduled for 1000000 bit/s" in note_by_reason.get("BandwidthMismatch", "")
        )

    await poll_until(are_events_sent)


@needs_root
async def test_observing_reports_the_verdict_and_changes_nothing(
    annotated_pod: AnnotatedPod, flags: list[str], port: int, tmp_path: Path
) -> None:
    await annotated_pod.report_address()
    async with running_agent(tmp_path, port, *flags) as agent:
        await poll_until(lambda: annotated_pod.has_verdict(agent, "missing"))
        assert "noqueue" in annotated_pod.read_root_qdisc()
