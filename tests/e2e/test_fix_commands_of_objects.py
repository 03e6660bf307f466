"""In the lab, the fix commands of the first finding resolve it, for each obstacle to scheduling.

Findings whose fix needs a user's decision only describe it; `Case.manual_fix` then has the commands. Faults of our
programs are in test_fix_commands_of_programs.py, on real nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from lab.cluster import Lab
from netperf.contract import BANDWIDTH_RESOURCE, ZONE_LABEL
from tests.e2e.labs import installed_lab
from tests.e2e.terminal import Terminal, summarize
from tests.support.bodies import make_appgroup_body, make_deployment
from tests.support.tasks import running_tasks
from tests.unit.controller.situations import SITUATIONS

DEADLINE_S = 420.0
Json = dict[str, Any]
PROBING = {"intervalS": 6, "slotS": 2, "durationS": 0.8}
CODE_BY_SITUATION = {situation.name: situation.code for situation in SITUATIONS}

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1500)]


@dataclass(frozen=True)
class Case:
    """An obstacle to scheduling. ``NS`` in objects and commands stands for the namespace of the case.

    Attributes:
        name: name of the situation in tests/unit/controller/situations.py.
        objects: objects that cause it.
        manual_fix: commands for a fix that the finding only describes.
        placeholders: word in capitals of a fix command -> value.
        setup: commands that change objects outside the namespace.
        teardown: commands that undo ``setup``.
    """

    name: str
    objects: Sequence[Json] = ()
    manual_fix: Sequence[str] = ()
    placeholders: dict[str, str] = field(default_factory=dict)
    setup: Sequence[str] = ()
    teardown: Sequence[str] = ()


def make_resources(resource: str, amount: str) -> Json:
    return {"requests": {resource: amount}, "limits": {resource: amount}}


def make_workload(
    name: str, *, replicas: int = 1, resources: Json | None = None, host_port: int = 0, **spec: Any
) -> Json:
    """A Deployment of a workload of the AppGroup ``shop``; other keywords are fields of its pods' spec."""
    container: Json = {"name": "main", "image": "none", "resources": resources or {}}
    if host_port:
        container["ports"] = [{"containerPort": host_port, "hostPort": host_port}]
    labels = {APPGROUP_LABEL: "shop", WORKLOAD_LABEL: name}
    spec = {"schedulerName": "network-aware-scheduler", "automountServiceAccountToken": False, **spec}
    return make_deployment(name, container, labels=labels, replicas=replicas, **spec)


def make_bound_pod(name: str, node: str, resources: Json) -> Json:
    """A pod that already has a node."""
    template = make_workload(name, resources=resources, nodeName=node)["spec"]["template"]
    metadata = {"name": name, **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def make_volume(node: str = "") -> Json:
    """A volume for the claim ``data``, which only pods on ``node`` may use."""
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
FRONT = make_appgroup_body("shop", {"front": {}})
FRONT_OF_NINE = make_appgroup_body("shop", {"front": {}}, members=9)
ANTI_AFFINITY: Json = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "front"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


def make_patch_command(**spec: Any) -> str:
    """A command that changes the spec of front's pods."""
    return f"kubectl -n NS patch deployment front -p '{json.dumps({'spec': {'template': {'spec': spec}}})}'"


def make_resources_command(resource: str, amount: str) -> str:
    """A command that changes the resources of front's pods."""
    return make_patch_command(containers=[{"name": "main", "resources": make_resources(resource, amount)}])


SCALE_TO_EIGHT = (
    "kubectl -n NS scale deployment/front --replicas=8",
    # Without this, diagnose would report a missing pod after ten minutes.
    """kubectl -n NS patch appgroup shop --type=merge -p '{"spec":{"numMembers":8}}'""",
)
PARALLEL_CASES: tuple[Case, ...] = (
    Case(
        "all nodes are full",
        [FRONT, make_workload("front", resources=make_resources("cpu", "100"))],
        manual_fix=[make_resources_command("cpu", "100m")],
    ),
    Case(
        "a node selector that matches no node",
        [FRONT, make_workload("front", nodeSelector={"zone": "mars"})],
        manual_fix=[make_patch_command(nodeSelector=None)],
    ),
    Case(
        "a volume in another zone",
        [
            FRONT,
            # With this pod, n8 has 0.1 of its 4 CPUs left.
            make_bound_pod("hog", "n8", make_resources("cpu", "3900m")),
            make_volume("n8"),
            CLAIM,
            make_workload("front", resources=make_resources("cpu", "500m"), **WITH_CLAIM),
        ],
        manual_fix=["kubectl -n NS delete pod hog --grace-period=0 --force"],
    ),
    Case(
        "an unbound claim",
        [FRONT, CLAIM, make_workload("front", **WITH_CLAIM)],
        manual_fix=[f"echo '{json.dumps(make_volume())}' | kubectl create -f -"],
    ),
    Case(
        "no node has enough bandwidth",
        [FRONT, make_workload("front", resources=make_resources(BANDWIDTH_RESOURCE, "100T"))],
        manual_fix=[make_resources_command(BANDWIDTH_RESOURCE, "1M")],
        placeholders={"NODE": "n1", "SPEED": "1G"},
    ),
    Case(
        "host ports in use",
        [FRONT_OF_NINE, make_workload("front", replicas=9, host_port=31999)],
        manual_fix=SCALE_TO_EIGHT,
    ),
    Case(
        "anti-affinity with more replicas than nodes",
        [FRONT_OF_NINE, make_workload("front", replicas=9, affinity=ANTI_AFFINITY)],
        manual_fix=SCALE_TO_EIGHT,
    ),
    Case(
        "a namespace without consent",
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "NS-other"}},
            make_appgroup_body("shop", {"front": {}, "cart": {}}, members=2, namespaces={"cart": "NS-other"}),
            make_workload("front"),
            {**make_workload("cart"), "metadata": {"name": "cart", "namespace": "NS-other"}},
        ],
    ),
)
SERIAL_CASES: tuple[Case, ...] = (
    Case(
        "every node has a taint",
        [FRONT, make_workload("front", nodeSelector={ZONE_LABEL: "z3"})],
        setup=["kubectl taint nodes n5 n6 n7 gpu=only:NoSchedule"],
        teardown=["kubectl taint nodes n5 n6 n7 gpu-"],
    ),
    Case(
        "every node is cordoned",
        [FRONT, make_workload("front", nodeSelector={"kubernetes.io/hostname": "n5"})],
        setup=["kubectl cordon n1 n5"],
        teardown=["kubectl uncordon n1"],
    ),
)
"""Cases that affect other namespaces."""


