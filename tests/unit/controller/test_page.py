"""The page's document and data: columns in the order of the zones, errors, and the commands that open the page."""

from __future__ import annotations

import asyncio
import gzip
import re
import sys
from itertools import permutations
from typing import Any
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from controller.cli import kubectl
from controller.cli.kubectl import PageError, port_forward
from controller.cluster.cluster_cache import ClusterCache
from controller.diagnosis.control_plane import ControlPlaneStatus
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page import server, snapshots
from controller.page.access import PageAuthorizer
from controller.page.config import PageConfig
from controller.page.document import build_csp, build_document
from controller.page.snapshots import SnapshotReader
from controller.scheduler.config import SchedulerConfig
from controller.views.overview import Overview, build_overview
from kubekit.errors import UnreachableError
from kubekit.wire import ConfigMap, NodeStatus, ObjectMeta
from netperf.policy import CostPolicy
from tests.unit.controller.components import fill_store
from tests.unit.controller.healthy_cluster import encode_page_data, make_cluster_snapshot, make_pod, read_pod_info


def make_client(reply: Any) -> Any:
    """A client whose reads have this side effect."""
    return Mock(get=AsyncMock(side_effect=reply), list=AsyncMock(side_effect=reply))


def make_reader(client: Any, *results: ConfigMap) -> SnapshotReader:
    """A reader of the objects of a cluster that is empty but for results."""
    cache = ClusterCache(client, "netaware")
    fill_store(cache.results, results)
    return SnapshotReader(cache, client, "netaware", policy=CostPolicy(), scheduler=SchedulerConfig())


def test_columns_of_the_matrix_are_in_the_order_of_the_zones_without_the_diagonal() -> None:
    snapshot = make_cluster_snapshot(5)
    overview = build_overview(snapshot)
    data = encode_page_data(snapshot)
    zones = [zone["name"] for zone in data["network"]["zones"]]
    assert {len(column) for column in data["matrix"].values()} == {5 * 4}, "ordered pairs of five zones"
    pairs = overview.network.pairs_by_zones
    assert data["matrix"]["cost"] == [pairs[ends].cost for ends in permutations(zones, 2)]
    assert "pairs" not in data["network"]


def test_requests_on_nodes_without_capacity_are_not_in_the_allocated_bandwidth() -> None:
    snapshot = make_cluster_snapshot(2, 1)
    without_capacity = msgspec.structs.replace(snapshot.nodes[0], status=NodeStatus())
    names = [node.metadata.name for node in snapshot.nodes]
    pods = tuple(read_pod_info(make_pod(f"on-{name}", node=name, request="1G")) for name in names)
    nodes = (without_capacity, *snapshot.nodes[1:])
    bandwidth = encode_page_data(msgspec.structs.replace(snapshot, nodes=nodes, bandwidth_pods=pods))["bandwidth"]
    assert (bandwidth["totalNodes"], bandwidth["nodesWithCapacity"], bandwidth["allocatedBps"]) == (2, 1, 10**9)


def test_a_hundred_zones_are_less_than_a_megabyte_and_compress_to_a_fifth() -> None:
    data = msgspec.json.encode(encode_page_data(make_cluster_snapshot(100, 1)))
    assert len(data) < 1_000_000
    assert len(gzip.compress(data, 6)) < 200_000


def test_the_document_loads_no_other_files_and_its_policy_allows_only_its_script_and_style() -> None:
    document = build_document().decode()
    assert "/*STYLE*/" not in document
    assert "/*SCRIPT*/" not in document
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", document) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", document) == []
    assert "innerHTML" not in document.replace("without innerHTML", "")
    # An inline handler or style attribute would be blocked by the policy.
    assert not re.findall(r"<[^>]+\s(?:on\w+|style)=", document.partition("<script>")[0])
    policy = dict(part.strip().split(" ", 1) for part in build_csp().split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/=]{44}'", policy["script-src"])


