"""The agent, run as a program, publishes capacity and limits pods on a real API server, also after outages."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

import pytest
import pytest_asyncio

from agent.bandwidth.rules import plugin_ifb_name
from agent.capacity.publisher import POLL_S
from agent.node import OwnNode
from kubekit.client import JSON_PATCH, Client
from kubekit.wire import EVENTS, NODES, PODS, Pod, Wire
from lab.controlplane import ControlPlane, find_free_ports
from lab.credentials import credentials_dir, save_credentials
from lab.polling import poll_until
from tests.integration.agent.agents import Agent, call_agent, create_pod, report_pod_address, running_agent
from tests.integration.agent.pods_on_node import NETWORK, NodePod, node_pod, run
from tests.integration.conftest import MakeNode

BANDWIDTH = "network.aware.com/bandwidth"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
PROBING_OFF = "--probing=off"


class EventNote(Wire, frozen=True):
    """The fields of an event that tests read."""

    reason: str
    note: str
    type: str


@pytest.fixture
def node_name() -> str:
    return f"node-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def port() -> int:
    return find_free_ports(1)[0]


@pytest_asyncio.fixture
async def node(make_node: MakeNode, node_name: str) -> str:
    await make_node(node_name, zone="z1", region="r1", address="127.0.0.1")
    return node_name


async def read_bandwidth(client: Client, name: str) -> tuple[str | None, str | None]:
    status = (await client.get(NODES, name, OwnNode)).status
    return (status.capacity or {}).get(BANDWIDTH), (status.allocatable or {}).get(BANDWIDTH)


async def wait_for_bandwidth(client: Client, name: str, value: str | None) -> None:
    """Wait until this value is published, for less than the agent's `POLL_S`: the watch of the node must show each change."""

    async def is_published() -> bool:
        return await read_bandwidth(client, name) == (value, value)

    await poll_until(is_published, timeout_s=POLL_S / 2)


async def test_a_zeroed_or_removed_capacity_is_published_again_and_cleaned_up(
    control_plane: ControlPlane, client: Client, node: str, port: int, tmp_path: Path
) -> None:
    flags = [
        f"--node-name={node}",
        f"--credentials={credentials_dir(control_plane.kubeconfig)}",
        "--capacity=10G",
        PROBING_OFF,
    ]
    async with running_agent(tmp_path, port, *flags) as agent:
        await wait_for_bandwidth(client, node, "10G")
        path = "/status/capacity/network.aware.com~1bandwidth"
        for interference in ({"op": "replace", "path": path, "value": "0"}, {"op": "remove", "path": path}):
            await client.patch(NODES, node, [interference], OwnNode, patch_type=JSON_PATCH, subresource="status")
            await wait_for_bandwidth(client, node, "10G")
        # The node's annotation wins over the flag.
        note = {"metadata": {"annotations": {"netaware.io/bandwidth-capacity": "4G"}}}
        await client.patch(NODES, node, note, OwnNode)
        await wait_for_bandwidth(client, node, "4G")
        assert await agent.stop() == 0
    assert await read_bandwidth(client, node) == ("4G", "4G")
    # An agent that cleans up stays ready, so that a rollout reaches every node.
    async with running_agent(tmp_path, port, *flags, "--cleanup") as agent:
        await wait_for_bandwidth(client, node, None)
        await poll_until(lambda: agent.is_ok("/readyz"))
    code, _, stderr = await call_agent("run", *flags[:2], "--cleanup=once")
    assert (code, await read_bandwidth(client, node)) == (0, (None, None)), stderr
    left = await client.get(NODES, node, OwnNode)
    assert [name for name in left.metadata.annotations or {} if name.startswith("netaware.io/")] == [
        "netaware.io/bandwidth-capacity"
    ]
    assert [c for c in left.status.conditions or () if c.type == "NetawareBandwidth"] == []


async def test_an_agent_without_an_api_server_waits_and_stops_at_once(tmp_path: Path, port: int) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "server").write_text(f"http://127.0.0.1:{find_free_ports(1)[0]}")
    async with running_agent(tmp_path, port, "--node-name=n1", f"--credentials={folder}") as agent:
        await poll_until(lambda: agent.is_ok("/healthz"))
        status, body = await agent.get("/readyz")
        assert (status, "node n1 was not read yet" in body) == (503, True)
        await asyncio.sleep(1.0)
        assert agent.log.count("cannot watch") <= 4
        assert await agent.stop() == 0


async def test_an_invalid_flag_is_named_in_one_line_with_exit_code_2() -> None:
    code, stdout, stderr = await call_agent("run", "--node-name=n1", "--credentials=/does-not-exist")
    assert (code, stdout) == (2, "")
    assert stderr.startswith("error: --credentials: /does-not-exist is not a directory")
    assert stderr.count("\n") == 1


