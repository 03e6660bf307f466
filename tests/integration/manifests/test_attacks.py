"""A stolen token of each program tries everything, on the real API server with the shipped rights and policies.

What succeeded is the table in stolen_tokens.md, which this test holds to be true; NETAWARE_WRITE_TABLES=1 writes it anew.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from kubekit.client import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client
from kubekit.errors import ApiError
from lab.controlplane import ControlPlane
from tests.integration.conftest import eventually
from tests.integration.manifests.attacks import VERBS, Json, Passed, Schemas, attempt, changeable, kinds, sweep
from tests.integration.manifests.conftest import TokenFor
from tests.integration.manifests.kubectl import MANIFESTS, NAMESPACE, Kubectl, established

# The most that a shipped overlay gives: the default, and the descheduler's rights on top.
OVERLAY = MANIFESTS / "overlays" / "descheduler"
DOCUMENT = Path(__file__).with_name("stolen_tokens.md")
BEGIN, END = "<!-- begin: what stolen tokens can do -->\n", "<!-- end: what stolen tokens can do -->\n"
PROGRAMS = ("agent", "controller", "scheduler", "gate-opener")
PLACES = {"netaware-system": NAMESPACE, "kube-system": "kube-system", "a stranger's": "stranger", "a user's": "asked"}
CORE = "io.k8s.api.core.v1"
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
GATE = "netaware.io/topological-order"
LABEL = "appgroup.diktyo.x-k8s.io"
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction"}
pytestmark = pytest.mark.usefixtures("victims")


def pod(name: str, **labels: str) -> Json:
    """A pod; with labels a gated one of an AppGroup, otherwise a privileged one that is nobody's business."""
    spec: Json = {"containers": [{"name": "c", "image": "good"}], "terminationGracePeriodSeconds": 0}
    if labels:
        ours = [{"name": GATE}] if LABEL in labels else []
        spec["schedulingGates"] = [*ours, {"name": "somebody.else/gate"}]
    else:
        spec |= {"nodeName": "node-b", "priority": 2_000_001_000, "priorityClassName": "system-node-critical"}
        spec["containers"][0]["securityContext"] = {"privileged": True}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def object_of(kind: str, name: str, **more: Any) -> Json:
    return {"apiVersion": more.pop("api", "v1"), "kind": kind, "metadata": {"name": name}, **more}


CLAIM_SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
EXTENDED = {"resource.kubernetes.io/extended-resource-claim": "true"}


def claim(name: str, **annotations: str) -> Json:
    return object_of("ResourceClaim", name, api="resource.k8s.io/v1", spec=CLAIM_SPEC) | {
        "metadata": {"name": name, "annotations": annotations}
    }