class FixRunner:
    """Runs cases in a lab and reads findings."""

    def __init__(self, lab: Lab) -> None:
        self.terminal = Terminal(lab.control_plane.kubectl, lab.control_plane.kubeconfig)
        # Limits concurrent commands, for machines with two processors.
        self._semaphore = asyncio.Semaphore(3)
        self.findings: list[Json] = []
        self._reads = 0

    async def read_findings(self) -> None:
        """Read the findings of all cases every second. Never returns."""
        while True:
            # diagnose may fail or be slow while the API server is busy.
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, json.JSONDecodeError):
                self.findings = await asyncio.to_thread(self.terminal.read_findings)
                self._reads += 1
            await asyncio.sleep(1)

    async def wait_until(self, check: Callable[[], bool], message: Callable[[], str]) -> None:
        """Wait until ``check`` is true with findings that are read after this call."""
        # The read that runs at this moment may be older.
        deadline_s, unusable_reads = time.monotonic() + DEADLINE_S, self._reads + 1
        while not (self._reads > unusable_reads and check()):
            if time.monotonic() > deadline_s:
                pytest.fail(message())
            await asyncio.sleep(0.2)

    async def wait_until_no_findings(self) -> None:
        await self.wait_until(lambda: not self.findings, lambda: str(summarize(self.findings)))

    async def paste(self, line: str) -> str:
        async with self._semaphore:
            code, output = await asyncio.to_thread(self.terminal.paste, line)
        # The plugin exits with 1 if what it shows is bad.
        assert code == 0 or line.startswith("kubectl netaware "), f"{line}: {output}"
        return output

    async def create(self, objects: Sequence[Json], namespace: str) -> None:
        for body in objects:
            document = json.dumps(body).replace("NS", namespace)
            option = "" if "namespace" in body["metadata"] else f"-n {namespace}"
            await self.paste(f"echo {shlex.quote(document)} | kubectl {option} create -f -")

    def list_findings(self, namespace: str) -> list[Json]:
        """The findings that affect objects of a namespace."""
        return [f for f in self.findings if any(name.startswith(f"{namespace}/") for name in f["affects"])]

    async def resolve(self, case: Case, namespace: str) -> None:
        """Wait for the finding of a case whose objects exist, run its fix commands, and wait until it is gone."""
        code = CODE_BY_SITUATION[case.name]
        await self.wait_until(
            lambda: any(f["code"] == code for f in self.list_findings(namespace)),
            lambda: f"{case.name} has no finding: {summarize(self.findings)}",
        )
        first_finding = self.list_findings(namespace)[0]
        assert first_finding["code"] == code, f"{case.name}: {summarize(self.list_findings(namespace))}"
        for line in first_finding["fix"]:
            if command := self.terminal.find_command(line, case.placeholders):
                await self.paste(command)
        for line in case.manual_fix:
            await self.paste(line.replace("NS", namespace))
        await self.wait_until(
            lambda: all(f["code"] != code for f in self.list_findings(namespace)),
            lambda: f"not resolved by {first_finding['fix']}: {summarize(self.list_findings(namespace))}",
        )


async def run_case(runner: FixRunner, case: Case, namespace: str) -> None:
    await runner.paste(f"kubectl create namespace {namespace}")
    for line in case.setup:
        await runner.paste(line)
    await runner.create(case.objects, namespace)
    await runner.resolve(case, namespace)
    for line in case.teardown:
        await runner.paste(line)


async def run_in_parallel(runner: FixRunner, cases: Sequence[Case]) -> None:
    """Run cases at the same time, each in its namespace; fail with all failures."""
    runs = (run_case(runner, case, f"s{i}-{len(cases)}") for i, case in enumerate(cases))
    results = await asyncio.gather(*runs, return_exceptions=True)
    failed = [f"{case.name}: {result}" for case, result in zip(cases, results, strict=True) if result is not None]
    assert failed == [], "\n".join(failed)


@pytest.mark.usefixtures("require_lab_privileges")
async def test_the_fix_commands_of_the_first_finding_resolve_it() -> None:
    async with installed_lab("e2e-lines", controller_config={"topology": {"probing": PROBING}}) as (lab, _, _):
        runner = FixRunner(lab)
        async with running_tasks(runner.read_findings()):
            await runner.wait_until_no_findings()
            await run_in_parallel(runner, PARALLEL_CASES)
            for i, case in enumerate(SERIAL_CASES):
                await runner.wait_until_no_findings()
                await run_case(runner, case, f"alone{i}")
