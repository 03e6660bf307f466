"""The proposal that the page shows before anybody applies it: made by a process over a real API server and a real Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.cli import proposing
from controller.cli.proposing import NO_SOURCE, Proposer
from controller.scheduler.config import SchedulerConfig
from controller.traffic.config import PricesConfig, TrafficConfig
from kubekit.client import Client
from kubekit.wire import DEPLOYMENTS, PODS, Object, Resource
from lab.controlplane import LOOPBACK, ControlPlane, free_ports
from tests.integration.conftest import MakeNode
from tests.support.prometheus_past import Made, prometheus

RBAC = Path(__file__).parents[3] / "manifests" / "base" / "controller" / "rbac.yaml"
pytestmark = pytest.mark.timeout(300)


async def told(proposer: Proposer, namespace: str) -> dict[str, Any]:
    found = proposer.ask(namespace)
    assert found is not None
    return dict(msgspec.json.decode(found if isinstance(found, bytes) else await found))


async def deploy(client: Client, namespace: str, name: str, node: str) -> None:
    """A Deployment and the pod that it would have."""
    template: dict[str, Any] = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    await client.create(DEPLOYMENTS, body, Object, namespace=namespace)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-5d9f", "uid": name, "controller": True}
    labels = {"app": name, "pod-template-hash": "5d9f"}
    metadata = {"name": f"{name}-5d9f-x", "labels": labels, "ownerReferences": [owner]}
    pod = {"metadata": metadata, "spec": {**template["spec"], "nodeName": node}}
    await client.create(PODS, pod, Object, namespace=namespace)


async def as_controller(client: Client, namespace: str, control_plane: ControlPlane, folder: Path) -> Path:
    """A kubeconfig that acts as the controller's account, with the rights that it is shipped with."""
    for document in yaml.safe_load_all(RBAC.read_text().replace("netaware-system", namespace)):
        kind = document["kind"]
        if kind.startswith("Cluster"):
            document["metadata"]["name"] += f"-{namespace}"
        if kind == "ClusterRoleBinding":
            document["roleRef"]["name"] += f"-{namespace}"
        wide = kind.startswith("Cluster")
        resource = Resource("rbac.authorization.k8s.io", "v1", f"{kind.lower()}s", kind, namespaced=not wide)
        await client.create(resource, document, Object, namespace=None if wide else namespace)
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"][0]["user"]["as"] = f"system:serviceaccount:{namespace}:netaware-controller"
    file = folder / "controller.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


def called(namespace: str, zones: tuple[str, str]) -> list[Made]:
    """``web`` calls ``cart`` over two zones, as OBI tells it."""
    ends = ("web", zones[0]), ("cart", zones[1])
    made: list[Made] = []
    for (source, here), (destination, there), direction, rate in (
        (ends[0], ends[1], "request", 1000.0),
        (ends[1], ends[0], "response", 9000.0),
    ):
        labels = {"k8s_src_namespace": namespace, "k8s_src_owner_name": source, "k8s_src_owner_type": "Deployment"}
        labels |= {"k8s_dst_namespace": namespace, "k8s_dst_owner_name": destination}
        labels |= {"k8s_dst_owner_type": "Deployment", "src_zone": here, "dst_zone": there, "direction": direction}
        seen = ({**labels, "server_port": "80", "instance": instance} for instance in ("n1:9090", "n2:9090"))
        made += [("obi_network_flow_bytes_total", each, rate) for each in seen]
    return made


@pytest.mark.usefixtures("kwok", "crds")
async def test_what_the_command_would_propose_now_is_told_with_its_gain_money_and_command(
    client: Client,
    namespace: str,
    make_node: MakeNode,
    control_plane: ControlPlane,
    prometheus_programs: Mapping[str, Path],
    tmp_path: Path,
) -> None:
    zones = f"a-{namespace}", f"b-{namespace}"
    for name, zone in zip(("web", "cart"), zones, strict=True):
        await make_node(f"n-{zone}", zone=zone, region="r")
        await deploy(client, namespace, name, f"n-{zone}")
    kubeconfig = await as_controller(client, namespace, control_plane, tmp_path)
    config = TrafficConfig(window_s=3600, prices=PricesConfig(preset="aws"))
    async with prometheus(prometheus_programs, tmp_path, called(namespace, zones)) as past:
        proposer = Proposer(config, past.url, home=namespace, scheduler=SchedulerConfig(), kubeconfig=str(kubeconfig))
        first, second = await asyncio.gather(told(proposer, namespace), told(proposer, namespace))
    assert first == second
    assert first["error"] == ""
    (proposal,) = first["proposed"]["proposals"]
    assert [(d["client"], d["server"]) for d in proposal["dependencies"]] == [(f"{namespace}/web", f"{namespace}/cart")]
    (gain,) = first["proposed"]["gains"]
    assert gain["crossing_now"] == pytest.approx(10_000, rel=0.05)
    assert gain["zones_now"][zones[0]][zones[1]] == pytest.approx(10_000, rel=0.05)
    assert gain["month_now"] == pytest.approx(10_000 * 3600 * 730 / 1e9 * 0.02, rel=0.05)
    assert not [note for note in first["notes"] if "not allowed" in note], "the shipped rights suffice"
    assert any("OpenTelemetry" in note for note in first["notes"])
    assert f"propose -n {namespace} " in first["command"]
    assert first["command"].endswith("--window 60m --prices aws --apply")
    assert await told(proposer, namespace) == first, "Prometheus is gone, and what was told is kept"


async def test_what_is_missing_is_told_without_the_password_in_an_address(control_plane: ControlPlane) -> None:
    (port,) = free_ports(1)
    kubeconfig = str(control_plane.kubeconfig)
    away = Proposer(
        TrafficConfig(),
        f"http://me:secret@{LOOPBACK}:{port}",
        home="x",
        scheduler=SchedulerConfig(),
        kubeconfig=kubeconfig,
    )
    found = await told(away, "shop")
    assert found["error"].startswith("Prometheus: ")
    assert "secret" not in msgspec.json.encode(found).decode()
    assert (await told(Proposer(TrafficConfig(), "", home="x", scheduler=SchedulerConfig()), "shop"))[
        "error"
    ] == NO_SOURCE


async def test_one_process_at_a_time_and_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[str] = []
    most = 0
    go_on = asyncio.Event()

    async def run(question: proposing.ProposalQuestion) -> tuple[bytes, str]:
        nonlocal most
        running.append(question.namespace)
        most = max(most, len(running))
        await go_on.wait()
        running.remove(question.namespace)
        return b"", "no"

    monkeypatch.setattr(proposing, "_run", run)
    proposer = Proposer(TrafficConfig(), "http://p", home="x", scheduler=SchedulerConfig())
    making = [proposer.ask(f"n{i}") for i in range(proposing.MOST_WAITING)]
    assert proposer.ask("n0") is making[0]
    assert proposer.ask("another") is None
    go_on.set()
    assert all(isinstance(each, asyncio.Task) for each in making)
    await asyncio.gather(*(each for each in making if isinstance(each, asyncio.Task)))
    assert most == 1
