"""In the lab, the fix commands of the first finding resolve it, for each obstacle to scheduling.

Findings whose fix needs a user's decision only describe it; `Case.manual_fix` then has the commands. Faults of our programs are in
test_fix_commands_of_programs.py, on real nodes.
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
from tests.support.bodies import make_appgroup_body
from tests.unit.controller.situations import SITUATIONS

DEADLINE_S = 420.0
Json = dict[str, Any]
OURS = "network-aware-scheduler"
PROBING = {"intervalS": 6, "slotS": 2, "durationS": 0.8}
CODES = {situation.name: situation.code for situation in SITUATIONS}

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1500)]


@dataclass(frozen=True)
class Case:
    """An obstacle to scheduling.

    Attributes:
        name: name of the situation in tests/unit/controller/situations.py.
        objects: objects that cause it; ``NS`` in them is the namespace of the case.
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


def build_deployment(name: str, *, replicas: int = 1, request: str = "", **spec: Any) -> Json:
    labels = {"app": name, APPGROUP_LABEL: "shop", WORKLOAD_LABEL: name}
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


def build_pod(name: str, node: str) -> Json:
    """Return a pod that already has a node."""
    template = build_deployment(name, nodeName=node)["spec"]["template"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **template["metadata"]},
        "spec": template["spec"],
    }


def build_volume(node: str = "") -> Json:
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


def patch_template(name: str, **spec: Any) -> str:
    """Return a command that changes the pods of a Deployment's template."""
    return f"kubectl -n NS patch deployment {name} -p '{json.dumps({'spec': {'template': {'spec': spec}}})}'"


def patch_requests(amount: str) -> str:
    resource, _, value = amount.partition("=")
    resources = {"requests": {resource: value}, "limits": {resource: value}}
    return patch_template("front", containers=[{"name": "main", "resources": resources}])


SCALE_TO_EIGHT = (
    "kubectl -n NS scale deployment/front --replicas=8",
    # Without this, diagnose would report a missing pod after ten minutes.
    """kubectl -n NS patch appgroup shop --type=merge -p '{"spec":{"numMembers":8}}'""",
)
PARALLEL_CASES: tuple[Case, ...] = (
    Case(
        "all nodes are full",
        [FRONT, build_deployment("front", request="cpu=100")],
        manual_fix=[patch_requests("cpu=100m")],
    ),
    Case(
        "a node selector that matches no node",
        [FRONT, build_deployment("front", nodeSelector={"zone": "mars"})],
        manual_fix=[patch_template("front", nodeSelector=None)],
    ),
    Case(
        "a volume in another zone",
        [
            FRONT,
            {
                **build_pod("hog", "n8"),
                "spec": build_deployment("hog", request="cpu=3900m", nodeName="n8")["spec"]["template"]["spec"],
            },
            build_volume("n8"),
            CLAIM,
            build_deployment("front", request="cpu=500m", **WITH_CLAIM),
        ],
        manual_fix=["kubectl -n NS delete pod hog --grace-period=0 --force"],
    ),
    Case(
        "an unbound claim",
        [FRONT, CLAIM, build_deployment("front", **WITH_CLAIM)],
        manual_fix=[f"echo '{json.dumps(build_volume())}' | kubectl create -f -"],
    ),
    Case(
        "no node has enough bandwidth",
        [FRONT, build_deployment("front", request="network.aware.com/bandwidth=100T")],
        manual_fix=[patch_requests("network.aware.com/bandwidth=1M")],
        placeholders={"NODE": "n1", "SPEED": "1G"},
    ),
    Case(
        "host ports in use",
        [FRONT_OF_NINE, build_deployment("front", replicas=9, host_port=31999)],
        manual_fix=SCALE_TO_EIGHT,
    ),
    Case(
        "anti-affinity with more replicas than nodes",
        [
            FRONT_OF_NINE,
            build_deployment("front", replicas=9, affinity=ANTI_AFFINITY),
        ],
        manual_fix=SCALE_TO_EIGHT,
    ),
    Case(
        "a namespace without consent",
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "NS-other"}},
            make_appgroup_body("shop", {"front": {}, "cart": {}}, members=2, namespaces={"cart": "NS-other"}),
            build_deployment("front"),
            {**build_deployment("cart"), "metadata": {"name": "cart", "namespace": "NS-other"}},
        ],
    ),
)
PINNED: Json = {"nodeSelector": {"kubernetes.io/hostname": "n5"}}
SERIAL_CASES: tuple[Case, ...] = (
    Case(
        "every node has a taint",
        [FRONT, build_deployment("front", nodeSelector={ZONE_LABEL: "z3"})],
        setup=["kubectl taint nodes n5 n6 n7 gpu=only:NoSchedule"],
        teardown=["kubectl taint nodes n5 n6 n7 gpu-"],
    ),
    Case(
        "every node is cordoned",
        [FRONT, build_deployment("front", **PINNED)],
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
        started, running_read = time.monotonic(), self._reads + 1
        while not (self._reads > running_read and check()):
            if time.monotonic() - started > DEADLINE_S:
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

    async def apply(self, objects: Sequence[Json], namespace: str) -> None:
        for body in objects:
            text = json.dumps(body).replace("NS", namespace).replace("'", "'\\''")
            where = "" if '"namespace"' in json.dumps(body["metadata"]) else f"-n {namespace}"
            await self.paste(f"echo '{text}' | kubectl {where} create -f -")

    async def resolve(self, case: Case, namespace: str) -> None:
        """Wait for the finding of a case whose objects exist, run its fix commands, and wait until it is gone."""
        code = CODES[case.name]

        def findings_of_namespace() -> list[Json]:
            prefix = f"{namespace}/"
            return [f for f in self.findings if any(name.startswith(prefix) for name in f["affects"])]

        await self.wait_until(
            lambda: any(f["code"] == code for f in findings_of_namespace()),
            lambda: f"{case.name} has no finding: {summarize(self.findings)}",
        )
        first = findings_of_namespace()[0]
        assert first["code"] == code, f"{case.name}: {summarize(findings_of_namespace())}"
        for line in first["fix"]:
            command = self.terminal.command_in(line, case.placeholders)
            if command:
                await self.paste(command)
        for line in case.manual_fix:
            await self.paste(line.replace("NS", namespace))
        await self.wait_until(
            lambda: all(f["code"] != code for f in findings_of_namespace()),
            lambda: f"not resolved by {first['fix']}: {summarize(findings_of_namespace())}",
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
    """Run cases at the same time, each in its namespace; fail with all failures."""
    runs = (run_case(runner, case, f"s{i}-{len(cases)}") for i, case in enumerate(cases))
    results = await asyncio.gather(*runs, return_exceptions=True)
    failed = [f"{case.name}: {result}" for case, result in zip(cases, results, strict=True) if result is not None]
    assert failed == [], "\n".join(failed)


@pytest.mark.usefixtures("require_lab_privileges")
async def test_the_fix_commands_of_the_first_finding_resolve_it() -> None:
    async with installed_lab("e2e-lines", controller_config={"topology": {"probing": PROBING}}) as (lab, _, _):
        runner = FixRunner(lab)
        reader = asyncio.ensure_future(runner.read_findings())
        try:
            await runner.wait_until_no_findings()
            await run_in_parallel(runner, PARALLEL_CASES)
            for i, case in enumerate(SERIAL_CASES):
                await runner.wait_until_no_findings()
                await run_case(runner, case, f"alone{i}")
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
