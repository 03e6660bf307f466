"""In the lab: the fix commands of the first finding resolve it, for each obstacle to scheduling.

Commands are pasted. Where a fix is only described, because somebody has to decide, `Case.manual_fix` does it. Situations that objects
alone make are in tests/unit/controller/situations.py, those of our own programs in test_fix_commands_of_programs.py, on nodes with kubelets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from lab.cluster import Lab
from netperf.contract import ZONE_LABEL
from tests.e2e.labs import installed_lab
from tests.e2e.terminal import Terminal, summarize
from tests.unit.controller.situations import SITUATIONS

DEADLINE_S = 420.0
Json = dict[str, Any]
OURS = "network-aware-scheduler"
PROBING = {"intervalS": 6, "slotS": 2, "durationS": 0.8}
CODES = {situation.name: situation.code for situation in SITUATIONS}

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1500)]


@dataclass(frozen=True)
class Case:
    """One situation.

    Attributes:
        name: as in tests/unit/controller/situations.py.
        objects: what makes it; ``NS`` in them is the case's own namespace.
        manual_fix: commands for fixes that are only described.
        placeholders: values for the words in capitals.
        setup: commands that change objects outside the namespace.
        teardown: commands that undo ``setup``.
    """

    name: str
    objects: Sequence[Json] = ()
    manual_fix: Sequence[str] = ()
    placeholders: dict[str, str] = field(default_factory=dict)
    setup: Sequence[str] = ()
    teardown: Sequence[str] = ()


def workload(name: str, *calls: str, limit: int = 100, **more: Any) -> Json:
    needs = [{"workload": {"kind": "Deployment", "name": c, "selector": c}, "maxNetworkCost": limit} for c in calls]
    return {"workload": {"kind": "Deployment", "name": name, "selector": name, **more}, "dependencies": needs}


def make_group(*workloads: Json, members: int = 1) -> Json:
    spec = {"numMembers": members, "topologySortingAlgorithm": "ReverseKahn", "workloads": list(workloads)}
    return {
        "apiVersion": "appgroup.diktyo.x-k8s.io/v1alpha1",
        "kind": "AppGroup",
        "metadata": {"name": "shop"},
        "spec": spec,
    }


def deployment(
    name: str, *, replicas: int = 1, app_group: str = "shop", selector: str = "", request: str = "", **spec: Any
) -> Json:
    labels = {"app": name, APPGROUP_LABEL: app_group, WORKLOAD_LABEL: selector or name}
    container: Json = {"name": "main", "image": "none"}
    if request:
        resource, _, amount = request.partition("=")
        container["resources"] = {"requests": {resource: amount}, "limits": {resource: amount}}
    if port := spec.pop("host_port", 0):
        container["ports"] = [{"containerPort": port, "hostPort": port}]
    known = {"schedulerName": OURS, "automountServiceAccountToken": False, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": {**known, **spec}}
    body = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": body}


def pod(name: str, node: str) -> Json:
    """One that is placed already, by hand."""
    made = deployment(name, nodeName=node)["spec"]["template"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **made["metadata"]}, "spec": made["spec"]}


def volume(node: str = "") -> Json:
    spec: Json = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "hostPath": {"path": "/nowhere"},
        "claimRef": {"namespace": "NS", "name": "data"},
    }
    if node:
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "NS"}, "spec": spec}


CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
WITH_CLAIM: Json = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
FRONT = make_group(workload("front"))
ANTI_AFFINITY: Json = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "front"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


def patch_template(name: str, **spec: Any) -> str:
    """A command that changes a Deployment's template."""
    return f"kubectl -n NS patch deployment {name} -p '{json.dumps({'spec': {'template': {'spec': spec}}})}'"


def patch_requests(amount: str) -> str:
    resource, _, value = amount.partition("=")
    resources = {"requests": {resource: value}, "limits": {resource: value}}
    return patch_template("front", containers=[{"name": "main", "resources": resources}])


SCALE_TO_EIGHT = (
    "kubectl -n NS scale deployment/front --replicas=8",
    # Otherwise the finding of a missing pod follows after ten minutes.
    """kubectl -n NS patch appgroup shop --type=merge -p '{"spec":{"numMembers":8}}'""",
)
PARALLEL_CASES: tuple[Case, ...] = (
    Case("no node has room", [FRONT, deployment("front", request="cpu=100")], manual_fix=[patch_requests("cpu=100m")]),
    Case(
        "a node selector that fits nothing",
        [FRONT, deployment("front", nodeSelector={"zone": "mars"})],
        manual_fix=[patch_template("front", nodeSelector=None)],
    ),
    Case(
        "a volume in another zone",
        [
            FRONT,
            {
                **pod("hog", "n8"),
                "spec": deployment("hog", request="cpu=3900m", nodeName="n8")["spec"]["template"]["spec"],
            },
            volume("n8"),
            CLAIM,
            deployment("front", request="cpu=500m", **WITH_CLAIM),
        ],
        manual_fix=["kubectl -n NS delete pod hog --grace-period=0 --force"],
    ),
    Case(
        "a claim that is not bound",
        [FRONT, CLAIM, deployment("front", **WITH_CLAIM)],
        manual_fix=[f"echo '{json.dumps(volume())}' | kubectl create -f -"],
    ),
    Case(
        "no bandwidth left",
        [FRONT, deployment("front", request="network.aware.com/bandwidth=100T")],
        manual_fix=[patch_requests("network.aware.com/bandwidth=1M")],
        placeholders={"NODE": "n1", "SPEED": "1G"},
    ),
    Case(
        "host ports that are taken",
        [make_group(workload("front"), members=9), deployment("front", replicas=9, host_port=31999)],
        manual_fix=SCALE_TO_EIGHT,
    ),
    Case(
        "anti-affinity with more replicas than nodes",
        [make_group(workload("front"), members=9), deployment("front", replicas=9, affinity=ANTI_AFFINITY)],
        manual_fix=SCALE_TO_EIGHT,
    ),
    Case(
        "a namespace that does not let the group in",
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "NS-other"}},
            make_group(workload("front"), workload("cart", namespace="NS-other"), members=2),
            deployment("front"),
            {**deployment("cart"), "metadata": {"name": "cart", "namespace": "NS-other"}},
        ],
    ),
)
PINNED: Json = {"nodeSelector": {"kubernetes.io/hostname": "n5"}}
SERIAL_CASES: tuple[Case, ...] = (
    Case(
        "every node has a taint",
        [FRONT, deployment("front", nodeSelector={ZONE_LABEL: "z3"})],
        setup=["kubectl taint nodes n5 n6 n7 gpu=only:NoSchedule"],
        teardown=["kubectl taint nodes n5 n6 n7 gpu-"],
    ),
    Case(
        "every node is cordoned",
        [FRONT, deployment("front", **PINNED)],
        setup=["kubectl cordon n1 n5"],
        teardown=["kubectl uncordon n1"],
    ),
)
"""Cases that affect other namespaces."""


