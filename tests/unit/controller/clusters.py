"""Random clusters as `kubectl get -o json` lists them, with everything that constrains the placement of pods.

Nodes: several sizes, pools, taints, cordoned and unready ones. Pods: bound, finished and terminating ones, of the group and others,
DaemonSet pods, and rollouts. Constraints: selectors, affinity, tolerations, GPUs, bandwidth, host ports, volumes, spread, anti-affinity,
sidecars, and requests of whole pods.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Literal

from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, WORKLOAD_LABEL
from tests.support.bodies import make_weight_body

Json = dict[str, Any]
Style = Literal["time", "parity", "spread"]
STYLES: tuple[Style, ...] = ("time", "parity", "spread")
"""``time`` and ``parity`` are objectives without spread; ``spread`` is soft or zone, with Services of each kind."""

ZONE, REGION, HOSTNAME = "topology.kubernetes.io/zone", "topology.kubernetes.io/region", "kubernetes.io/hostname"
GPU, BANDWIDTH = "nvidia.com/gpu", "network.aware.com/bandwidth"
CREATED = "2026-11-20T10:00:00Z"
TAINTS = (
    {"key": "dedicated", "value": "batch", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "batch", "effect": "NoExecute"},
    {"key": "slow", "effect": "PreferNoSchedule"},
)
SIZES = ((2, 4), (4, 8), (8, 16), (8, 64), (16, 32))
PORT = 9100
EFFECTS = ("NoSchedule", "NoExecute")


def choose_style(seed: int) -> Style:
    """The style of a cluster; styles alternate."""
    return STYLES[seed % len(STYLES)]


def draw_objects(seed: int) -> list[Json]:
    """The objects of a cluster."""
    return _ClusterGenerator(random.Random(seed), choose_style(seed)).list_objects()


def _make_object(kind: str, name: str, spec: Json, *, namespace: str = "", version: str = "v1", **more: Any) -> Json:
    meta = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec, **more}


def _make_required(**terms: Any) -> Json:
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms.get("terms", terms)}


def _make_expression(key: str, *values: str, operator: str = "In") -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


class _ClusterGenerator:
    """Draws a cluster's nodes, and a group's workloads with their pods, volumes and Services."""

    def __init__(self, rng: random.Random, style: Style) -> None:
        self.rng, self.style = rng, style
        self.zones = [f"z{i}" for i in range(rng.choice((2, 3, 3, 4)))]
        regions = ["r2" if i > 1 and rng.random() < 0.4 else "r1" for i in range(len(self.zones))]
        self.region_by_zone = dict(zip(self.zones, regions, strict=True))
        self.nodes = [self._draw_node(i) for i in range(rng.randint(4, 12))]
        self.workloads = [f"w{i}" for i in range(rng.randint(3, 6))]
        self.volumes_and_claims: list[Json] = []
        self.templates = {workload: self._draw_template(workload) for workload in self.workloads}
        self.pods = [pod for workload in self.workloads for pod in self._draw_pods(workload)]
        self.pods += self._draw_foreign_pods()

    def list_objects(self) -> list[Json]:
        services = [service for workload in self.workloads for service in self._draw_services(workload)]
        objects = self.nodes + self.pods + self.volumes_and_claims + services
        objects += [self._draw_group(), self._draw_topology()]
        self.rng.shuffle(objects)
        return objects

    def _draw_node(self, number: int) -> Json:
        rng = self.rng
        name, zone = f"node-{number}", self.zones[number % len(self.zones)]
        cpu, memory = rng.choice(SIZES)
        labels = {ZONE: zone, REGION: self.region_by_zone[zone], HOSTNAME: name}
        labels |= {"pool": rng.choice(("web", "web", "db")), "generation": str(rng.randint(1, 9))}
        allocatable = {
            "cpu": rng.choice((str(cpu), f"{cpu * 1000 - 80}m")),
            "memory": f"{memory}Gi",
            "pods": rng.choice(("110", "110", "110", "4")),
            "ephemeral-storage": "95491281146",
        }
        if rng.random() < 0.3:
            allocatable[GPU] = str(rng.randint(1, 2))
        if rng.random() < 0.4:
            allocatable[BANDWIDTH] = "1000000000"
        spec: Json = {"podCIDR": f"10.0.{number}.0/24"}
        taints = [rng.choice(TAINTS)] if rng.random() < 0.3 else []
        ready = "True"
        if number and rng.random() < 0.06:
            spec["unschedulable"] = True
            taints = [*taints, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
        elif number and rng.random() < 0.06:
            ready, state = (("Unknown", "unreachable"), ("False", "not-ready"))[number % 2]
            taints = [*taints, *({"key": f"node.kubernetes.io/{state}", "effect": effect} for effect in EFFECTS)]
        if taints:
            spec["taints"] = taints
        conditions = [{"type": "Ready", "status": ready, "reason": "KubeletReady"}]
        status = {"allocatable": allocatable, "capacity": dict(allocatable), "conditions": conditions}
        return _make_object("Node", name, spec, metadata={"labels": labels}, status=status)

    def _draw_template(self, workload: str) -> Json:
        """The pod spec of a workload."""
        rng, spec = self.rng, dict[str, Any]()
        requests = {
            "cpu": rng.choice(("250m", "500m", "1", "1500m", "2", "3")),
            "memory": rng.choice(("256Mi", "1Gi", "3Gi")),
        }
        draw = rng.random()
        if draw < 0.12:
            requests[GPU] = "1"
        elif draw < 0.24:
            requests[BANDWIDTH] = rng.choice(("200M", "400M"))
        resources = {"requests": requests, "limits": requests}
        container: Json = {"name": "main", "image": "example.com/app:1", "resources": resources}
        spec["containers"] = [container]
        if rng.random() < 0.15:
            container["ports"] = [{"containerPort": PORT, "hostPort": PORT, "protocol": "TCP"}]
        if rng.random() < 0.2:
            sidecar = {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}}
            spec["initContainers"] = [sidecar, {"name": "init", "resources": {"requests": {"cpu": "1"}}}]
        if rng.random() < 0.1:
            spec["resources"] = {"requests": {"cpu": rng.choice(("1", "2")), "memory": "2Gi"}}
        if rng.random() < 0.1:
            spec["overhead"] = {"cpu": "250m", "memory": "120Mi"}
        self._add_node_constraints(spec)
        self._add_pod_constraints(workload, spec)
        return spec

    def _add_node_constraints(self, spec: Json) -> None:
        """Add node selector, node affinity and tolerations."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.15:
            spec["nodeSelector"] = {"pool": rng.choice(("web", "db"))}
        elif draw < 0.35:
            required = rng.choice(
                (
                    _make_expression("pool", "db", operator="NotIn"),
                    _make_expression(ZONE, *self.zones[:2]),
                    _make_expression("generation", "3", operator="Gt"),
                    {"key": "pool", "operator": "Exists"},
                )
            )
            terms: list[Json] = [{"matchExpressions": [required]}]
            if rng.random() < 0.3:
                terms.append({"matchFields": [_make_expression("metadata.name", "node-0")]})
            preference = {"weight": 50, "preference": {"matchExpressions": [_make_expression("pool", "db")]}}
            preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}
            spec["affinity"] = {"nodeAffinity": _make_required(nodeSelectorTerms=terms) | preferred}
        lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        spec["tolerations"] = [{"key": f"node.kubernetes.io/{state}", **lost} for state in ("not-ready", "unreachable")]
        if rng.random() < 0.35:
            tolerations: tuple[Json, ...] = (
                {"key": "dedicated", "operator": "Equal", "value": "batch"},
                {"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"},
                {"operator": "Exists"},
            )
            spec["tolerations"].append(rng.choice(tolerations))

    def _add_pod_constraints(self, workload: str, spec: Json) -> None:
        """Add spread constraints, anti-affinity and affinity."""
        rng = self.rng
        own_pods = {"matchLabels": {"app": workload}}
        draw = rng.random()
        if draw < 0.2:
            constraint: Json = {
                "maxSkew": rng.randint(1, 2),
                "topologyKey": rng.choice((ZONE, ZONE, HOSTNAME)),
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": own_pods,
            }
            if rng.random() < 0.3:
                constraint["minDomains"] = rng.randint(1, 3)
            if rng.random() < 0.3:
                constraint["nodeAffinityPolicy"] = rng.choice(("Honor", "Ignore"))
            if rng.random() < 0.4:
                constraint["nodeTaintsPolicy"] = rng.choice(("Honor", "Ignore"))
            spec["topologySpreadConstraints"] = [constraint]
        elif draw < 0.4:
            other = {"matchExpressions": [_make_expression("app", workload, rng.choice(self.workloads))]}
            term = {"topologyKey": HOSTNAME, "labelSelector": rng.choice((own_pods, own_pods, other))}
            spec.setdefault("affinity", {})["podAntiAffinity"] = _make_required(terms=[term])
        elif draw < 0.5 and workload != "w0":
            term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "w0"}}}
            spec.setdefault("affinity", {})["podAffinity"] = _make_required(terms=[term])

    def _draw_pods(self, workload: str) -> list[Json]:
        """Pending replicas, and some that are bound, finished or terminating."""
        rng, pods = self.rng, []
        has_claims = rng.random() < 0.2
        is_rollout = rng.random() < 0.2
        for i in range(rng.choice((1, 1, 2, 2, 3, 4))):
            spec = json.loads(json.dumps(self.templates[workload]))
            if is_rollout and i and "topologySpreadConstraints" not in spec:
                spec.pop("nodeSelector", None)
                spec["containers"][0]["resources"]["requests"]["cpu"] = "750m"
            pod = self._make_pod(f"{workload}-{i}", workload, spec)
            if has_claims:
                self._add_claim(pod)
            pods.append(pod)
        for i in range(rng.choice((0, 0, 0, 1, 2))):
            node = self._choose_ready_node()
            spec = json.loads(json.dumps(self.templates[workload]))
            spec.pop("affinity", None)
            pods.append(self._make_pod(f"{workload}-old-{i}", workload, spec, node=node))
        for state in ("finished", "terminating"):
            if rng.random() < 0.1:
                node = self._choose_ready_node()
                pod = self._make_pod(f"{workload}-{state}", workload, self.templates[workload], node=node)
                if state == "finished":
                    pod["status"]["phase"] = "Succeeded"
                else:
                    pod["metadata"]["deletionTimestamp"] = CREATED
                pods.append(pod)
        return pods

    def _make_pod(self, name: str, workload: str, spec: Json, node: str = "", *, in_group: bool = True) -> Json:
        labels = {"app": workload, "pod-template-hash": "6d4"}
        if in_group:
            labels |= {APPGROUP_LABEL: "shop", WORKLOAD_LABEL: workload}
        body = {"schedulerName": "network-aware-scheduler", "restartPolicy": "Always", "priority": 0, **spec}
        status: Json = {"phase": "Running" if node else "Pending"}
        if node:
            body["nodeName"] = node
        else:
            body["schedulingGates"] = [{"name": "netaware.io/topological-order"}]
            status["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{workload}-6d4", "uid": f"u-{workload}"}
        meta: Json = {"uid": f"u-{name}", "resourceVersion": "7", "creationTimestamp": CREATED, "labels": labels}
        meta["ownerReferences"] = [{**owner, "controller": True}]
        return _make_object("Pod", name, body, namespace="default", metadata=meta, status=status)

    def _choose_ready_node(self) -> str:
        ready = [node for node in self.nodes if node["status"]["conditions"][0]["status"] == "True"]
        return str(self.rng.choice(ready)["metadata"]["name"])

    def _add_claim(self, pod: Json) -> None:
        """Add a claim, bound to a volume of a zone or of a host, which one side alone may show."""
        rng, name = self.rng, f"data-{pod['metadata']['name']}"
        pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
        node = rng.choice(self.nodes)["metadata"]
        reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name}
        spec: Json = {"capacity": {"storage": "10Gi"}, "claimRef": reference}
        labels = {}
        draw = rng.random()
        if draw < 0.6:
            key = ZONE if draw < 0.4 else HOSTNAME
            terms = [{"matchExpressions": [_make_expression(key, node["labels"][key])]}]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        elif draw < 0.8:
            labels = {ZONE: node["labels"][ZONE]}
        volume = _make_object("PersistentVolume", f"pv-{name}", spec, metadata={"labels": labels})
        self.volumes_and_claims.append(volume)
        if rng.random() < 0.7:
            bound = {"volumeName": f"pv-{name}"}
            self.volumes_and_claims.append(_make_object("PersistentVolumeClaim", name, bound, namespace="default"))

    def _draw_foreign_pods(self) -> list[Json]:
        """Bound pods outside the group, and a pending DaemonSet pod."""
        rng, pods = self.rng, []
        for i in range(rng.randint(0, 5)):
            requests = {"cpu": rng.choice(("100m", "500m", "1")), "memory": "512Mi"}
            spec: Json = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
            draw = rng.random()
            if draw < 0.2:
                port = {"containerPort": PORT, "hostPort": PORT, "protocol": rng.choice(("TCP", "UDP"))}
                spec["containers"][0]["ports"] = [port]
            elif draw < 0.4:
                term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": rng.choice(self.workloads)}}}
                spec["affinity"] = {"podAntiAffinity": _make_required(terms=[term])}
            pods.append(self._make_pod(f"other-{i}", "other", spec, node=self._choose_ready_node(), in_group=False))
            if 0.4 <= draw < 0.5:
                actual = {"cpu": "1500m"}
                resized = {"name": "c", "allocatedResources": actual, "resources": {"requests": actual}}
                pods[-1]["status"]["containerStatuses"] = [resized]
        if rng.random() < 0.3:
            field = _make_expression("metadata.name", self.nodes[0]["metadata"]["name"])
            affinity = {"nodeAffinity": _make_required(nodeSelectorTerms=[{"matchFields": [field]}])}
            spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "300m"}}}], "affinity": affinity}
            daemon = self._make_pod("daemon", "daemon", spec, in_group=False)
            del daemon["spec"]["schedulingGates"]
            pods.append(daemon)
        return pods

    def _draw_group(self) -> Json:
        rng = self.rng
        drawn_pairs = [(rng.randrange(j), j) for j in range(1, len(self.workloads))]
        drawn_pairs += [(i, j) for j in range(len(self.workloads)) for i in range(j) if rng.random() < 0.2]
        pairs = list(dict.fromkeys(drawn_pairs))
        references = [
            {"kind": "Deployment", "apiVersion": "apps/v1", "namespace": "default", "name": w, "selector": w}
            for w in self.workloads
        ]
        workloads = []
        for i, reference in enumerate(references):
            callees = [references[callee] for caller, callee in pairs if caller == i]
            dependencies = [{"workload": callee, "maxNetworkCost": rng.choice((3, 6, 12, 30))} for callee in callees]
            workloads.append({"workload": reference, "dependencies": dependencies})
        spread = rng.choice(("soft", "zone")) if self.style == "spread" else "none"
        objective = "parity" if self.style == "parity" else "time"
        annotations = {"netaware.io/spread": spread, "netaware.io/objective": objective}
        if rng.random() < 0.5:
            weights: dict[str, dict[str, float]] = {}
            for caller, callee in pairs:
                weights.setdefault(self.workloads[caller], {})[self.workloads[callee]] = float(rng.randint(1, 9))
            annotations["netaware.io/weights"] = json.dumps(weights)
        spec = {"numMembers": 9, "topologySortingAlgorithm": "KahnSort", "workloads": workloads}
        version, metadata = APPGROUPS.api_version, {"annotations": annotations}
        return _make_object("AppGroup", "shop", spec, namespace="default", version=version, metadata=metadata)

    def _draw_services(self, workload: str) -> list[Json]:
        """One Service of a workload, or none."""
        rng = self.rng
        if rng.random() < 0.2:
            return []
        spec: Json = {"selector": {"app": workload}, "clusterIP": "10.96.0.7"}
        if self.style == "spread" and rng.random() < 0.6:
            spec["trafficDistribution"] = rng.choice(("PreferClose", "PreferSameZone", "PreferSameNode"))
        return [_make_object("Service", workload, spec, namespace="default")]

    def _draw_topology(self) -> Json:
        """Costs between zones of a region and between regions, some unknown, and sometimes latencies."""
        rng = self.rng

        def costs(places: Sequence[str], factor: int) -> dict[tuple[str, str], int]:
            pairs = ((a, b) for a in places for b in places if a != b and rng.random() < 0.95)
            return {pair: rng.choice((2, 4, 7, 15)) * factor for pair in pairs}

        zones, regions = costs(self.zones, 1), costs(sorted(set(self.region_by_zone.values())), 3)
        metadata = {}
        if rng.random() < 0.5:
            table = [[None if a == b else rng.choice((300, 450, 900, 1900)) for b in self.zones] for a in self.zones]
            metadata["annotations"] = {"netaware.io/latency-us": json.dumps({"zones": self.zones, "us": table})}
        spec = {"configmapName": "netperf-metrics", "weights": [make_weight_body(zones, regions, "NetperfCosts")]}
        version = "networktopology.diktyo.x-k8s.io/v1alpha1"
        return _make_object(
            "NetworkTopology", "nt-default", spec, namespace="default", version=version, metadata=metadata
        )