def test_script_files_define_no_name_twice() -> None:
    """The files share a scope, in which the last function of a name replaces the others without an error."""
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", build_document().decode(), re.MULTILINE)
    assert len(names) > 50
    assert [name for name in names if names.count(name) > 1] == []


async def test_a_failed_computation_is_answered_by_503_until_the_next_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_broken = asyncio.Event()

    def build_or_fail(snapshot: ClusterSnapshot) -> Overview:
        if is_broken.is_set():
            raise IndexError
        return build_overview(snapshot)

    monkeypatch.setattr(server, "build_overview", build_or_fail)
    monkeypatch.setattr(server, "MIN_REFRESH_INTERVAL_S", 0.0)
    monkeypatch.setattr(server, "PAUSE_FACTOR", 0.0)
    client, times = make_client(UnreachableError("simulated")), iter(range(100, 200))
    authorizer = PageAuthorizer(client, "netaware")
    page = server.Page(PageConfig(auth="none"), make_reader(client), authorizer, lambda: float(next(times)))
    app = web.Application()
    page.add_routes(app)
    policy = "default-src 'none'; frame-ancestors 'none'"
    async with TestClient(TestServer(app)) as browser:
        is_broken.set()
        assert (await browser.get("/api/v1/overview")).status == 503
        is_broken.clear()
        answer = await browser.get("/api/v1/overview")
        assert (answer.status, answer.headers["Content-Security-Policy"]) == (200, policy)
        etag = {"If-None-Match": answer.headers["ETag"]}
        assert (await browser.get("/api/v1/overview", headers=etag)).status == 304
        next_answer = await browser.get("/api/v1/overview")
        assert next_answer.headers["ETag"] == answer.headers["ETag"]
        assert (await next_answer.json())["readAt"] > (await answer.json())["readAt"]
        monkeypatch.setattr(server, "MIN_REFRESH_INTERVAL_S", 3600.0)
        is_broken.set()
        failure = await browser.get("/api/v1/overview", headers=etag)
        assert (failure.status, failure.headers["Content-Security-Policy"]) == (503, policy)
        is_broken.clear()
        assert (await browser.get("/api/v1/overview")).status == 503, "a failure is not repeated at once either"


@pytest.mark.parametrize(("enabled", "methods"), [(True, {"GET", "HEAD"}), (False, set())])
def test_the_page_is_read_only_and_can_be_disabled(*, enabled: bool, methods: set[str]) -> None:
    client, app = make_client(UnreachableError("simulated")), web.Application()
    page = server.Page(PageConfig(enabled=enabled), make_reader(client), PageAuthorizer(client, "netaware"))
    page.add_routes(app)
    assert {route.method for route in app.router.routes()} == methods


async def test_results_of_agents_are_in_the_snapshot() -> None:
    results = ConfigMap(metadata=ObjectMeta(name="netperf-metrics", namespace="netaware"), data={"key": "value"})
    snapshot = await make_reader(make_client(UnreachableError("simulated")), results).read(0.0)
    assert snapshot.results == {"netaware/netperf-metrics": {"key": "value"}}


async def test_an_api_server_that_hangs_does_not_hide_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(snapshots, "STATUS_TIMEOUT_S", 0.01)
    snapshot = await make_reader(make_client(hang)).read(0.0)
    assert snapshot.control_plane == ControlPlaneStatus(is_lease_conclusive=False)


async def test_a_kubectl_that_hangs_gives_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl, "READY_TIMEOUT_S", 0.5)
    async with asyncio.timeout(30):
        with pytest.raises(PageError, match=r"kubectl create token: no answer within 0\.5 s"):
            await kubectl.create_page_token([sys.executable, "-c", "import time; time.sleep(600)"], "netaware")


async def test_the_end_of_kubectl_ends_the_port_forward() -> None:
    script = "print('Forwarding from 127.0.0.1:43121 -> 9851')"
    async with port_forward([sys.executable, "-u", "-c", script], "netaware") as forward:
        assert forward.url == "http://127.0.0.1:43121"
        async with asyncio.timeout(30):
            await forward.exit_task