TOPOLOGY = object_of(
    "NetworkTopology",
    "nt",
    api="networktopology.diktyo.x-k8s.io/v1alpha1",
    spec={"configmapName": "netperf-metrics", "weights": [{"name": "UserDefined", "topologyList": []}]},
)
VICTIMS: tuple[tuple[str, Json], ...] = (
    ("api/v1/namespaces/kube-system/pods", pod("victim")),
    ("api/v1/namespaces/stranger/pods", pod("victim", app="theirs")),
    ("api/v1/namespaces/asked/pods", pod("victim", **{LABEL: "shop"})),
    (f"api/v1/namespaces/{NAMESPACE}/configmaps", object_of("ConfigMap", "netperf-metrics", data={"a": "b"})),
    (
        f"api/v1/namespaces/{NAMESPACE}/configmaps",
        object_of("ConfigMap", "netaware-scheduler-config-x", data={"a": "b"}),
    ),
    (f"api/v1/namespaces/{NAMESPACE}/secrets", object_of("Secret", "netaware-probe")),
    ("apis/networktopology.diktyo.x-k8s.io/v1alpha1/namespaces/asked/networktopologies", TOPOLOGY),
    ("apis/resource.k8s.io/v1/namespaces/stranger/resourceclaims", claim("victim")),
    ("apis/resource.k8s.io/v1/namespaces/stranger/resourceclaims", claim("extended", **EXTENDED)),
    (
        "apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
        object_of("Lease", "kube-scheduler", api="coordination.k8s.io/v1"),
    ),
    (
        "api/v1/persistentvolumes",
        object_of(
            "PersistentVolume",
            "victim",
            spec={"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/good"}},
        ),
    ),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def victims(plane: ControlPlane) -> AsyncIterator[None]:
    """The installation, a namespace that knows nothing of us, one with an AppGroup's pod, and objects worth attacking."""
    kubectl = Kubectl(plane.kubectl, plane.kubeconfig)
    await kubectl("apply", "--server-side", "-k", str(OVERLAY))
    await established(kubectl)
    async with Client(plane.client_config) as admin:

        async def make(path: str, body: Json) -> None:
            said: list[str] = []

            async def made() -> bool:
                try:
                    await admin.request("POST", f"/{path}", body=body)
                except ApiError as error:
                    said[:] = [error.message]
                    return False
                return True

            try:
                await eventually(made)
            except TimeoutError:
                pytest.fail(f"{path}: {said}")

        for name in ("stranger", "asked"):
            await make("api/v1/namespaces", object_of("Namespace", name))
        for name in ("node-a", "node-b"):
            # With a field of its status that the kubelet writes, so that its removal is an attack too.
            status = {"capacity": {"cpu": "8"}, "declaredFeatures": ["A"], "nodeInfo": {"kernelVersion": "good"}}
            await make("api/v1/nodes", object_of("Node", name, status=status))
        for path, body in VICTIMS:
            await make(path, body)
        yield
        for path, body in reversed(VICTIMS):
            await admin.request("DELETE", f"/{path}/{body['metadata']['name']}", params={"gracePeriodSeconds": "0"})
        for name in ("node-a", "node-b"):
            await admin.request("DELETE", f"/api/v1/nodes/{name}")
    await kubectl("delete", "--wait=true", "--timeout=60s", "namespace", "stranger", "asked")
    await kubectl("delete", "--ignore-not-found", "--wait=true", "--timeout=60s", "-k", str(OVERLAY))


@pytest_asyncio.fixture
async def stolen(victims: None, token_for: TokenFor) -> AsyncIterator[dict[str, Client]]:
    """A client with the token of each program's pod on node-a."""
    clients: dict[str, Client] = {}
    try:
        for program in PROGRAMS:
            clients[program] = Client(await token_for(f"netaware-{program}", "node-a"))
            await clients[program].__aenter__()
        for program, client in clients.items():

            async def held(client: Client = client, program: str = program) -> bool:
                """Policies take a moment to be in force."""
                path = {"agent": "/api/v1/nodes/node-b/status", "controller": "/api/v1/nodes/node-b/status"}
                target = path.get(program, "/api/v1/namespaces/kube-system/pods/victim/status")
                return await attempt(client, target, {"metadata": {"annotations": {"a": "b"}}}) is None

            await eventually(held)
        yield clients
    finally:
        for client in clients.values():
            await client.__aexit__(None, None, None)


async def read(admin: Client, path: str) -> Json:
    found: Json = msgspec.json.decode(await admin.request("GET", path))
    return found


def table(passed: dict[str, set[Passed]]) -> str:
    """What succeeded, in Markdown: a row for each program, set of verbs and places."""
    rows = ["| token of | may | on | in |", "|---|---|---|---|"]
    for program in PROGRAMS:
        by_resource: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for one in passed[program]:
            by_resource[one.resource][one.verb].add(one.where)
        grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
        for resource, verbs in by_resource.items():
            by_places: dict[str, list[str]] = defaultdict(list)
            for verb in VERBS:
                if verb in verbs:
                    by_places[places(verbs[verb])].append(verb)
            for where, them in by_places.items():
                grouped[(", ".join(them), where)].append(resource)
        for (verbs_shown, where), resources in sorted(grouped.items()):
            rows.append(f"| {program} | {verbs_shown} | {', '.join(f'`{r}`' for r in sorted(resources))} | {where} |")
    return "\n".join(rows) + "\n"


def places(found: Iterable[str]) -> str:
    missing = set(PLACES) - set(found)
    return "the cluster" if missing == set(PLACES) else "every namespace" if not missing else ", ".join(sorted(found))


