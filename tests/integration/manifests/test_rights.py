"""All programs run with the shipped rights: the audit log shows no refused request and no unused right."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, NODES, PODS, SECRETS, ConfigMap, Node, Object, Pod
from lab.controlplane import ControlPlane, find_free_ports
from lab.credentials import credentials_dir
from lab.installation import start_central_program, write_bound_kubeconfig
from lab.polling import poll_until
from lab.programs import Program, run_command
from tests.integration.conftest import make_node, read_audit_events
from tests.integration.manifests.kubectl import MANIFESTS, NAMESPACE, Documents, Kubectl, delete_pods, install_overlay

CENTRAL_ACCOUNTS = ("netaware-controller", "netaware-scheduler", "netaware-gate-opener")
CENTRAL_PROGRAMS = {"manager", "extender", "gate-opener", "netaware-scheduler"}
ZONE_AND_ADDRESS_BY_NODE = {"rights-a": ("za", "127.88.1.1"), "rights-b": ("zb", "127.88.1.2")}
"""No other test uses these loopback addresses."""
DEADLINE_S = 45.0
# One client for all tests of this file, hence one loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True, order=True)
class RequestKind:
    """Requests of an account for a resource, by verb; ``group`` is the API group."""

    account: str
    group: str
    resource: str
    verb: str


RARE_USES = {
    RequestKind("netaware-agent", "", "nodes", "get"): "agent --cleanup",
    RequestKind("netaware-agent", "events.k8s.io", "events", "create"): "the verdict on a pod's limit changes",
    RequestKind("netaware-agent", "events.k8s.io", "events", "patch"): "an event is repeated",
    RequestKind("netaware-controller", "", "pods", "patch"): "a gate is opened",
    RequestKind("netaware-controller", "", "nodes", "patch"): "a node becomes overutilized, or no longer is",
    RequestKind("netaware-controller", "", "configmaps", "delete"): "the plan of a removed zone is deleted",
    RequestKind("netaware-controller", "events.k8s.io", "events", "patch"): "an event is repeated",
    RequestKind("netaware-controller", "", "pods/eviction", "create"): "a pod is evicted",
    RequestKind("netaware-gate-opener", "", "pods", "patch"): "a gate is overdue",
    RequestKind("netaware-scheduler", "", "configmaps", "list"): "the API server does not stream lists",
    RequestKind("netaware-controller", "authentication.k8s.io", "tokenreviews", "create"): "the page is opened",
    RequestKind("netaware-controller", "authorization.k8s.io", "subjectaccessreviews", "create"): "the page is opened",
    RequestKind("netaware-page", "", "services/proxy", "get"): "the page requires it from its users",
}
"""Right -> its use, which does not occur in this test."""


@dataclass
class Installation:
    """The running installation, and the number of audit events before it."""

    plane: ControlPlane
    kubectl: Kubectl
    admin: Client
    audit_log: Path
    earlier_event_count: int

    def read_refusals_by_request(self) -> dict[RequestKind, str]:
        """The last refusal of each kind of request of our accounts; empty if there was none."""
        refusals: dict[RequestKind, str] = {}
        for event in read_audit_events(self.audit_log)[self.earlier_event_count :]:
            if "objectRef" not in event:
                continue  # a request for discovery, which all users may send
            reference = event["objectRef"]
            resource = "/".join(filter(None, (reference["resource"], reference.get("subresource", ""))))
            account = event["user"]["username"].rpartition(":")[2]
            request = RequestKind(account, reference.get("apiGroup", ""), resource, event["verb"])
            status = event.get("responseStatus", {})
            refusal = f"{event['requestURI']}: {status.get('message', '')}" if status.get("code") in {401, 403} else ""
            refusals[request] = refusal or refusals.get(request, "")
        return refusals


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installation(
    plane: ControlPlane, kwok: Program, audit_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Installation]:
    earlier_event_count = len(read_audit_events(audit_log))
    earlier_programs = {program.name for program in plane.programs}
    await plane.start_scheduler()
    async with install_overlay(plane, "descheduler") as (kubectl, admin):
        for name, (zone, address) in ZONE_AND_ADDRESS_BY_NODE.items():
            node = make_node(name, zone=zone, region="r", address=address, labels={"kubernetes.io/os": "linux"})
            node["metadata"]["annotations"]["netaware.io/bandwidth-capacity"] = "10G"
            await admin.create(NODES, node, Node)
        installation = Installation(plane, kubectl, admin, audit_log, earlier_event_count)
        await _start_programs(installation, tmp_path_factory.mktemp("rights"))
        yield installation
        for program in [program for program in plane.programs if program.name not in earlier_programs]:
            await plane.programs.stop(program)
        await kubectl("delete", "--ignore-not-found", "--wait=false", "namespace/boutique")
        await delete_pods(kubectl, "boutique")
    await kubectl("delete", "node", *ZONE_AND_ADDRESS_BY_NODE)


async def _start_programs(installation: Installation, folder: Path) -> None:
    config = yaml.safe_load((MANIFESTS / "components" / "descheduler" / "config.yaml").read_text())
    config["descheduler"]["intervalS"] = 1
    # On a machine that is busy with tests, most samples have quality flags.
    cost_policy = {"acceptQualityFlags": ["throttled", "too-few-samples", "run-queue", "loss", "stalled"]}
    probing = {"intervalS": 3, "slotS": 1.5, "durationS": 0.5}
    config["topology"] = {"probing": probing, "costPolicy": cost_policy}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (extender_port,) = find_free_ports(1)
    plane, admin = installation.plane, installation.admin
    commands = (("manager", 0), ("extender", extender_port), ("gate-opener", 0))
    for account, (command, port) in zip(CENTRAL_ACCOUNTS, commands, strict=True):
        kubeconfig = await write_bound_kubeconfig(admin, plane, account, account)
        url, config_file = f"http://127.0.0.1:{port}", folder / "config.yaml"
        start_central_program(plane.programs, command, command, url, kubeconfig=kubeconfig, config=config_file)
    await _start_scheduler(plane, extender_port)
    passphrase = folder / "passphrase"
    passphrase.write_text("0123456789abcdef0123456789abcdef")
    for node, (_, address) in ZONE_AND_ADDRESS_BY_NODE.items():
        argv = [*await _build_agent_command(installation, node), f"--listen={address}:0", f"--namespace={NAMESPACE}"]
        plane.programs.start(f"agent-{node}", [*argv, f"--passphrase-file={passphrase}"])


async def _build_agent_command(installation: Installation, node: str) -> list[str]:
    kubeconfig = await write_bound_kubeconfig(
        installation.admin,
        installation.plane,
        "netaware-agent",
        f"agent-{node}",
        lambda pod: pod.spec.node_name == node,
    )
    credentials = f"--credentials={credentials_dir(kubeconfig)}"
    return [sys.executable, "-m", "agent", "run", f"--node-name={node}", credentials]


async def _start_scheduler(plane: ControlPlane, extender_port: int) -> None:
    """Start kube-scheduler with the shipped configuration, and another URL of the extender."""
    config = yaml.safe_load((MANIFESTS / "scheduler" / "kube-scheduler.yaml").read_text())
    for extender in config["extenders"]:
        extender["urlPrefix"] = extender["urlPrefix"].replace("9876", str(extender_port))
    name = "netaware-scheduler"
    await plane.start_scheduler(config, name=name, kubeconfig=plane.kubeconfig_of(name))


def list_granted_rights(documents: Documents) -> Iterator[RequestKind]:
    """All rights that Roles and ClusterRoles of the documents grant to accounts."""
    roles = {(d["kind"], d["metadata"]["name"]): d for d in documents if d["kind"] in {"Role", "ClusterRole"}}
    for binding in documents:
        if binding["kind"] not in {"RoleBinding", "ClusterRoleBinding"}:
            continue
        role = roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
        for rule in role["rules"] if role else ():
            for key in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]):
                yield RequestKind(binding["subjects"][0]["name"], *key)


def list_unused_rights(installation: Installation, rights: set[RequestKind]) -> list[RequestKind]:
    """Rights that are neither rare nor used yet."""
    used_rights = installation.read_refusals_by_request().keys()
    # A watch lists objects too, if the API server streams lists. Server-side apply of a new object needs both verbs.
    other_verb_by_verb = {"list": "watch", "create": "patch"}
    return sorted(
        right
        for right in rights - used_rights - RARE_USES.keys()
        if replace(right, verb=other_verb_by_verb.get(right.verb, right.verb)) not in used_rights
    )


async def test_costs_are_measured_and_capacities_published_with_the_shipped_rights(installation: Installation) -> None:
    admin = installation.admin

    async def has_measured_costs() -> bool:
        try:
            topology = await admin.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=NAMESPACE)
        except ApiError:
            return False
        installation.plane.programs.check_running()
        return any(c.type == "Measured" and c.status == "True" for c in topology.status.conditions or ())

    await poll_until(has_measured_costs, "measured costs in nt-default, which the controller creates", DEADLINE_S)
    secret = await admin.get(SECRETS, "netaware-probe", ConfigMap, namespace=NAMESPACE)
    assert len((secret.data or {})["passphrase"]) > 40
    results = await admin.get(CONFIGMAPS, "netperf-metrics", ConfigMap, namespace=NAMESPACE)
    assert results.data
    for name in ZONE_AND_ADDRESS_BY_NODE:
        node = await admin.get(NODES, name, Node)
        assert (node.status.capacity or {})["network.aware.com/bandwidth"] == "10G"
        assert node.metadata.annotation("netaware.io/agent")


async def test_appgroups_are_ordered_with_the_shipped_rights(installation: Installation) -> None:
    body = yaml.safe_load((MANIFESTS / "examples" / "online-boutique" / "appgroup.yaml").read_text())
    await installation.admin.create(APPGROUPS, {**body, "metadata": {"name": "shop"}}, Object, namespace="default")

    async def has_order() -> bool:
        group = await installation.admin.get(APPGROUPS, "shop", AppGroup, namespace="default")
        return len(group.status.topology_order or ()) == 11

    await poll_until(has_order, "the order of the Online Boutique", DEADLINE_S)


async def test_all_pods_of_the_example_are_bound_with_the_shipped_rights(installation: Installation) -> None:
    await installation.kubectl("create", "namespace", "boutique")
    await installation.kubectl("apply", "-n", "boutique", "-k", str(MANIFESTS / "examples" / "online-boutique"))

    async def are_bound() -> bool:
        pods = await installation.admin.list(PODS, Pod, namespace="boutique")
        return len([pod for pod in pods if pod.spec.node_name]) == 11

    await poll_until(are_bound, "eleven pods to be bound", DEADLINE_S)


async def test_no_request_was_refused(installation: Installation) -> None:
    refusals = installation.read_refusals_by_request()
    assert refusals
    assert {request: refusal for request, refusal in refusals.items() if refusal} == {}


async def test_every_granted_right_is_used(installation: Installation) -> None:
    documents = await installation.kubectl.build_kustomization(MANIFESTS / "overlays" / "descheduler")
    rights = set(list_granted_rights(documents))
    assert len(rights) > 20
    role_names = {d["roleRef"]["name"] for d in documents if d["kind"].endswith("RoleBinding")}
    kubernetes_roles = role_names - {d["metadata"]["name"] for d in documents}
    assert kubernetes_roles == {"system:kube-scheduler", "system:volume-scheduler"}
    assert RARE_USES.keys() <= rights
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            while list_unused_rights(installation, rights):
                await asyncio.sleep(0.5)
    assert list_unused_rights(installation, rights) == []


async def test_cleanup_removes_all_that_agents_wrote(installation: Installation) -> None:
    """This is the last test of the file, because it stops the agents."""
    for program in list(installation.plane.programs):
        if program.name.startswith("agent-") or program.name in CENTRAL_PROGRAMS:
            await installation.plane.programs.stop(program)
    for name in ZONE_AND_ADDRESS_BY_NODE:
        command = [*await _build_agent_command(installation, name), "--cleanup=once"]
        await run_command(command, "the clean-up", 30)
        node = await installation.admin.get(NODES, name, Node)
        annotations = [key for key in node.metadata.annotations or {} if key.startswith("netaware.io/")]
        assert annotations == ["netaware.io/bandwidth-capacity"], "only that of the administrator"
        assert "network.aware.com/bandwidth" not in {**(node.status.capacity or {}), **(node.status.allocatable or {})}
        assert "NetawareBandwidth" not in [condition.type for condition in node.status.conditions or ()]
    pods = await installation.admin.list(PODS, Pod, namespace="boutique")
    assert len([pod for pod in pods if pod.spec.node_name]) == 11, "the workload stays"
