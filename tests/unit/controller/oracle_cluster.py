"""A cluster's objects and the rules of Kubernetes about them, for `oracle`, without code of the product."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
GROUP = "appgroup.diktyo.x-k8s.io"
ON_HOST_US, IN_ZONE_US, MIN_BETWEEN_ZONES_US, UNKNOWN_US = 30, 100, 250, 100_000
UNKNOWN_COST = 100
"""Cost of a call between zones without a cost, with the objective ``parity``."""
SUFFIXES = {"m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def parse_quantity(text: str | int, *, milli: bool = False) -> int:
    """A quantity as an integer, in thousandths with ``milli``."""
    text = str(text)
    suffix = next((s for s in sorted(SUFFIXES, key=len, reverse=True) if text.endswith(s)), "")
    value = float(text.removesuffix(suffix)) * SUFFIXES.get(suffix, 1)
    return round(value * 1000) if milli else round(value)


def parse_quantities(texts: Mapping[str, Any] | None) -> Counter[str]:
    return Counter({name: parse_quantity(text, milli=name == "cpu") for name, text in (texts or {}).items()})


def requests(pod: Json) -> Counter[str]:
    """A pod's requests as kube-scheduler counts them; a host port is a resource of which each host has one."""
    spec = pod["spec"]
    statuses = pod["status"].get("containerStatuses", ())
    allocated = {status["name"]: parse_quantities(status["resources"]["requests"]) for status in statuses}
    total: Counter[str] = Counter()
    for container in spec["containers"]:
        total += parse_quantities(container["resources"].get("requests")) | allocated.get(container["name"], Counter())
    sidecars: Counter[str] = Counter()
    initial: Counter[str] = Counter()
    for container in spec.get("initContainers", ()):
        requested = parse_quantities(container["resources"].get("requests"))
        if container.get("restartPolicy") == "Always":
            sidecars, total = sidecars + requested, total + requested
        else:
            initial |= sidecars + requested
    total |= initial
    for name, value in parse_quantities(spec.get("resources", {}).get("requests")).items():
        total[name] = value
    total += parse_quantities(spec.get("overhead"))
    for container in spec["containers"]:
        for port in container.get("ports", ()):
            if port.get("hostPort"):
                total[f"port {port.get('protocol', 'TCP')} {port['hostPort']}"] = 1
    return total + Counter({"pods": 1})


def expression_holds(expression: Json, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", [])
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "Gt":
            return value is not None and int(value) > int(values[0])
    raise AssertionError(expression)


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    equal = all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())
    return equal and all(expression_holds(e, labels) for e in selector.get("matchExpressions", ()))


def terms_hold(terms: Iterable[Json], node: Json) -> bool:
    name, labels = {"metadata.name": node["metadata"]["name"]}, node["metadata"]["labels"]
    return any(
        all(expression_holds(e, labels) for e in term.get("matchExpressions", ()))
        and all(expression_holds(e, name) for e in term.get("matchFields", ()))
        for term in terms
    )


def matches_node(spec: Json, node: Json) -> bool:
    """Whether a node matches the node selector and the required node affinity of a pod."""
    labels = node["metadata"]["labels"]
    if any(labels.get(k) != v for k, v in spec.get("nodeSelector", {}).items()):
        return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or terms_hold(required["nodeSelectorTerms"], node)


def is_ready(node: Json) -> bool:
    """Whether pods can start on a node. Plans use no other nodes, even for pods that tolerate every taint."""
    return bool(node["status"]["conditions"][0]["status"] == "True")


def tolerates(spec: Json, node: Json) -> bool:
    def is_tolerated(taint: Json) -> bool:
        return any(
            t.get("effect", taint["effect"]) == taint["effect"]
            and t.get("key", taint["key"]) == taint["key"]
            and (t.get("operator") == "Exists" or t.get("value", "") == taint.get("value", ""))
            for t in spec.get("tolerations", ())
        )

    taints = node["spec"].get("taints", ())
    return all(is_tolerated(t) for t in taints if t["effect"] != "PreferNoSchedule")