class FixRunner:
    """Runs cases in a lab and reads findings."""

    def __init__(self, lab: Lab) -> None:
        self.terminal = Terminal(lab.control_plane.kubectl, lab.control_plane.kubeconfig)
        # A machine of two processors runs few commands at once.
        self._few = asyncio.Semaphore(3)
        self.found: list[Json] = []
        self._count = 0

    async def read_findings(self) -> None:
        """Read the findings again and again, for all cases."""
        while True:
            # diagnose may fail or be slow while the API server is busy.
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, json.JSONDecodeError):
                self.found = await asyncio.to_thread(self.terminal.read_findings)
                self._count += 1
            await asyncio.sleep(1)

    async def until(self, check: Callable[[], bool], message: Callable[[], str]) -> None:
        """Wait until what was found after this call is as wanted."""
        begun, seen = time.monotonic(), self._count + 1
        while not (self._count > seen and check()):
            if time.monotonic() - begun > DEADLINE_S:
                pytest.fail(message())
            await asyncio.sleep(0.2)

    async def until_clean(self) -> None:
        await self.until(lambda: not self.found, lambda: str(summarize(self.found)))

    async def paste(self, line: str) -> str:
        async with self._few:
            code, said = await asyncio.to_thread(self.terminal.paste, line)
        # The plugin exits with 1 if what it shows is bad.
        assert code == 0 or line.startswith("kubectl netaware "), f"{line}: {said}"
        return said

    async def apply(self, objects: Sequence[Json], namespace: str) -> None:
        for body in objects:
            text = json.dumps(body).replace("NS", namespace).replace("'", "'\\''")
            where = "" if '"namespace"' in json.dumps(body["metadata"]) else f"-n {namespace}"
            await self.paste(f"echo '{text}' | kubectl {where} create -f -")

    async def resolve(self, case: Case, namespace: str) -> None:
        """Wait for the finding, run its fix commands, and wait until it is gone.

        Args:
            case: its objects exist already.
            namespace: of the case.
        """
        code = CODES[case.name]

        def findings_of_namespace() -> list[Json]:
            prefix = f"{namespace}/"
            return [f for f in self.found if any(name.startswith(prefix) for name in f["affects"])]

        await self.until(
            lambda: any(f["code"] == code for f in findings_of_namespace()),
            lambda: f"{case.name} not named: {summarize(self.found)}",
        )
        first = findings_of_namespace()[0]
        assert first["code"] == code, f"{case.name}: {summarize(findings_of_namespace())}"
        for line in first["fix"]:
            command = self.terminal.command_in(line, case.placeholders)
            if command:
                await self.paste(command)
        for line in case.manual_fix:
            await self.paste(line.replace("NS", namespace))
        await self.until(
            lambda: all(f["code"] != code for f in findings_of_namespace()),
            lambda: f"not ended by {first['fix']}: {summarize(findings_of_namespace())}",
        )


async def run_case(runner: FixRunner, case: Case, namespace: str) -> None:
    await runner.paste(f"kubectl create namespace {namespace}")
    for line in case.setup:
        await runner.paste(line)
    await runner.apply(case.objects, namespace)
    await runner.resolve(case, namespace)
    for line in case.teardown:
        await runner.paste(line)


async def run_in_parallel(runner: FixRunner, cases: Sequence[Case]) -> None:
    """Each in a namespace of its own, all at the same time; all failures are reported."""
    each = (run_case(runner, case, f"s{i}-{len(cases)}") for i, case in enumerate(cases))
    done = await asyncio.gather(*each, return_exceptions=True)
    failed = [f"{case.name}: {result}" for case, result in zip(cases, done, strict=True) if result is not None]
    assert failed == [], "\n".join(failed)


@pytest.mark.usefixtures("privileges")
async def test_the_fix_commands_of_the_first_finding_resolve_it() -> None:
    async with installed_lab("e2e-lines", controller_config={"topology": {"probing": PROBING}}) as (lab, _, _):
        runner = FixRunner(lab)
        reading = asyncio.ensure_future(runner.read_findings())
        try:
            await runner.until_clean()
            await run_in_parallel(runner, PARALLEL_CASES)
            for i, case in enumerate(SERIAL_CASES):
                await runner.until_clean()
                await run_case(runner, case, f"alone{i}")
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