@pytest.mark.slow
async def test_every_verb_on_every_kind_gives_what_the_documentation_says(
    stolen: dict[str, Client], admin: Client
) -> None:
    known = await kinds(admin)
    passed: dict[str, set[Passed]] = {}
    requests = 0
    for program, client in stolen.items():
        passed[program], count = await sweep(client, known, PLACES)
        requests += count
    assert requests > 3000
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + BEGIN + table(passed) + END + after
    if os.environ.get("NETAWARE_WRITE_TABLES"):
        DOCUMENT.write_text(wanted)
    assert DOCUMENT.read_text() == wanted, "write it anew with NETAWARE_WRITE_TABLES=1"
    for program, found in passed.items():
        assert not [one for one in found if one.verb == "update" and one.resource == "pods"], program
        assert not [one for one in found if one.resource.startswith("secrets") and one.verb != "create"], program
        assert not [one for one in found if one.verb == "deletecollection"], program


NODE = {"": f"{CORE}.Node", "metadata": META, "spec": f"{CORE}.NodeSpec", "status": f"{CORE}.NodeStatus"}
POD = {"": f"{CORE}.Pod", "metadata": META, "spec": f"{CORE}.PodSpec", "status": f"{CORE}.PodStatus"}
CONFIGMAP = {"": f"{CORE}.ConfigMap", "metadata": META}
VOLUME = {"metadata": META, "spec": f"{CORE}.PersistentVolumeSpec"}
RESULTS = f"/api/v1/namespaces/{NAMESPACE}/configmaps/netperf-metrics"
SHIPPED = f"/api/v1/namespaces/{NAMESPACE}/configmaps/netaware-scheduler-config-x"
# Program, object, its subresources, its types, and the fields that may change: those that the policies name.
FIELDS: tuple[tuple[str, str, tuple[str, ...], dict[str, str], set[str]], ...] = (
    ("agent", "/api/v1/nodes/node-a", ("", "/status"), NODE, set()),
    ("agent", "/api/v1/nodes/node-b", ("", "/status"), NODE, set()),
    ("agent", RESULTS, ("",), CONFIGMAP, set()),
    ("agent", SHIPPED, ("",), CONFIGMAP, set()),
    ("controller", "/api/v1/nodes/node-a", ("", "/status"), NODE, set()),
    ("controller", "/api/v1/namespaces/kube-system/pods/victim", ("", "/status"), POD, set()),
    ("controller", "/api/v1/namespaces/stranger/pods/victim", ("", "/status"), POD, set()),
    ("controller", "/api/v1/namespaces/asked/pods/victim", ("", "/status"), POD, set()),
    ("controller", RESULTS, ("",), CONFIGMAP, set()),
    ("controller", SHIPPED, ("",), CONFIGMAP, set()),
    (
        "scheduler",
        "/api/v1/namespaces/kube-system/pods/victim",
        ("", "/status"),
        POD,
        {"status.nominatedNodeName", "status.extendedResourceClaimStatus"},
    ),
    ("scheduler", "/api/v1/nodes/node-a", ("", "/status"), NODE, set()),
    ("scheduler", "/api/v1/persistentvolumes/victim", ("",), VOLUME, {"metadata.annotations", "spec.claimRef"}),
)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "path", "subresources", "types", "free"), FIELDS)
async def test_no_field_changes_but_those_that_are_named(
    stolen: dict[str, Client],
    admin: Client,
    program: str,
    path: str,
    subresources: tuple[str, ...],
    types: dict[str, str],
    free: set[str],
) -> None:
    """Every field that the API server's types have, so that one of a new version is tried the day it comes."""
    schemas = await Schemas.of(admin, "/api/v1")
    before = await read(admin, path)
    for subresource in subresources:
        changed = await changeable(stolen[program], path + subresource, before, schemas, types)
        assert changed <= free, f"{program} {path}{subresource}"
    # The method finds what can be changed where nothing holds it back.
    assert len(await changeable(admin, path + subresources[-1], before, schemas, types)) > len(free) + 1


AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}]
        }
    }
}
ASKED, STRANGER, SYSTEM = (f"/api/v1/namespaces/{n}/pods/victim" for n in ("asked", "stranger", "kube-system"))
OPEN = {"$patch": "delete", "name": GATE}
IMAGE = {"spec": {"containers": [{"name": "c", "image": "evil"}]}}
EVIL_SECRET = object_of(
    "Secret",
    "t",
    type="kubernetes.io/service-account-token",
    metadata={"name": "t", "annotations": {"kubernetes.io/service-account.name": "netaware-scheduler"}},
)
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
CONFIGMAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
SYSTEM_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/stranger/resourceclaims"
NT = "/apis/networktopology.diktyo.x-k8s.io/v1alpha1/namespaces/asked/networktopologies/nt"
WEIGHT = {"name": "NetperfCosts", "topologyList": []}
CONDITION = {"type": "Ready", "status": "False", "reason": "Attack", "message": ""}


