"""The best placement of a cluster's objects by CP-SAT, which `simulate --offline` is compared with.

Follows the rules of Kubernetes without code of the product.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from ortools.sat.python import cp_model

Json = dict[str, Any]
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
GROUP = "appgroup.diktyo.x-k8s.io"
ON_HOST_US, IN_ZONE_US, LEAST_US, UNKNOWN_US = 30, 100, 250, 100_000
UNKNOWN_COST = 100
SUFFIXES = {"m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
SCALE = 5040
"""Factor of latencies, so that they stay integers when up to ten replicas share them."""


class PlacementValue(msgspec.Struct, frozen=True, order=True):
    """Value of a placement; lower is better, compared field by field.

    Attributes:
        unplaced: pods that are not placed.
        unspread_workloads: workloads that must span zones and do not.
        violations: calls that exceed their limit.
        cost: in a unit of the group's objective; 0 if replicas are spread.
    """

    unplaced: int
    unspread_workloads: int
    violations: int
    cost: int


class BrokenRuleError(AssertionError):
    """A placement breaks a rule of Kubernetes."""


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
    """The cluster of a list of objects."""

    def __init__(self, objects: Sequence[Json]) -> None:
        objects_by_kind: dict[str, list[Json]] = defaultdict(list)
        for item in objects:
            objects_by_kind[item["kind"]].append(item)
        self.nodes = objects_by_kind["Node"]
        self.index = {node["metadata"]["name"]: i for i, node in enumerate(self.nodes)}
        self.zones = sorted({self._label(node, ZONE) for node in self.nodes})
        self.zone_of = [self.zones.index(self._label(node, ZONE)) for node in self.nodes]
        self.region_of = {self._label(node, ZONE): self._label(node, REGION) for node in self.nodes}
        self.free = [parse_quantities(node["status"]["allocatable"]) for node in self.nodes]
        self.volumes, self.claims = objects_by_kind["PersistentVolume"], objects_by_kind["PersistentVolumeClaim"]
        (self.group,) = objects_by_kind["AppGroup"]
        (self.topology,) = objects_by_kind["NetworkTopology"]
        self.services = objects_by_kind["Service"]
        self.workloads = [w["workload"]["selector"] for w in self.group["spec"]["workloads"]]
        self.waiting: list[Json] = []
        self.bound: list[tuple[int, Json]] = []
        for pod in sorted(objects_by_kind["Pod"], key=lambda p: str(p["metadata"]["name"])):
            self._add_pod(pod)
        self._classify()
        annotations = self.group["metadata"]["annotations"]
        self.parity, self.spread = annotations["netaware.io/objective"] == "parity", annotations["netaware.io/spread"]
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
        if not node and GROUP not in pod["metadata"]["labels"]:
            required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            (node,) = required["nodeSelectorTerms"][0]["matchFields"][0]["values"]
        if not node:
            self.waiting.append(pod)
        elif node in self.index:
            self.bound.append((self.index[node], pod))

    def _classify(self) -> None:
        """Group waiting pods into classes of equal labels, specs and allowed hosts."""
        for host, pod in self.bound:
            self.free[host].subtract({r: n for r, n in requests(pod).items() if not r.startswith("port ")})
        self.taken_ports = {(host, r) for host, pod in self.bound for r in requests(pod) if r.startswith("port ")}
        self.classes: list[Json] = []
        self.members: list[list[str]] = []
        self.allowed: list[list[bool]] = []
        class_by_key: dict[str, int] = {}
        for pod in self.waiting:
            is_allowed = self._allowed_hosts(pod)
            spec = {k: v for k, v in pod["spec"].items() if k != "volumes"}
            key = json.dumps([pod["metadata"]["labels"], spec, is_allowed], sort_keys=True)
            if key not in class_by_key:
                class_by_key[key] = len(self.classes)
                self.classes.append(pod)
                self.members.append([])
                self.allowed.append(is_allowed)
            self.members[class_by_key[key]].append(f"default/{pod['metadata']['name']}")

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
        one, other = self.zones[a], self.zones[b]
        key = ZONE if self.region_of[one] == self.region_of[other] else REGION
        pair = (one, other) if key == ZONE else (self.region_of[one], self.region_of[other])
        for level in self.topology["spec"]["weights"][0]["topologyList"]:
            for row in level["originList"] if level["topologyKey"] == key else ():
                for entry in row["costList"] if row["origin"] == pair[0] else ():
                    if entry["destination"] == pair[1]:
                        return int(entry["networkCost"])
        return None

    def call_cost(self, a: int, b: int) -> int:
        """Cost of a call between two hosts of these zones."""
        cost = self.network_cost(a, b)
        if self.parity:
            return 1 if a == b else UNKNOWN_COST if cost is None else cost
        if a == b:
            return IN_ZONE_US
        latencies = json.loads(self.topology["metadata"].get("annotations", {}).get("netaware.io/latency-us", "null"))
        if latencies is not None:
            row, column = (latencies["zones"].index(self.zones[zone]) for zone in (a, b))
            return max(int(latencies["us"][row][column]), IN_ZONE_US)
        return UNKNOWN_US if cost is None else max(cost * 1000, LEAST_US)

    @property
    def host_cost(self) -> int:
        """Cost of a call within a host."""
        return 0 if self.parity else ON_HOST_US

    def routing(self, workload: int) -> str:
        """Routing of calls to a workload: ``zone``, ``node``, or empty if any replica answers."""
        labels = {"app": self.workloads[workload]}
        for service in self.services:
            if not self.parity and selects({"matchLabels": service["spec"]["selector"]}, labels):
                distribution = service["spec"].get("trafficDistribution", "")
                return {"": "", "PreferSameNode": "node"}.get(distribution, "zone")
        return ""

    def weight(self, edge: tuple[int, int, int], callers: int) -> float:
        """Traffic of all callers of a dependency together."""
        weight = self.weights.get(self.workloads[edge[0]], {}).get(self.workloads[edge[1]])
        return float(max(callers, 1) if weight is None else weight)

    def bound_replicas(self) -> list[list[int]]:
        """[workload][host] number of bound replicas."""
        on = [[0] * len(self.nodes) for _ in self.workloads]
        for host, pod in self.bound:
            if (w := self.workload(pod)) >= 0:
                on[w][host] += 1
        return on

    def must_span_zones(self, workload: int) -> bool:
        """Whether a workload has spread ``zone``, and its pods may run in several zones."""
        rows = [self.allowed[k] for k, pod in enumerate(self.classes) if self.workload(pod) == workload]
        zones = {self.zone_of[h] for row in rows for h, may in enumerate(row) if may}
        return self.spread == "zone" and len(zones) > 1

    def replicas(self, workload: int) -> int:
        """Number of replicas of a workload, bound ones included."""
        return sum(self.workload(p) == workload for _, p in self.bound) + sum(
            len(keys) for pod, keys in zip(self.classes, self.members, strict=True) if self.workload(pod) == workload
        )

    def exceeds_limit(self, edge: tuple[int, int, int], a: int, b: int) -> bool:
        cost = self.network_cost(a, b) if a != b else None
        return cost is not None and cost > edge[2]

    def evaluate(self, placements: Mapping[str, str]) -> PlacementValue:
        """The value of a placement; raises BrokenRuleError."""
        model = _Model(self)
        model.fix(placements)
        goals = model.goals()
        # The helper variables of the goals have a bound on one side only.
        model.model.minimize(sum(goals[:3]))
        solver = model.solver(10.0)
        if solver.solve(model.model) not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
            raise BrokenRuleError(placements)
        return PlacementValue(*(solver.value(goal) for goal in goals))

    def best(self, placements: Mapping[str, str], seconds: float) -> tuple[PlacementValue, bool]:
        """The best placement that CP-SAT finds, and whether it is proven; the search begins with a placement, and limits the time per goal."""
        model = _Model(self)
        model.hint(placements)
        is_proven, best_placements = True, dict(placements)
        for goal in model.goals():
            if isinstance(goal, int):
                continue
            model.model.minimize(goal)
            solver = model.solver(seconds)
            status = solver.solve(model.model)
            is_proven &= status == cp_model.OPTIMAL
            if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
                break
            best_placements = model.placements(solver)
            model.model.add(goal <= round(solver.objective_value))
            model.hint(best_placements)
        return self.evaluate(best_placements), is_proven

    def most_placed(self, seconds: float) -> dict[str, str]:
        """A placement of as many pods as CP-SAT can place in this time."""
        model = _Model(self)
        model.model.minimize(model.unplaced)
        solver = model.solver(seconds)
        solver.solve(model.model)
        return model.placements(solver)


class _Model:
    """The CP-SAT model: a variable for the number of pods of each class on each host, constraints and goals."""

    def __init__(self, cluster: OracleCluster) -> None:
        self.cluster, self.model = cluster, cp_model.CpModel()
        hosts = range(len(cluster.nodes))
        self.pod_count = [
            [self.model.new_int_var(0, len(keys) if cluster.allowed[k][h] else 0, "") for h in hosts]
            for k, keys in enumerate(cluster.members)
        ]
        for row, keys in zip(self.pod_count, cluster.members, strict=True):
            self.model.add(sum(row) <= len(keys))
        self._add_resources()
        for k, pod in enumerate(cluster.classes):
            spec = pod["spec"]
            for constraint in spec.get("topologySpreadConstraints", ()):
                self._add_spread(constraint, pod)
            affinity = spec.get("affinity", {})
            for term in affinity.get("podAntiAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", ()):
                self._add_anti_affinity(term, k)
            for term in affinity.get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", ()):
                self._add_affinity(term, k)
        for host, pod in cluster.bound:
            affinity = pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
            for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution", ()):
                same = self._domain(term["topologyKey"], host)
                self.model.add(sum(self._placed_vars(term["labelSelector"], same)) == 0)

    def solver(self, seconds: float) -> cp_model.CpSolver:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = seconds
        return solver

    def _add_resources(self) -> None:
        cluster = self.cluster
        requests_by_class = [requests(pod) for pod in cluster.classes]
        for h, free in enumerate(cluster.free):
            for resource in {r for requested in requests_by_class for r, n in requested.items() if n}:
                is_port = resource.startswith("port ")
                available = int((h, resource) not in cluster.taken_ports) if is_port else free[resource]
                used = [
                    requested[resource] * row[h]
                    for requested, row in zip(requests_by_class, self.pod_count, strict=True)
                    if requested[resource]
                ]
                if available < 0:
                    for requested, row in zip(requests_by_class, self.pod_count, strict=True):
                        if requested[resource]:
                            self.model.add(row[h] == 0)
                else:
                    self.model.add(sum(used) <= available)

    def _domain(self, key: str, host: int) -> list[int]:
        value = self.cluster.nodes[host]["metadata"]["labels"].get(key)
        return [h for h, n in enumerate(self.cluster.nodes) if n["metadata"]["labels"].get(key) == value]

    def _domains(self, key: str) -> list[list[int]]:
        return [list(d) for d in dict.fromkeys(tuple(self._domain(key, h)) for h in range(len(self.cluster.nodes)))]

    def _placed_vars(self, selector: Json, hosts: Iterable[int]) -> list[Any]:
        """Variables for the selected waiting pods on these hosts."""
        matching = [k for k, p in enumerate(self.cluster.classes) if selects(selector, p["metadata"]["labels"])]
        return [self.pod_count[k][h] for k in matching for h in hosts]

    def _count_bound(self, selector: Json, hosts: Iterable[int], *, with_terminating: bool = True) -> int:
        within = set(hosts)
        return sum(
            h in within
            and selects(selector, p["metadata"]["labels"])
            and (with_terminating or "deletionTimestamp" not in p["metadata"])
            for h, p in self.cluster.bound
        )

    def _is_any_placed(self, parts: list[Any]) -> Any:
        used = self.model.new_bool_var("")
        self.model.add(sum(parts) == 0).only_enforce_if(used.Not())
        return used

    def _add_spread(self, constraint: Json, pod: Json) -> None:
        """PodTopologySpread: nodes that the node policies exclude do not count."""
        cluster, selector = self.cluster, constraint["labelSelector"]
        honours_affinity = constraint.get("nodeAffinityPolicy", "Honor") == "Honor"
        honours_taints = constraint.get("nodeTaintsPolicy", "Ignore") == "Honor"
        counted = [
            h
            for h, node in enumerate(cluster.nodes)
            if (not honours_affinity or matches_node(pod["spec"], node))
            and (not honours_taints or tolerates(pod["spec"], node))
        ]
        domains = [[h for h in d if h in counted] for d in self._domains(constraint["topologyKey"])]
        domains = [d for d in domains if d]
        bound = [self._count_bound(selector, d, with_terminating=False) for d in domains]
        totals = [count + sum(self._placed_vars(selector, d)) for count, d in zip(bound, domains, strict=True)]
        least = self.model.new_int_var(0, 100, "")
        if len(domains) < constraint.get("minDomains", 0):
            self.model.add(least == 0)
        owners = [
            k for k, p in enumerate(cluster.classes) if constraint in p["spec"].get("topologySpreadConstraints", ())
        ]
        for total, domain in zip(totals, domains, strict=True):
            self.model.add(least <= total)
            used = self._is_any_placed(
                [self.pod_count[k][h] for k in owners for h in domain if self._same_nodes(cluster.classes[k], pod)]
            )
            self.model.add(total <= least + constraint["maxSkew"]).only_enforce_if(used)

    def _same_nodes(self, first: Json, second: Json) -> bool:
        return all(matches_node(first["spec"], n) == matches_node(second["spec"], n) for n in self.cluster.nodes)

    def _add_anti_affinity(self, term: Json, owner: int) -> None:
        selector = term["labelSelector"]
        counts_itself = selects(selector, self.cluster.classes[owner]["metadata"]["labels"])
        for domain in self._domains(term["topologyKey"]):
            owners = [self.pod_count[owner][h] for h in domain]
            counted = self._count_bound(selector, domain) + sum(self._placed_vars(selector, domain))
            self.model.add(counted <= int(counts_itself)).only_enforce_if(self._is_any_placed(owners))

    def _add_affinity(self, term: Json, owner: int) -> None:
        selector = term["labelSelector"]
        for domain in self._domains(term["topologyKey"]):
            owners = [self.pod_count[owner][h] for h in domain]
            counted = self._count_bound(selector, domain) + sum(self._placed_vars(selector, domain))
            self.model.add(counted >= 1).only_enforce_if(self._is_any_placed(owners))

    @property
    def unplaced(self) -> Any:
        """Number of pods without a place."""
        return len(self.cluster.waiting) - sum(var for row in self.pod_count for var in row)

    def goals(self) -> list[Any]:
        """The fields of `PlacementValue`."""
        cluster, model = self.cluster, self.model
        hosts, zones = range(len(cluster.nodes)), range(len(cluster.zones))
        fixed = cluster.bound_replicas()
        on = [
            [
                fixed[w][h]
                + sum(self.pod_count[k][h] for k, p in enumerate(cluster.classes) if cluster.workload(p) == w)
                for h in hosts
            ]
            for w in range(len(cluster.workloads))
        ]
        totals = [cluster.replicas(w) for w in range(len(on))]
        in_zone = [
            [self._var(sum(on[w][h] for h in hosts if cluster.zone_of[h] == z), totals[w]) for z in zones]
            for w in range(len(on))
        ]
        in_one_zone = []
        for w, total in enumerate(totals):
            for z in zones if cluster.must_span_zones(w) and total > 1 else ():
                whole = model.new_bool_var("")
                model.add(in_zone[w][z] < total).only_enforce_if(whole.Not())
                in_one_zone.append(whole)
        violations, cost = [], []
        for edge in cluster.edges:
            a, b = edge[:2]
            if not totals[a] or not totals[b]:
                continue
            product = [
                [self._product(in_zone[a][z], in_zone[b][y], totals[a] * totals[b]) for y in zones] for z in zones
            ]
            for z in zones:
                broken = sum(product[z][y] for y in zones if cluster.exceeds_limit(edge, z, y))
                if isinstance(broken, int):
                    continue
                if cluster.routing(b):
                    has_own_replica = model.new_bool_var("")
                    model.add(in_zone[b][z] >= 1).only_enforce_if(has_own_replica)
                    most = model.new_int_var(0, totals[a] * totals[b], "")
                    model.add(most >= broken).only_enforce_if(has_own_replica.Not())
                    broken = most
                violations.append(broken)
            if cluster.spread == "none":
                unit = 1 if cluster.parity else round(SCALE * cluster.weight(edge, totals[a]) / (totals[a] * totals[b]))
                cost += [unit * cluster.call_cost(z, y) * product[z][y] for z in zones for y in zones]
                cost += [
                    -unit
                    * (cluster.call_cost(cluster.zone_of[h], cluster.zone_of[h]) - cluster.host_cost)
                    * self._product(on[a][h], on[b][h], totals[a] * totals[b])
                    for h in hosts
                ]
        return [self.unplaced, sum(in_one_zone), sum(violations), sum(cost)]

    def _var(self, value: Any, most: int) -> Any:
        var = self.model.new_int_var(0, most, "")
        self.model.add(var == value)
        return var

    def _product(self, one: Any, other: Any, most: int) -> Any:
        var = self.model.new_int_var(0, most, "")
        self.model.add_multiplication_equality(var, [one, other])
        return var

    def _counts(self, placements: Mapping[str, str]) -> Iterable[tuple[Any, int]]:
        for row, keys in zip(self.pod_count, self.cluster.members, strict=True):
            at = Counter(self.cluster.index[placements[key]] for key in keys if key in placements)
            for h, var in enumerate(row):
                yield var, at[h]

    def fix(self, placements: Mapping[str, str]) -> None:
        for var, value in self._counts(placements):
            self.model.add(var == value)

    def hint(self, placements: Mapping[str, str]) -> None:
        self.model.clear_hints()
        for var, value in self._counts(placements):
            self.model.add_hint(var, value)

    def placements(self, solver: cp_model.CpSolver) -> dict[str, str]:
        node_by_pod: dict[str, str] = {}
        for row, keys in zip(self.pod_count, self.cluster.members, strict=True):
            hosts = [h for h, var in enumerate(row) for _ in range(solver.value(var))]
            for key, h in zip(keys, hosts, strict=False):
                node_by_pod[key] = self.cluster.nodes[h]["metadata"]["name"]
        return node_by_pod
