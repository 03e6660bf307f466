"""From flows to proposed AppGroups, and to drift, weights and prices of existing ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from controller.cluster.costs import CostTable, Location
from controller.cluster.crds import AppGroup, WeightInfo
from controller.cluster.dependency_graph import build_graph
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.traffic.config import TrafficConfig
from controller.traffic.drift import Comparison, compare_groups
from controller.traffic.graph import Flow, WorkloadId, build_traffic_graph
from controller.traffic.prices import PriceTable
from controller.traffic.proposals import Proposal, propose
from controller.traffic.reconciler import describe_drifts, must_write_weights
from controller.traffic.workloads import Workloads
from kubekit.wire import Object, ObjectMeta
from tests.support.bodies import make_weight_body
from tests.support.descheduler_builders import make_pod_info

ZONE1, ZONE2, OTHER_REGION = Location("r1", "z1"), Location("r1", "z2"), Location("r2", "z9")
COSTS = CostTable(msgspec.convert(make_weight_body({("z1", "z2"): 7}), WeightInfo))
SHOP_EDGES = {("frontend", "cart"), ("cart", "redis"), ("frontend", "catalog")}
MONTH_S = 730 * 3600
GROUP = "shop/boutique"
BETWEEN_ZONES: dict[str, Any] = {"client_zone": "z1", "server_zone": "z2"}


def make_id(name: str, namespace: str = "shop", kind: str = "Deployment") -> WorkloadId:
    return WorkloadId(namespace, name, kind)


def make_flow(client: str, server: str, bytes_per_s: float, **fields: Any) -> Flow:
    """A flow between Deployments, by default with its mean as peak."""
    return Flow(make_id(client), make_id(server), bytes_per_s, fields.pop("peak", bytes_per_s), **fields)


def make_workloads(flows: Iterable[Flow], *locations: Location) -> Workloads:
    """The workloads of flows, with a replica at each location."""
    ends = {end for flow in flows for end in (flow.client, flow.server)}
    location_counts = {end: Counter(locations) for end in ends}
    return Workloads(Counter(dict.fromkeys(ends, len(locations))), location_counts, {}, {"z1": "r1", "z2": "r1"})


def propose_for(flows: Iterable[Flow], *groups: AppGroup) -> list[Proposal]:
    """AppGroups for the namespace shop; each workload of the flows has a replica in zone z1."""
    flows = list(flows)
    return propose(build_traffic_graph(flows, "netaware-system"), make_workloads(flows, ZONE1), groups, "shop", COSTS)


def compare(
    flows: Sequence[Flow], *groups: AppGroup, prices: PriceTable | None = None, consents: dict[str, str] | None = None
) -> Comparison:
    """Flows between workloads with a replica in each zone; ``consents`` is namespace -> namespaces whose groups may have its pods."""
    workloads = make_workloads(flows, ZONE1, ZONE2)
    labels = {name: {"netaware.io/appgroups-from": others} for name, others in (consents or {}).items()}
    namespaces = tuple(Object(ObjectMeta(name=name, labels=labels.get(name))) for name in ("shop", "other"))
    membership = ClusterSnapshot(now_s=0, groups=groups, namespaces=namespaces).build_membership()
    return compare_groups(flows, workloads, groups, prices, membership=membership, netaware_namespace="netaware-system")


def list_members(proposal: Proposal) -> list[str]:
    """Names of the workloads of a proposal."""
    return [entry["workload"]["name"] for entry in proposal.manifest["spec"]["workloads"]]


def make_entry(reference: dict[str, str], *callees: dict[str, str]) -> dict[str, Any]:
    """A workload of an AppGroup with dependencies on others."""
    return {"workload": reference, "dependencies": [{"workload": callee} for callee in callees]}


def make_group(*entries: dict[str, Any], name: str = "boutique", namespace: str = "shop", **spec: Any) -> AppGroup:
    """An AppGroup with these workloads; those that are references call no others."""
    workloads = [entry if "workload" in entry else make_entry(entry) for entry in entries]
    metadata = {"name": name, "namespace": namespace}
    return msgspec.convert({"metadata": metadata, "spec": {"workloads": workloads, **spec}}, AppGroup)


def make_reference(name: str, selector: str = "", **fields: str) -> dict[str, str]:
    return {"kind": "Deployment", "name": name, "selector": selector, **fields}


SHOP_FLOWS = [
    make_flow("frontend", "cart", 5000.0, peak=5500.0, **BETWEEN_ZONES),
    make_flow("cart", "redis", 4000.0, **BETWEEN_ZONES),
    make_flow("frontend", "catalog", 3000.0, **BETWEEN_ZONES),
]


def test_dns_probes_scrapes_self_calls_and_external_ends_are_no_dependency() -> None:
    flows = [
        *SHOP_FLOWS,
        make_flow("frontend", "frontend", 10),
        make_flow("frontend", "resolver", 10, port=53),
        Flow(make_id("prometheus", "monitoring"), make_id("cart"), 100),
        Flow(make_id("cart"), make_id("coredns", "kube-system"), 10),
        Flow(make_id("cart"), WorkloadId(), 1000),
        Flow(make_id("konnectivity", "kube-system"), make_id("cart"), 10),
        Flow(make_id("cart"), make_id("netaware-controller", "placement"), 10),
        make_flow("cart", "catalog", 0.5),
    ]
    graph = build_traffic_graph(flows, "placement")
    assert {(edge.client.name, edge.server.name) for edge in graph.dependencies} == SHOP_EDGES
    reasons = {traffic.reason for traffic in graph.omitted}
    assert reasons == {"self", "dns", "scrape", "external", "system", "negligible"}
    omitted_bytes_per_s = sum(traffic.bytes_per_s for traffic in graph.omitted)
    assert graph.bytes_per_s + omitted_bytes_per_s == pytest.approx(sum(flow.bytes_per_s for flow in flows))


def test_a_proposal_is_an_appgroup_that_the_controller_reads_without_faults() -> None:
    (proposal,) = propose_for(SHOP_FLOWS)
    spec = make_group(**proposal.manifest["spec"]).spec
    graph = build_graph(spec)
    assert graph.faults == ()
    edges = {(graph.selectors[edge.caller], graph.selectors[edge.callee]): edge for edge in graph.edges}
    assert set(edges) == SHOP_EDGES
    assert edges["frontend", "cart"].min_bandwidth_bps == 8 * 5500, "the peak"
    assert edges["frontend", "cart"].max_network_cost == 7
    assert spec.num_members == 4
    assert {name for _, name, _ in proposal.patches} == {"frontend", "cart", "redis", "catalog"}


@pytest.mark.parametrize(
    ("peak_bps", "bandwidth_bps"),
    [(8, 1000), (1001, 1100), (44_000, 44_000), (44_001, 45_000), (9_990_001, 10_000_000)],
)
def test_bandwidth_is_rounded_up_to_two_digits(peak_bps: float, bandwidth_bps: int) -> None:
    (proposal,) = propose_for([make_flow("a", "b", 1, peak=peak_bps / 8)])
    assert proposal.dependencies[0].min_bandwidth_bps == bandwidth_bps


def test_an_existing_appgroup_keeps_its_entries_and_missing_ones_are_added() -> None:
    cart = make_reference("cart", "P2")
    frontend = make_entry(make_reference("frontend", "P1"), cart)
    frontend["dependencies"][0] |= {"minBandwidth": "10M", "maxNetworkCost": 3}
    group = make_group(frontend, cart, numMembers=9, topologySortingAlgorithm="TarjanSort")

    (proposal,) = propose_for(SHOP_FLOWS, group)

    spec = proposal.manifest["spec"]
    assert (proposal.name, proposal.exists) == ("boutique", True)
    assert (spec["numMembers"], spec["topologySortingAlgorithm"]) == (9, "TarjanSort")
    assert spec["workloads"][0]["workload"]["selector"] == "P1"
    bandwidths = [(edge["workload"]["selector"], edge["minBandwidth"]) for edge in spec["workloads"][0]["dependencies"]]
    assert bandwidths == [("P2", "10M"), ("catalog", "24000")]


def test_entries_of_one_name_are_kept_and_matched_by_kind() -> None:
    entries = [
        make_reference("web", "W1"),
        make_reference("web", "W2", kind="StatefulSet"),
        make_reference("web", "W3", namespace="other"),
    ]
    web_stateful_set, db_stateful_set = make_id("web", kind="StatefulSet"), make_id("db", kind="StatefulSet")
    flows = [make_flow("web", "db", 9.0), Flow(web_stateful_set, make_id("db"), 9.0)]
    flows.append(Flow(web_stateful_set, db_stateful_set, 8.0))
    (proposal,) = propose_for(flows, make_group(*entries, numMembers=3))
    entry_by_selector = {entry["workload"]["selector"]: entry for entry in proposal.manifest["spec"]["workloads"]}
    callees_by_selector = {
        selector: [edge["workload"]["selector"] for edge in entry.get("dependencies") or ()]
        for selector, entry in entry_by_selector.items()
    }
    expected = {"W1": ["db"], "W2": ["db", "db-statefulset"], "W3": [], "db": [], "db-statefulset": []}
    assert callees_by_selector == expected
    assert entry_by_selector["W2"]["workload"]["kind"] == "StatefulSet"
    assert entry_by_selector["db"]["workload"]["kind"] == "Deployment"


def test_traffic_between_two_existing_groups_joins_neither_of_them() -> None:
    members = {"a": ("web", "cart"), "b": ("pay", "db")}
    groups = [make_group(*map(make_reference, names, names), name=name) for name, names in members.items()]
    rates = {("web", "cart"): 90.0, ("pay", "db"): 80.0, ("cart", "pay"): 1000.0, ("new", "pay"): 5.0}

    proposals = propose_for([make_flow(*ends, bytes_per_s) for ends, bytes_per_s in rates.items()], *groups)

    assert {proposal.name: list_members(proposal) for proposal in proposals} == {
        "a": ["web", "cart"],
        "b": ["pay", "db", "new"],
    }
    for proposal in proposals:
        assert {workload for _, workload, _ in proposal.patches} == set(list_members(proposal))
    assert {proposal.name: proposal.external for proposal in proposals} == {"a": ("shop/pay",), "b": ("shop/cart",)}


def test_groups_split_at_negligible_traffic_and_a_hub_joins_no_groups() -> None:
    flows = [make_flow(f"web{i}", f"db{i}", 10_000) for i in range(8)]
    flows += [make_flow(f"web{i}", "logs", 600 + i) for i in range(8)]
    flows += [make_flow(f"db{i}", "logs", 600) for i in range(8)]
    flows.append(make_flow("web0", "web1", 50))
    proposals = propose_for(flows)
    assert sorted(len(list_members(proposal)) for proposal in proposals) == [2] * 7 + [3], "the hub is in one group"
    assert len({proposal.name for proposal in proposals}) == 8
    assert sum("shop/logs" in proposal.external for proposal in proposals) == 7


def test_cycles_external_ends_and_daemonsets_are_no_errors() -> None:
    to_daemonset = Flow(make_id("a"), make_id("proxy", kind="DaemonSet"), 100)
    (proposal,) = propose_for([make_flow("a", "b", 100), make_flow("b", "a", 100), to_daemonset])
    edges = {(edge.client, edge.server) for edge in proposal.dependencies}
    assert edges == {("shop/a", "shop/b"), ("shop/b", "shop/a")}
    assert proposal.external == ("shop/proxy",)


def test_pods_resolve_to_workloads_and_missing_ends_are_reported() -> None:
    pods = [
        make_pod_info("web-x", "n1", owner="ReplicaSet/web-5d", labels={"pod-template-hash": "5d"}, namespace="shop"),
        make_pod_info("db-0", "n2", owner="StatefulSet/db", namespace="shop"),
        make_pod_info("lone", "n1", owner="", namespace="shop"),
    ]
    workloads = Workloads.from_objects(pods, {"n1": ZONE1, "n2": ZONE2, "n3": OTHER_REGION})
    assert workloads.location_of("z9") == OTHER_REGION, "a zone without pods keeps its region"
    assert {workload.kind for workload in workloads.replica_counts} == {"Deployment", "StatefulSet", "Pod"}
    workloads.replica_counts[make_id("db", kind="Job")] = 1
    calls = [Flow(WorkloadId("shop", "web"), make_id("db", kind="StatefulSet"), 2), make_flow("gone", "web", 7)]
    flows, missing = workloads.resolve(calls)
    assert [(flow.client.kind, flow.server.kind) for flow in flows] == [("Deployment", "StatefulSet")]
    assert missing == {"shop/gone": 7}


def test_drift_is_what_an_appgroup_does_not_declare_or_declares_too_low() -> None:
    frontend = make_entry(make_reference("frontend", "P1"), make_reference("cart", "P2"))
    frontend["dependencies"][0]["minBandwidth"] = "10M"
    group = make_group(frontend, make_reference("cart", "P2"))
    comparison = compare([make_flow("frontend", "cart", 5000.0)], group)
    assert comparison.drift_by_group[GROUP] == []
    assert comparison.weights_by_group[GROUP] == {"P1": {"P2": 5000.0}}
    drift = compare([make_flow("cart", "frontend", 9)], group).drift_by_group[GROUP]
    drifts = {(entry.kind, entry.client, entry.server) for entry in drift}
    assert drifts == {("new", "shop/cart", "shop/frontend"), ("gone", "shop/frontend", "shop/cart")}
    (grown,) = compare([make_flow("frontend", "cart", 20e6)], group).drift_by_group[GROUP]
    assert grown.kind == "grown"
    assert "16 times" in grown.detail, "160 Mbit/s of 10"


def test_a_bill_is_bytes_times_price_by_distance() -> None:
    flows, group = [make_flow("a", "b", 1000, **BETWEEN_ZONES)], make_group(make_reference("a", "A"))
    bill = compare(flows, group, prices=PriceTable(between_zones=0.02)).bill
    assert bill.monthly_price == pytest.approx(1000 * MONTH_S / 1e9 * 0.02)
    assert bill.monthly_price_by_group == {GROUP: bill.monthly_price}
    assert bill.crossing_bytes_per_s == 1000
    assert bill.dependencies[0].has_all_zones


def test_bytes_without_zones_are_spread_over_replicas_in_the_bill() -> None:
    flows = [make_flow("a", "b", 300, **BETWEEN_ZONES), make_flow("a", "b", 700)]
    bill = compare(flows, prices=PriceTable(between_zones=0.02)).bill
    assert bill.crossing_bytes_per_s == pytest.approx(300 + 700 / 2), "half of the pairs of replicas are in two zones"
    assert bill.monthly_price == pytest.approx(650 * MONTH_S / 1e9 * 0.02)
    assert not bill.dependencies[0].has_all_zones


def test_a_missing_price_is_that_of_the_next_shorter_distance() -> None:
    assert PriceTable(between_zones=0.02).price_per_gb(ZONE1, OTHER_REGION) == 0.02
    assert PriceTable(same_zone=0.01).price_per_gb(ZONE1, ZONE2) == 0.01
    assert PriceTable(between_zones=0.02, between_regions=0.0).price_per_gb(ZONE1, OTHER_REGION) == 0


def test_weights_are_written_after_traffic_shifts_or_doubles() -> None:
    before = {("P1", "P2"): 80.0, ("P1", "P3"): 20.0}
    assert not must_write_weights(before, {"P1": {"P2": 120.0, "P3": 25.0}})
    assert not must_write_weights(before, {})
    assert must_write_weights(before, {"P1": {"P2": 70.0, "P3": 31.0}})
    assert must_write_weights(before, {"P1": {"P2": 160.0, "P3": 40.0}})
    assert must_write_weights(before, {"P1": {"P2": 80.0}, "P2": {"P3": 20.0}})
    assert must_write_weights({}, {"P1": {"P2": 80.0}})


@pytest.mark.parametrize(
    ("reference", "is_declared"),
    [
        (make_reference("cart"), True),
        (make_reference("cart", "C"), True),
        (make_reference("old-name", "C"), True),
        (make_reference("cart", "OLD"), False),
        (make_reference("cart", namespace="other"), True),
    ],
)
def test_a_dependency_counts_as_declared_where_the_scheduler_finds_its_workload(
    reference: dict[str, str], *, is_declared: bool
) -> None:
    group = make_group(make_entry(make_reference("frontend", "F"), reference), make_reference("cart", "C"))
    assert len(build_graph(group.spec).edges) == is_declared
    flows = [make_flow("frontend", "cart", 900.0)]
    drift = compare(flows, group).drift_by_group[GROUP]
    assert [entry.kind for entry in drift] == ([] if is_declared else ["new"])
    (proposal,) = propose_for([*flows, make_flow("frontend", "redis", 800.0)], group)
    is_user_defined = {edge.server: edge.is_user_defined for edge in proposal.dependencies}
    assert is_user_defined == {"shop/cart": is_declared, "shop/redis": False}


def test_workloads_of_other_namespaces_are_neither_compared_nor_weighed() -> None:
    cart = make_reference("cart", "CART")
    db, store = make_reference("db", "DB", namespace="data"), make_reference("store", "STORE", namespace="data")
    group = make_group(make_entry(make_reference("frontend", "FRONTEND"), cart, db), cart, make_entry(db, store), store)
    flows = [
        make_flow("frontend", "cart", 100),
        make_flow("frontend", "no-member", 100),
        Flow(make_id("frontend"), make_id("db", "data"), 100),
        Flow(make_id("db", "data"), make_id("store", "data"), 1000),
    ]

    comparison = compare(flows, group, make_group(name="empty", namespace="else"))

    assert comparison.drift_by_group == {GROUP: [], "else/empty": []}
    assert comparison.weights_by_group == {GROUP: {"FRONTEND": {"CART": 100}}, "else/empty": {}}
    assert comparison.bill.bytes_per_s == 1300


def test_prices_belong_to_groups_that_may_have_the_workloads_pods() -> None:
    """The author of an AppGroup must not see the price of workloads that are not in it."""
    foreign = make_group(make_reference("cart", "C", namespace="other"))
    own = make_group(make_reference("cart", "C"), name="own", namespace="other")
    flows = [Flow(make_id("cart", "other"), make_id("db", "other"), 9)]
    for groups, consents, billed_group in (
        ((foreign, own), {}, "other/own"),
        ((own, foreign), {}, "other/own"),
        ((foreign,), {}, ""),
        ((foreign,), {"other": "shop"}, GROUP),
    ):
        assert compare(flows, *groups, consents=consents).bill.dependencies[0].group == billed_group


def test_drift_messages_have_no_rates_and_a_limited_length() -> None:
    callers = [f"a{i}" for i in range(5)]
    group = make_group(*(make_reference(name, name) for name in (*callers, "b")))
    drift = compare([make_flow(name, "b", 1000.0) for name in callers], group).drift_by_group[GROUP]
    reason, message, holds = describe_drifts(drift)
    assert reason == "Drift"
    assert message.startswith("a0 -> b is not declared; a1 -> b")
    assert message.endswith("and 2 more: see kubectl netaware propose")
    assert not holds
    assert describe_drifts([]).reason == "AsDescribed"


def test_preset_prices_have_a_source() -> None:
    assert TrafficConfig().prices.resolve() is None
    for preset in ("aws", "gcp", "azure"):
        table = PriceTable(preset=preset).resolve()
        assert table is not None
        assert "2026" in table.source