def status_condition(**more: str) -> Json:
    return {"status": {"conditions": [{**CONDITION, **more}]}}


# Program, path, body, method, content type, and whether it is what the program is there for.
NAMED: tuple[tuple[str, str, Any, str, str, bool], ...] = (
    ("controller", SYSTEM, IMAGE, "PATCH", STRATEGIC_PATCH, False),
    ("controller", STRANGER, IMAGE, "PATCH", STRATEGIC_PATCH, False),
    ("controller", ASKED, IMAGE, "PATCH", STRATEGIC_PATCH, False),
    ("controller", STRANGER, {"spec": {"schedulingGates": [{"$patch": "replace"}]}}, "PATCH", STRATEGIC_PATCH, False),
    ("controller", STRANGER, {"metadata": {"labels": {LABEL: "shop"}}}, "PATCH", STRATEGIC_PATCH, False),
    ("controller", ASKED, {"metadata": {"labels": {LABEL: None}}}, "PATCH", STRATEGIC_PATCH, False),
    ("controller", ASKED, {"metadata": {"annotations": {"x/y": "z"}}}, "PATCH", STRATEGIC_PATCH, False),
    ("controller", ASKED, {"spec": {"schedulingGates": [{"$patch": "replace"}]}}, "PATCH", STRATEGIC_PATCH, False),
    ("controller", ASKED, {"spec": {"affinity": {"podAffinity": {}}}}, "PATCH", STRATEGIC_PATCH, False),
    (
        "controller",
        ASKED,
        {
            "metadata": {"annotations": {"netaware.io/target": "{}"}},
            "spec": {"schedulingGates": [OPEN], "affinity": AFFINITY},
        },
        "PATCH",
        STRATEGIC_PATCH,
        True,
    ),
    ("controller", f"{SYSTEM}/eviction", {**EVICTION, "metadata": {"name": "victim"}}, "POST", "", False),
    ("controller", f"{STRANGER}/eviction", {**EVICTION, "metadata": {"name": "victim"}}, "POST", "", True),
    ("controller", SECRETS, EVIL_SECRET, "POST", "", False),
    ("controller", SECRETS, object_of("Secret", "any"), "POST", "", False),
    ("controller", CONFIGMAPS, object_of("ConfigMap", "netaware-controller-config-x"), "POST", "", False),
    ("controller", CONFIGMAPS, object_of("ConfigMap", "netaware-plan-z", immutable=True), "POST", "", False),
    ("controller", CONFIGMAPS, object_of("ConfigMap", "netaware-plan-z", data={"a": "b"}), "POST", "", True),
    ("controller", CONFIGMAPS, object_of("ConfigMap", "netperf-metrics-7"), "POST", "", True),
    ("controller", RESULTS, {"data": {"a": None}}, "PATCH", "", True),
    ("controller", RESULTS, None, "DELETE", "", False),
    ("controller", SHIPPED, None, "DELETE", "", False),
    ("controller", LEASES, object_of("Lease", "netaware-scheduler", api="coordination.k8s.io/v1"), "POST", "", False),
    ("controller", NT, [{"op": "add", "path": "/spec/weights/-", "value": WEIGHT}], "PATCH", JSON_PATCH, True),
    ("controller", NT, [{"op": "remove", "path": "/spec/weights/0"}], "PATCH", JSON_PATCH, False),
    ("controller", NT, {"spec": {"configmapName": "evil"}}, "PATCH", "", False),
    ("controller", NT, {"metadata": {"finalizers": ["evil.io/x"]}}, "PATCH", "", False),
    ("controller", "/api/v1/nodes/node-a/status", status_condition(), "PATCH", STRATEGIC_PATCH, False),
    ("scheduler", f"{SYSTEM}/status", status_condition(), "PATCH", STRATEGIC_PATCH, False),
    ("scheduler", f"{STRANGER}/status", status_condition(type="PodScheduled"), "PATCH", STRATEGIC_PATCH, True),
    ("scheduler", f"{STRANGER}/status", {"status": {"phase": "Failed"}}, "PATCH", STRATEGIC_PATCH, False),
    ("scheduler", SYSTEM, None, "DELETE", "", False),
    ("scheduler", STRANGER, None, "DELETE", "", True),
    ("scheduler", SYSTEM_LEASES, object_of("Lease", "new", api="coordination.k8s.io/v1"), "POST", "", False),
    ("scheduler", f"{SYSTEM_LEASES}/kube-scheduler", {"spec": {"holderIdentity": "me"}}, "PATCH", "", False),
    ("scheduler", LEASES, object_of("Lease", "any", api="coordination.k8s.io/v1"), "POST", "", False),
    ("scheduler", LEASES, object_of("Lease", "netaware-scheduler", api="coordination.k8s.io/v1"), "POST", "", True),
    ("scheduler", f"{CLAIMS}/victim", None, "DELETE", "", False),
    ("scheduler", f"{CLAIMS}/victim", {"metadata": {"labels": {"a": "b"}}}, "PATCH", "", False),
    (
        "scheduler",
        f"{CLAIMS}/victim",
        {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}},
        "PATCH",
        "",
        True,
    ),
    ("scheduler", CLAIMS, claim("new"), "POST", "", False),
    ("scheduler", CLAIMS, claim("new", **EXTENDED), "POST", "", True),
    ("scheduler", f"{CLAIMS}/extended", None, "DELETE", "", True),
    ("scheduler", "/api/v1/persistentvolumes/victim", {"spec": {"hostPath": {"path": "/etc"}}}, "PATCH", "", False),
    ("gate-opener", ASKED, {"spec": {"schedulingGates": [OPEN]}}, "PATCH", STRATEGIC_PATCH, True),
    ("gate-opener", ASKED, {"spec": {"schedulingGates": [{"$patch": "replace"}]}}, "PATCH", STRATEGIC_PATCH, False),
    ("gate-opener", ASKED, IMAGE, "PATCH", STRATEGIC_PATCH, False),
    ("gate-opener", STRANGER, {"metadata": {"labels": {"a": "b"}}}, "PATCH", STRATEGIC_PATCH, False),
    ("agent", RESULTS, {"immutable": True}, "PATCH", "", False),
    ("agent", RESULTS, {"metadata": {"labels": {"netaware.io/plan": "true"}}}, "PATCH", "", False),
    ("agent", RESULTS, {"metadata": {"annotations": {"x/y": "z"}}}, "PATCH", "", False),
    ("agent", CONFIGMAPS, object_of("ConfigMap", "netperf-metrics-9"), "POST", "", False),
    ("agent", "/api/v1/nodes/node-a/status", {"status": {"declaredFeatures": ["B"]}}, "PATCH", "", False),
    ("agent", "/api/v1/nodes/node-a/status", {"status": {"declaredFeatures": None}}, "PATCH", "", False),
    (
        "agent",
        "/api/v1/nodes/node-a/status",
        {"status": {"capacity": {"network.aware.com/bandwidth": "1G"}}},
        "PATCH",
        STRATEGIC_PATCH,
        True,
    ),
)


