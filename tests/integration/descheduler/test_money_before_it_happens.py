"""What a placement or a move costs a month is told before it happens: by every command that tells it, for people, scripts and spreadsheets."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES
from controller.traffic.prices import per_month
from kubekit.wire import Object
from netperf.contract import MEASURED_WEIGHTS_ANNOTATION, ZONE_LABEL
from tests.integration.conftest import MakeNode
from tests.integration.descheduler.stage import Stage, place
from tests.integration.descheduler.test_descheduler_misplaced import FAR, NEAR, create_group, member

RATE = 1_000_000.0
MONTH = per_month(RATE, 0.02)
"""Of AWS' list price between zones."""
GROUP = f"""\
apiVersion: {APPGROUPS.api_version}
kind: AppGroup
metadata: {{name: shop, namespace: NAMESPACE}}
spec:
  numMembers: 2
  topologySortingAlgorithm: KahnSort
  workloads:
    - workload: {{kind: ReplicaSet, name: web, selector: web, apiVersion: apps/v1, namespace: NAMESPACE}}
      dependencies:
        - workload: {{kind: ReplicaSet, name: db, selector: db, apiVersion: apps/v1, namespace: NAMESPACE}}
          maxNetworkCost: 15
    - workload: {{kind: ReplicaSet, name: db, selector: db, apiVersion: apps/v1, namespace: NAMESPACE}}
"""


async def run(stage: Stage, *argv: str, prices: str = "aws") -> tuple[str, str]:
    """What a command says, and what it remarks."""
    script = Path(sys.executable).parent / "kubectl-netaware"
    flags = ["--kubeconfig", str(stage.plane.kubeconfig), "--netaware-namespace", stage.namespace]
    flags += ["-n", stage.namespace, *([f"--prices={prices}"] if prices else [])]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(script, *argv, *flags, stdout=pipe, stderr=pipe)
    out, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, errors.decode()
    return out.decode(), errors.decode()


async def all_three(stage: Stage, *argv: str) -> tuple[str, Any, list[dict[str, str]]]:
    """The table, the JSON and the CSV of a command."""
    table, data, rows = [(await run(stage, *argv, "-o", form))[0] for form in ("table", "json", "csv")]
    return table, json.loads(data), list(csv.DictReader(io.StringIO(rows)))


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("crds")
async def test_every_command_tells_the_money_in_every_form(stage: Stage, make_node: MakeNode) -> None:
    client, namespace = stage.client, stage.namespace
    nodes = {zone: f"{zone}-{namespace}" for zone in (NEAR, FAR)}
    for zone, name in nodes.items():
        await make_node(name, zone=zone, region="r", capacity={"cpu": "8"}, labels=stage.label)
        stage.usage.nodes.add(name)
    await create_group(client, namespace)
    costs = [{"origin": a, "costList": [{"destination": b, "networkCost": 60}]} for a, b in ((NEAR, FAR), (FAR, NEAR))]
    weights = [{"name": "UserDefined", "topologyList": [{"topologyKey": ZONE_LABEL, "originList": costs}]}]
    await client.patch(NETWORK_TOPOLOGIES, "nt-default", {"spec": {"weights": weights}}, Object, namespace=namespace)
    await place(client, namespace, "db", 0.2, [nodes[NEAR]], labels=member("db"))
    await place(client, namespace, "web", 0.2, [nodes[FAR]], labels=member("web"))
    await stage.running(2)
    config = stage.folder / "command.yaml"
    head = {"apiVersion": "netaware.io/v1alpha1", "kind": "ControllerConfiguration"}
    section = stage.config(misplacement={"enabled": True, "holdS": 1})
    config.write_text(yaml.safe_dump({**head, "descheduler": section}))
    deschedule = ("deschedule", "--dry-run", "--config", str(config))
    _, remarks = await run(stage, *deschedule)
    assert "no traffic, or no place to go, is known of 1 move" in remarks

    measured = {MEASURED_WEIGHTS_ANNOTATION: json.dumps({"web": {"db": RATE}})}
    await client.patch(APPGROUPS, "shop", {"metadata": {"annotations": measured}}, Object, namespace=namespace)
    table, data, (row,) = await all_three(stage, *deschedule)
    assert row["pod"] == data["plan"]["moves"][0]["pod"]
    assert float(row["month_saved"]) == pytest.approx(MONTH) == data["money"][0]["saved"]
    assert (row["currency"], row["money_by"]) == ("USD", "measured traffic")
    assert "a month in all" in table

    table, data, rows = await all_three(stage, "explain", "pod", "web-first-0")
    assert data["now"]["pod"] == f"{namespace}/web-first-0"
    assert {row["zone"]: float(row["month"]) for row in rows if row["zone"] in nodes} == {
        NEAR: 0.0,
        FAR: pytest.approx(MONTH),
    }
    assert data["money"]["byZone"][FAR] == pytest.approx(MONTH)
    assert "its calls cost a month" in table
    table, _ = await run(stage, "explain", "group", "shop")
    assert "a month as it stands" in table

    group = stage.folder / "group.yaml"
    group.write_text(GROUP.replace("NAMESPACE", namespace))
    table, data, (row,) = await all_three(stage, "simulate", "-f", str(group))
    assert float(row["network_aware_month"]) == data["networkAware"]["month"] == 0.0
    assert row["default_month"] != ""
    assert "money by measured traffic" in table