class OracleCluster:
    """The cluster of a list of objects. Hosts, zones, workloads and classes are indexes.

    Attributes:
        free: [host] free amount by resource.
        classes: one of the waiting pods with equal labels, specs and allowed hosts.
        pod_keys_by_class: [class] keys of its pods.
        allowed: [class][host] whether node constraints and volumes allow the class there.
        edges: (caller, callee, maxNetworkCost) of each dependency.
    """

    def __init__(self, objects: Sequence[Json]) -> None:
        objects_by_kind: dict[str, list[Json]] = defaultdict(list)
        for item in objects:
            objects_by_kind[item["kind"]].append(item)
        self.nodes = objects_by_kind["Node"]
        self.host_index_by_name = {node["metadata"]["name"]: i for i, node in enumerate(self.nodes)}
        self.zones = sorted({self._label(node, ZONE) for node in self.nodes})
        self.zone_index_by_host = [self.zones.index(self._label(node, ZONE)) for node in self.nodes]
        self.region_by_zone = {self._label(node, ZONE): self._label(node, REGION) for node in self.nodes}
        self.free = [parse_quantities(node["status"]["allocatable"]) for node in self.nodes]
        self.volumes, self.claims = objects_by_kind["PersistentVolume"], objects_by_kind["PersistentVolumeClaim"]
        (self.group,) = objects_by_kind["AppGroup"]
        (self.topology,) = objects_by_kind["NetworkTopology"]
        self.services = objects_by_kind["Service"]
        self.workloads = [w["workload"]["selector"] for w in self.group["spec"]["workloads"]]
        self.waiting_pods: list[Json] = []
        self.bound_pods: list[tuple[int, Json]] = []
        for pod in sorted(objects_by_kind["Pod"], key=lambda p: str(p["metadata"]["name"])):
            self._add_pod(pod)
        self._classify()
        annotations = self.group["metadata"]["annotations"]
        self.has_parity = annotations["netaware.io/objective"] == "parity"
        self.spread = annotations["netaware.io/spread"]
        self.weights = json.loads(annotations.get("netaware.io/weights", "{}"))
        self.edges = [
            (
                self.workloads.index(w["workload"]["selector"]),
                self.workloads.index(d["workload"]["selector"]),
                d["maxNetworkCost"],
            )
            for w in self.group["spec"]["workloads"]
            for d in w["dependencies"]
        ]

    @staticmethod
    def _label(node: Json, key: str) -> str:
        return str(node["metadata"]["labels"][key])

    def _add_pod(self, pod: Json) -> None:
        if pod["status"]["phase"] in {"Succeeded", "Failed"}:
            return
        node = pod["spec"].get("nodeName", "")
        if not node and GROUP not in pod["metadata"]["labels"]:  # of a DaemonSet
            required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            (node,) = required["nodeSelectorTerms"][0]["matchFields"][0]["values"]
        if not node:
            self.waiting_pods.append(pod)
        elif node in self.host_index_by_name:
            self.bound_pods.append((self.host_index_by_name[node], pod))

    def _classify(self) -> None:
        """Group waiting pods into classes of equal labels, specs and allowed hosts."""
        for host, pod in self.bound_pods:
            self.free[host].subtract({r: n for r, n in requests(pod).items() if not r.startswith("port ")})
        self.taken_ports = {(host, r) for host, pod in self.bound_pods for r in requests(pod) if r.startswith("port ")}
        self.classes: list[Json] = []
        self.pod_keys_by_class: list[list[str]] = []
        self.allowed: list[list[bool]] = []
        class_by_key: dict[str, int] = {}
        for pod in self.waiting_pods:
            is_allowed = self._allowed_hosts(pod)
            spec = {k: v for k, v in pod["spec"].items() if k != "volumes"}
            key = json.dumps([pod["metadata"]["labels"], spec, is_allowed], sort_keys=True)
            if key not in class_by_key:
                class_by_key[key] = len(self.classes)
                self.classes.append(pod)
                self.pod_keys_by_class.append([])
                self.allowed.append(is_allowed)
            self.pod_keys_by_class[class_by_key[key]].append(f"default/{pod['metadata']['name']}")

    def _allowed_hosts(self, pod: Json) -> list[bool]:
        """[host] whether node constraints and volumes allow the pod there."""
        spec, claims = pod["spec"], [v["persistentVolumeClaim"]["claimName"] for v in pod["spec"].get("volumes", ())]
        volume_by_claim = {c["metadata"]["name"]: c["spec"]["volumeName"] for c in self.claims}
        volumes = [
            v
            for v in self.volumes
            for claim in claims
            if v["metadata"]["name"] == volume_by_claim.get(claim) or v["spec"]["claimRef"]["name"] == claim
        ]

        def reaches_volumes(node: Json) -> bool:
            for volume in volumes:
                required = volume["spec"].get("nodeAffinity", {}).get("required")
                if required is not None and not terms_hold(required["nodeSelectorTerms"], node):
                    return False
                if volume["metadata"]["labels"].get(ZONE, self._label(node, ZONE)) != self._label(node, ZONE):
                    return False
            return True

        return [is_ready(n) and matches_node(spec, n) and tolerates(spec, n) and reaches_volumes(n) for n in self.nodes]

    def workload(self, pod: Json) -> int:
        """Index of a pod's workload; -1 for pods outside the group, and for terminating pods, which answer no calls."""
        labels = pod["metadata"]["labels"]
        if GROUP not in labels or "deletionTimestamp" in pod["metadata"]:
            return -1
        return self.workloads.index(labels[f"{GROUP}.workload"])

    def network_cost(self, a: int, b: int) -> int | None:
        """networkCost between two zones; None if unknown."""
        zones = self.zones[a], self.zones[b]
        regions = self.region_by_zone[zones[0]], self.region_by_zone[zones[1]]
        key, (origin, destination) = (ZONE, zones) if regions[0] == regions[1] else (REGION, regions)
        for level in self.topology["spec"]["weights"][0]["topologyList"]:
            for row in level["originList"] if level["topologyKey"] == key else ():
                for entry in row["costList"] if row["origin"] == origin else ():
                    if entry["destination"] == destination:
                        return int(entry["networkCost"])
        return None

    def call_cost(self, a: int, b: int) -> int:
        """Cost of a call between two hosts of these zones."""
        cost = self.network_cost(a, b)
        if self.has_parity:
            return 1 if a == b else UNKNOWN_COST if cost is None else cost
        if a == b:
            return IN_ZONE_US
        latencies = json.loads(self.topology["metadata"].get("annotations", {}).get("netaware.io/latency-us", "null"))
        if latencies is not None:
            row, column = (latencies["zones"].index(self.zones[zone]) for zone in (a, b))
            return max(int(latencies["us"][row][column]), IN_ZONE_US)
        return UNKNOWN_US if cost is None else max(cost * 1000, MIN_BETWEEN_ZONES_US)

    @property
    def host_cost(self) -> int:
        """Cost of a call within a host."""
        return 0 if self.has_parity else ON_HOST_US

    def routing(self, workload: int) -> str:
        """Routing of calls to a workload: ``zone``, ``node``, or empty if any replica answers."""
        labels = {"app": self.workloads[workload]}
        for service in self.services:
            if not self.has_parity and selects({"matchLabels": service["spec"]["selector"]}, labels):
                distribution = service["spec"].get("trafficDistribution", "")
                return {"": "", "PreferSameNode": "node"}.get(distribution, "zone")
        return ""

    def weight(self, edge: tuple[int, int, int], callers: int) -> float:
        """Traffic of all callers of a dependency together."""
        weight = self.weights.get(self.workloads[edge[0]], {}).get(self.workloads[edge[1]])
        return float(max(callers, 1) if weight is None else weight)

    def bound_replicas(self) -> list[list[int]]:
        """[workload][host] number of bound replicas."""
        counts = [[0] * len(self.nodes) for _ in self.workloads]
        for host, pod in self.bound_pods:
            if (workload := self.workload(pod)) >= 0:
                counts[workload][host] += 1
        return counts

    def must_span_zones(self, workload: int) -> bool:
        """Whether a workload has spread ``zone``, and its pods may run in several zones."""
        rows = [self.allowed[k] for k, pod in enumerate(self.classes) if self.workload(pod) == workload]
        zones = {self.zone_index_by_host[h] for row in rows for h, may in enumerate(row) if may}
        return self.spread == "zone" and len(zones) > 1

    def replicas(self, workload: int) -> int:
        """Number of replicas of a workload, bound ones included."""
        pods = [*(pod for _, pod in self.bound_pods), *self.waiting_pods]
        return sum(self.workload(pod) == workload for pod in pods)

    def exceeds_limit(self, edge: tuple[int, int, int], a: int, b: int) -> bool:
        """Whether the cost between two different zones is known and above the edge's maxNetworkCost."""
        cost = self.network_cost(a, b) if a != b else None
        return cost is not None and cost > edge[2]