async def test_named_attacks_fail_and_each_programs_work_succeeds(stolen: dict[str, Client]) -> None:
    wrong = []
    for program, path, body, method, content, allowed in NAMED:
        after = await attempt(stolen[program], path, body, method, content or MERGE_PATCH)
        if (after is not None) != allowed:
            wrong.append(f"{program} {method} {path} {body}: {'went through' if after else 'was refused'}")
    assert wrong == []


NODE_A = "/api/v1/nodes/node-a"
HOT = {"key": "netaware.io/hot", "effect": "PreferNoSchedule"}


def tainted(**more: str) -> list[Json]:
    return [{"op": "add", "path": "/spec/taints/-", "value": {**HOT, **more}}]


# What is tried with the right to patch nodes, how, and whether it is what the right is there for.
ON_NODES: tuple[tuple[Any, str, bool], ...] = (
    (tainted(), JSON_PATCH, True),
    (tainted(effect="NoSchedule"), JSON_PATCH, False),
    (tainted(effect="NoExecute"), JSON_PATCH, False),
    (tainted(key="any/other"), JSON_PATCH, False),
    (tainted(value="x"), JSON_PATCH, False),
    # Of somebody else, and one that keeps pods away until the node is ready.
    ([{"op": "remove", "path": "/spec/taints/0"}], JSON_PATCH, False),
    ({"spec": {"taints": [HOT]}}, MERGE_PATCH, False),
    ({"spec": {"taints": None}}, MERGE_PATCH, False),
    ({"spec": {"unschedulable": True}}, MERGE_PATCH, False),
    ({"metadata": {"labels": {"zone": "evil"}}}, MERGE_PATCH, False),
    ({"metadata": {"annotations": {"a": "b"}}}, MERGE_PATCH, False),
)


