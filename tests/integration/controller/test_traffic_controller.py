"""The traffic controller compares AppGroups with Istio's series in a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, AppGroup
from controller.prometheus import PrometheusClient
from controller.traffic.prices import HOURS_PER_MONTH
from kubekit.wire import DEPLOYMENTS, PODS, Object
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from lab.programs import run_command
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION
from tests.integration.conftest import CreateNode
from tests.integration.controller.appgroups import AppGroupNamespace, make_group
from tests.integration.controller.harness import StartManager
from tests.support.bodies import make_deployment
from tests.support.prometheus_program import Series, format_exposition, run_prometheus

pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(240)]
ZONE_BY_WORKLOAD = {"web": "z1", "ads": "z1", "cart": "z2", "db": "z2"}
BYTES_PER_S_BY_CALL = {("web", "cart"): 4000.0, ("cart", "db"): 1000.0, ("web", "ads"): 3000.0}
"""The calls in Prometheus; of these, only web -> cart is between zones."""
MEASURED_CALLEES = {"web": "cart ads", "cart": "db", "db": "", "ads": ""}
OUTDATED_CALLEES = {"web": "cart", "cart": "db", "db": "", "ads": "db"}
TOLERANCE = 0.03
"""Of a rate, which Prometheus extrapolates from samples."""
EUR_PER_GB = 0.02

PrometheusRun = AbstractAsyncContextManager[PrometheusClient]


@pytest.fixture
def prometheus_run(prometheus_programs: Mapping[str, Path], namespace: str, tmp_path: Path) -> PrometheusRun:
    """``async with prometheus_run as prometheus`` runs Prometheus with the series of the calls."""
    return run_prometheus(prometheus_programs, tmp_path, format_exposition(make_series(namespace)))


@pytest_asyncio.fixture
async def deployments(groups: AppGroupNamespace, create_node: CreateNode) -> None:
    """Deployments of one pod each, bound to the node of its zone by the template."""
    for zone in ("z1", "z2"):
        await create_node(f"{groups.namespace}-{zone}", zone=zone, region="r1")
    for name, zone in ZONE_BY_WORKLOAD.items():
        body = make_deployment(
            name,
            {"name": "c", "image": "none"},
            nodeName=f"{groups.namespace}-{zone}",
            tolerations=[{"operator": "Exists"}],
        )
        await groups.client.create(DEPLOYMENTS, body, Object, namespace=groups.namespace)


def make_series(namespace: str) -> list[Series]:
    series: list[Series] = []
    for (caller, callee), bytes_per_s in BYTES_PER_S_BY_CALL.items():
        labels = {"source_workload_namespace": namespace, "source_workload": caller, "reporter": "source"}
        labels |= {"destination_workload_namespace": namespace, "destination_workload": callee}
        series.append(("istio_request_bytes_sum", labels, bytes_per_s))
    return series


def make_shop(callees: Mapping[str, str]) -> dict[str, Any]:
    """The group shop, whose selectors are the names of its workloads in capitals."""
    return make_group({caller.upper(): names.upper() for caller, names in callees.items()}, name="shop", members=4)


def make_traffic_section(prometheus: PrometheusClient) -> dict[str, Any]:
    """The manager's configuration for comparing groups with Prometheus each second."""
    prices = {"betweenZones": EUR_PER_GB, "currency": "EUR"}
    return {"prometheusUrl": prometheus.url, "intervalS": 1, "keepWeights": True, "prices": prices}


async def wait_until_described(groups: AppGroupNamespace, status: str, text: str = "") -> None:
    """Wait for this status of the condition AsDescribed."""
    await groups.wait_for_group_condition("AsDescribed", status, text, group="shop")


@pytest.mark.usefixtures("deployments")
async def test_the_condition_compares_the_declared_with_the_measured_calls_while_prometheus_runs(
    start_manager: StartManager, prometheus_run: PrometheusRun, groups: AppGroupNamespace, netaware_namespace: str
) -> None:
    await groups.create_group_from_body(make_shop(OUTDATED_CALLEES))
    async with prometheus_run as prometheus:
        start_manager(namespace=netaware_namespace, traffic=make_traffic_section(prometheus))
        for reason in ("ads -> db is declared, and no calls were seen", "web -> ads is not declared"):
            await wait_until_described(groups, "False", reason)

        patch = {"spec": make_shop(MEASURED_CALLEES)["spec"]}
        await groups.patch_group(patch, "shop")
        await wait_until_described(groups, "True")
    # After some failed reads.
    await wait_until_described(groups, "Unknown", "NoTraffic")


@pytest.mark.usefixtures("deployments")
async def test_measured_weights_are_written_once_and_drift_and_price_are_metrics(
    start_manager: StartManager, prometheus_run: PrometheusRun, groups: AppGroupNamespace, netaware_namespace: str
) -> None:
    await groups.create_group_from_body(make_shop(OUTDATED_CALLEES))
    async with prometheus_run as prometheus:
        replica = start_manager(namespace=netaware_namespace, traffic=make_traffic_section(prometheus))
        await wait_until_described(groups, "False")

        async def read_weights() -> str:
            return (await groups.read_group("shop")).metadata.annotation(MEASURED_WEIGHTS_ANNOTATION)

        weights = json.loads(await poll_until(read_weights))
        version = (await groups.read_group("shop")).metadata.resource_version
        metrics = await replica.read_metrics()
        await asyncio.sleep(4)  # four intervals, in which the same traffic is read
        assert (await groups.read_group("shop")).metadata.resource_version == version

    weight_by_call = {(caller.lower(), name.lower()): w for caller, row in weights.items() for name, w in row.items()}
    assert weight_by_call == pytest.approx(BYTES_PER_S_BY_CALL, rel=TOLERANCE)
    labels = f'appgroup="shop",kind="new",namespace="{groups.namespace}"'
    assert metrics[f"netaware_appgroup_traffic_drift{{{labels}}}"] == 1, "web -> ads"
    labels = f'appgroup="shop",currency="EUR",namespace="{groups.namespace}"'
    price = metrics[f"netaware_appgroup_traffic_price_per_month{{{labels}}}"]
    gb_per_month = BYTES_PER_S_BY_CALL["web", "cart"] * 3600 * HOURS_PER_MONTH / 1e9
    assert price == pytest.approx(gb_per_month * EUR_PER_GB, rel=TOLERANCE)


async def test_propose_apply_writes_the_appgroup_and_labels_pod_templates(
    deployments: None, prometheus_run: PrometheusRun, control_plane: ControlPlane, groups: AppGroupNamespace
) -> None:
    async def have_pods() -> bool:
        return len(await groups.client.list(PODS, Object, namespace=groups.namespace)) == len(ZONE_BY_WORKLOAD)

    await poll_until(have_pods)
    async with prometheus_run as prometheus:
        flags = f"--prometheus={prometheus.url}", f"--kubeconfig={control_plane.kubeconfig}", "--apply"
        program = Path(sys.executable).parent / "kubectl-netaware"
        await run_command([program, "propose", "-n", groups.namespace, *flags], "propose", 60)

    (group,) = await groups.client.list(APPGROUPS, AppGroup, namespace=groups.namespace)
    calls = {
        (caller.workload.name, callee.workload.name)
        for caller in group.spec.workloads or ()
        for callee in caller.dependencies or ()
    }
    assert calls == set(BYTES_PER_S_BY_CALL)
    for deployment in await groups.client.list(DEPLOYMENTS, dict[str, Any], namespace=groups.namespace):
        assert APPGROUP_LABEL in deployment["spec"]["template"]["metadata"]["labels"]
