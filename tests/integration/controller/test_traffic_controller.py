"""The traffic controller compares AppGroups with Istio's series in a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, AppGroup
from kubekit.client import MERGE_PATCH, Client
from kubekit.conditions import find_condition
from kubekit.wire import DEPLOYMENTS, PODS, Object
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from lab.programs import run_command
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION
from tests.integration.conftest import MakeNode
from tests.integration.controller.harness import Replica, StartReplica
from tests.support.bodies import make_appgroup_body
from tests.support.prometheus_program import Series, format_exposition, run_prometheus

pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(240)]
CALLS = {("web", "cart"): 4000.0, ("cart", "db"): 1000.0, ("web", "ads"): 3000.0}


def make_series(namespace: str) -> list[Series]:
    series: list[Series] = []
    for (client, server), bytes_per_s in CALLS.items():
        labels = {"source_workload_namespace": namespace, "source_workload": client, "reporter": "source"}
        labels |= {"destination_workload_namespace": namespace, "destination_workload": server}
        series.append(("istio_request_bytes_sum", labels, bytes_per_s))
    return series


def make_group(calls: Mapping[str, str]) -> dict[str, Any]:
    """An AppGroup whose selectors are the names of its workloads in capitals."""
    limits = {"minBandwidth": "1M"}
    upper = {name.upper(): dict.fromkeys(callees.upper().split(), limits) for name, callees in calls.items()}
    return make_appgroup_body("shop", upper, members=4)


async def create_deployments(client: Client, namespace: str, nodes: Mapping[str, str]) -> None:
    """Create Deployments of one pod each, bound to its node by the template."""
    for name, node in nodes.items():
        pod = {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
        }
        template = {"metadata": {"labels": {"app": name}}, "spec": pod}
        spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
        body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
        await client.create(DEPLOYMENTS, body, Object, namespace=namespace)


async def test_measured_weights_are_written_once_and_drift_sets_the_condition(
    start: StartReplica,
    client: Client,
    namespace: str,
    netaware_namespace: str,
    crds: list[str],
    make_node: MakeNode,
    prometheus_programs: Mapping[str, Path],
    tmp_path: Path,
) -> None:
    first, second = f"{namespace}-a", f"{namespace}-b"
    await make_node(first, zone="z1", region="r1")
    await make_node(second, zone="z2", region="r1")
    await create_deployments(client, namespace, {"web": first, "cart": second, "db": second, "ads": first})
    await client.create(
        APPGROUPS, make_group({"web": "cart", "cart": "db", "db": "", "ads": "db"}), Object, namespace=namespace
    )
    async with run_prometheus(prometheus_programs, tmp_path, format_exposition(make_series(namespace))) as prometheus:
        traffic = {
            "prometheusUrl": prometheus.address,
            "intervalS": 1,
            "keepWeights": True,
            "prices": {"betweenZones": 0.02, "currency": "EUR"},
        }
        await _check_group(client, namespace, start(namespace=netaware_namespace, traffic=traffic))
    # Prometheus is gone: after some failed reads the condition is Unknown.
    await poll_until(partial(_has_condition, client, namespace, "Unknown", "NoTraffic"))


async def test_propose_apply_writes_the_appgroup_and_labels_pod_templates(
    control_plane: ControlPlane,
    client: Client,
    namespace: str,
    crds: list[str],
    make_node: MakeNode,
    prometheus_programs: Mapping[str, Path],
    tmp_path: Path,
) -> None:
    node = f"{namespace}-a"
    await make_node(node, zone="z1", region="r1")
    await create_deployments(client, namespace, dict.fromkeys(("web", "cart", "db", "ads"), node))

    async def have_pods() -> bool:
        return len(await client.list(PODS, Object, namespace=namespace)) == 4

    await poll_until(have_pods)
    async with run_prometheus(prometheus_programs, tmp_path, format_exposition(make_series(namespace))) as prometheus:
        flags = f"--prometheus={prometheus.address}", f"--kubeconfig={control_plane.kubeconfig}", "--apply"
        program = Path(sys.executable).parent / "kubectl-netaware"
        await run_command([program, "propose", "-n", namespace, *flags], "propose", 60)
    (group,) = await client.list(APPGROUPS, AppGroup, namespace=namespace)
    edges = {(w.workload.name, d.workload.name) for w in group.spec.workloads or () for d in w.dependencies or ()}
    assert edges == set(CALLS)
    for deployment in await client.list(DEPLOYMENTS, dict[str, Any], namespace=namespace):
        assert APPGROUP_LABEL in deployment["spec"]["template"]["metadata"]["labels"]


async def _has_condition(client: Client, namespace: str, status: str, text: str = "") -> bool:
    group = await client.get(APPGROUPS, "shop", AppGroup, namespace=namespace)
    condition = find_condition(group.status.conditions, "AsDescribed")
    return condition is not None and condition.status == status and text in f"{condition.reason} {condition.message}"


async def _check_group(client: Client, namespace: str, replica: Replica) -> None:
    async def read() -> AppGroup:
        return await client.get(APPGROUPS, "shop", AppGroup, namespace=namespace)

    for text in ("ads -> db is declared, and no calls were seen", "web -> ads is not declared"):
        await poll_until(partial(_has_condition, client, namespace, "False", text))

    async def has_weights() -> bool:
        return bool((await read()).metadata.annotation(MEASURED_WEIGHTS_ANNOTATION))

    await poll_until(has_weights)
    weights = json.loads((await read()).metadata.annotation(MEASURED_WEIGHTS_ANNOTATION))
    measured = {(a.lower(), b.lower()): weight for a, row in weights.items() for b, weight in row.items()}
    assert measured == pytest.approx(CALLS, rel=0.03)
    metrics = await replica.metrics()
    labels = f'appgroup="shop",kind="new",namespace="{namespace}"'
    drift = {name: value for name, value in metrics.items() if name.startswith("netaware_appgroup_traffic_drift")}
    assert any(value == 1 and all(part in name for part in labels.split(",")) for name, value in drift.items()), drift
    price = next(
        value for name, value in metrics.items() if name.startswith("netaware_appgroup_traffic_price_per_month")
    )
    assert price == pytest.approx(CALLS["web", "cart"] * 3600 * 730 / 1e9 * 0.02, rel=0.03)
    # The same traffic, read in several intervals, writes nothing.
    before = (await read()).metadata.resource_version
    await asyncio.sleep(4)
    assert (await read()).metadata.resource_version == before
    body = make_group({"web": "cart ads", "cart": "db", "db": "", "ads": ""})
    await client.patch(APPGROUPS, "shop", {"spec": body["spec"]}, Object, patch_type=MERGE_PATCH, namespace=namespace)
    await poll_until(partial(_has_condition, client, namespace, "True"))