async def test_with_the_right_to_taint_nodes_nothing_but_our_soft_taint_goes_through(
    stolen: dict[str, Client], admin: Client
) -> None:
    foreign = {"key": "somebody.else/taint", "effect": "NoSchedule"}
    await admin.request("PATCH", NODE_A, body={"spec": {"taints": [foreign]}}, content_type=MERGE_PATCH)
    wrong = []
    for body, content, allowed in ON_NODES:
        after = await attempt(stolen["controller"], NODE_A, body, "PATCH", content)
        if (after is not None) != allowed:
            wrong.append(f"{body}: {'went through' if after else 'was refused'}")
    assert wrong == []
    schemas = await Schemas.of(admin, "/api/v1")
    assert await changeable(stolen["controller"], NODE_A, await read(admin, NODE_A), schemas, NODE) == set()
    # What it wrote it may take back.
    path = [{"op": "add", "path": "/spec/taints/-", "value": HOT}]
    await admin.request("PATCH", NODE_A, body=path, content_type=JSON_PATCH)
    at = [t["key"] for t in (await read(admin, NODE_A))["spec"]["taints"]].index(HOT["key"])
    gone = [{"op": "remove", "path": f"/spec/taints/{at}"}]
    assert await attempt(stolen["controller"], NODE_A, gone, "PATCH", JSON_PATCH) is not None


STALE_OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
# What is tried with the right to delete pods: owners, whether we wrote its affinity, node, and whether it may go.
STALE: tuple[tuple[list[Json], bool, str, bool], ...] = (
    ([STALE_OWNER], True, "", True),
    ([STALE_OWNER], True, "node-b", False),
    ([STALE_OWNER], False, "", False),
    ([{**STALE_OWNER, "controller": False}], True, "", False),
    ([{**STALE_OWNER, "apiVersion": "batch/v1", "kind": "Job"}], True, "", False),
    ([], True, "", False),
)


async def test_with_the_right_to_delete_pods_only_stale_ones_with_an_owner_go(
    stolen: dict[str, Client], admin: Client, plane: ControlPlane
) -> None:
    kubectl = Kubectl(plane.kubectl, plane.kubeconfig)
    rights = str(MANIFESTS / "components" / "replace-pending" / "rbac.yaml")
    paths = []
    for number, (owners, ours, node, _) in enumerate(STALE):
        body = object_of("Pod", f"stale-{number}", spec={"containers": [{"name": "c", "image": "good"}]})
        body["metadata"] |= {"ownerReferences": owners, "annotations": {"netaware.io/narrowed": "{}"} if ours else {}}
        # The garbage collector deletes what has no owner, and the finalizer keeps it.
        body["metadata"]["finalizers"] = ["tests.netaware.io/kept"]
        body["spec"] |= {"schedulerName": "nobody", "nodeName": node, "terminationGracePeriodSeconds": 0}
        await admin.request("POST", "/api/v1/namespaces/asked/pods", body=body)
        paths.append(f"/api/v1/namespaces/asked/pods/stale-{number}")
    await kubectl("apply", "--server-side", "-f", rights)
    try:

        async def granted() -> bool:
            return await attempt(stolen["controller"], paths[0], None, "DELETE", MERGE_PATCH) is not None

        await eventually(granted)
        went = [await attempt(stolen["controller"], path, None, "DELETE", MERGE_PATCH) is not None for path in paths]
        assert went == [allowed for *_, allowed in STALE]
    finally:
        for path in paths:
            await admin.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)
        await kubectl("delete", "-f", rights)