async def has_verdict(agent: Agent, kernel_pod: NodePod, verdict: str) -> bool:
    series = await agent.metrics("netaware_pod_bandwidth_verdict")
    series_of_pod = [text for text in series if f'pod="{kernel_pod.name}"' in text]
    return bool(series_of_pod) and all(f'verdict="{verdict}"' in text for text in series_of_pod)


@needs_root
async def test_a_pod_is_limited_until_its_end_with_net_admin_alone_and_a_read_only_root(
    control_plane: ControlPlane, client: Client, namespace: str, node: str, port: int, tmp_path: Path
) -> None:
    confine = [
        *("unshare", "--mount", "--", "sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh"),
        *("setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all", "--"),
    ]
    folder = tmp_path / "credentials"
    save_credentials(
        folder, control_plane.server, control_plane.authority.certificate, {"token": control_plane.admin_token}
    )
    flags = [f"--node-name={node}", f"--credentials={folder}", PROBING_OFF, "--bandwidth=enforce"]
    with node_pod(30, adopt_uid=True) as kernel_pod:
        annotations = {"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "10M"}
        pod = await create_pod(client, namespace, kernel_pod.name, node, annotations, bandwidth="1M")
        kernel_pod.join_cgroup(pod.metadata.uid)
        async with running_agent(tmp_path, port, *flags, f"--cni-network={NETWORK}", prefix=confine) as agent:
            await poll_until(lambda: "the pod has no address yet" in agent.log)
            assert "tbf" not in run(f"tc qdisc show dev {kernel_pod.host_device}")
            await report_pod_address(client, pod, kernel_pod.address)
            await poll_until(lambda: has_verdict(agent, kernel_pod, "enforced"))
            assert "rate 10Mbit" in run(f"tc qdisc show dev {kernel_pod.host_device} root")
            status = Path(f"/proc/{agent.process.pid}/status").read_text()
            capabilities = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
            assert int(capabilities, 16) == 1 << 12  # CAP_NET_ADMIN, capabilities(7)

            change = {"metadata": {"annotations": {"kubernetes.io/ingress-bandwidth": "30M"}}}
            await client.patch(PODS, pod.metadata.name, change, Pod, namespace=namespace)

            def has_new_limit() -> bool:
                return "rate 30Mbit" in run(f"tc qdisc show dev {kernel_pod.host_device} root")

            await poll_until(has_new_limit)

            run(f"tc qdisc del dev {kernel_pod.host_device} root")
            await poll_until(has_new_limit)

            code, _, stderr = await call_agent("run", *flags, "--cleanup=once")
            assert (code, "limits removed count=" in stderr) == (0, True), stderr
            await poll_until(has_new_limit)  # the running agent sets them again

            invalid_limit = {"metadata": {"annotations": {"kubernetes.io/egress-bandwidth": "10m"}}}
            await client.patch(PODS, pod.metadata.name, invalid_limit, Pod, namespace=namespace)

            async def are_events_sent() -> bool:
                events = await client.list(EVENTS, EventNote, namespace=namespace)
                warning_by_reason = {event.reason: event.note for event in events if event.type == "Warning"}
                return "unreasonably small (< 1kbit)" in warning_by_reason.get("BandwidthInvalid", "") and (
                    "scheduled for 1000000 bit/s" in warning_by_reason.get("BandwidthMismatch", "")
                )

            await poll_until(are_events_sent)
            await client.delete(PODS, pod.metadata.name, namespace=namespace, grace_period_s=0)
            run(f"ip link del {kernel_pod.host_device}")

            async def is_removed() -> bool:
                series = await agent.metrics("netaware_pod_bandwidth_")
                is_ifb_deleted = plugin_ifb_name(NETWORK, kernel_pod.container) not in run("ip -br link")
                return is_ifb_deleted and not any(kernel_pod.name in text for text in series)

            await poll_until(is_removed)
            assert await agent.stop() == 0


@needs_root
async def test_observing_reports_the_verdict_and_changes_nothing(
    control_plane: ControlPlane, client: Client, namespace: str, node: str, port: int, tmp_path: Path
) -> None:
    flags = [f"--node-name={node}", f"--credentials={credentials_dir(control_plane.kubeconfig)}"]
    with node_pod(31, adopt_uid=True) as kernel_pod:
        annotations = {"kubernetes.io/ingress-bandwidth": "10M"}
        pod = await create_pod(client, namespace, kernel_pod.name, node, annotations)
        kernel_pod.join_cgroup(pod.metadata.uid)
        await report_pod_address(client, pod, kernel_pod.address)
        async with running_agent(tmp_path, port, *flags, PROBING_OFF) as agent:
            await poll_until(lambda: has_verdict(agent, kernel_pod, "missing"))
            assert "noqueue" in run(f"tc qdisc show dev {kernel_pod.host_device} root")
