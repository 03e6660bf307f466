"""Every tab works in a real browser for a healthy, an empty and a broken cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.diagnosis.control_plane import LeaseStatus, ProgramPod
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page.document import build_csp, build_document
from tests.support.browser import Tab, open_tab
from tests.support.page_programs import Chromium
from tests.unit.controller.cluster_facts import HEALTHY, READY, make_control_plane
from tests.unit.controller.healthy_cluster import (
    NOW_S,
    encode_page_data,
    make_cluster_snapshot,
    make_unhealthy_snapshot,
)

TABS = ("now", "matrix", "groups")
WIDTHS = (1440, 1024, 390)
FIND_SERIOUS_PROBLEMS = """
(async () => {
  const result = await axe.run(document, { resultTypes: ["violations"] });
  return result.violations.filter((violation) => ["serious", "critical"].includes(violation.impact))
    .flatMap((violation) => violation.nodes.map((node) => `${violation.id}: ${node.target.join(" ")}`));
})()
"""
CELL = 'document.querySelector(\'[data-from="2"][data-to="1"]\')'
"""The matrix's cell from the zone of index 2 to that of index 1."""


def make_broken_snapshot() -> ClusterSnapshot:
    """The unhealthy cluster without a leader and a ready scheduler."""
    scheduler_pod = ProgramPod("scheduler", "scheduler-0", "n2", "Pending", reason="ImagePullBackOff")
    without_leader = make_control_plane(lease=LeaseStatus("controller-0", NOW_S - 90), pods=(READY[0], scheduler_pod))
    return msgspec.structs.replace(make_unhealthy_snapshot(), control_plane=without_leader)


DATA_BY_CLUSTER: dict[str, dict[str, Any]] = {
    "healthy": encode_page_data(msgspec.structs.replace(make_cluster_snapshot(6), control_plane=HEALTHY)),
    "empty": encode_page_data(ClusterSnapshot(now_s=NOW_S, control_plane=HEALTHY)),
    "broken": encode_page_data(make_broken_snapshot()),
}


@pytest_asyncio.fixture
async def tab(chromium: Chromium) -> AsyncIterator[Tab]:
    async with open_tab(chromium) as tab:
        yield tab


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    """The URL of a server that shows each cluster's page at ``/CLUSTER/``."""

    async def serve_document(_: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": build_csp()}
        return web.Response(body=build_document(), content_type="text/html", charset="utf-8", headers=headers)

    async def serve_data(request: web.Request) -> web.Response:
        body = msgspec.json.encode(DATA_BY_CLUSTER[request.match_info["cluster"]])
        return web.Response(body=body, content_type="application/json", headers={"ETag": '"1"'})

    app = web.Application()
    app.router.add_get("/{cluster}/", serve_document)
    app.router.add_get("/{cluster}/api/v1/overview", serve_data)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def open_page(tab: Tab, url: str, cluster: str = "healthy") -> None:
    await tab.page.goto(f"{url}/{cluster}/")
    await tab.wait_for("state.overview !== null")


async def open_matrix(tab: Tab, url: str) -> None:
    """Open the healthy cluster's matrix, and choose the pair of `CELL`."""
    await tab.page.goto(f"{url}/healthy/#matrix")
    await tab.wait_for("state.overview !== null && !byId('panel-matrix').hidden")
    await tab.evaluate(f"{CELL}.click()")


async def read_text(tab: Tab, selector: str) -> str:
    return str(await tab.evaluate(f"document.querySelector({selector!r}).innerText"))


async def test_a_rendering_error_is_shown(tab: Tab, url: str) -> None:
    await open_page(tab, url)
    await tab.evaluate(
        "var drawn = 0; DRAW_BY_TAB.matrix = () => { drawn++; throw new Error('simulated'); }; shownTab = 'matrix'"
    )
    await tab.wait_for("drawn > 1")
    assert "cannot be drawn: simulated" in await read_text(tab, "#live")
    assert await tab.evaluate("etag") == "", "the data are read again"


async def test_small_shares_are_not_shown_as_zero_and_a_large_matrix_has_a_range(tab: Tab, url: str) -> None:
    await open_page(tab, url)
    assert await tab.evaluate("[0, 0.004, 9.96].map(formatNumber)") == ["0", "< 0.01", "10"]
    assert await tab.evaluate("rangeOf(Array.from({ length: 300000 }, (_, i) => i))") == [0, 299999]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", sorted(DATA_BY_CLUSTER))
async def test_axe_finds_no_serious_problem_and_no_view_is_wider_than_its_window(
    tab: Tab, url: str, axe: str, cluster: str
) -> None:
    await open_page(tab, url, cluster)
    await tab.evaluate(f"{axe}; true")
    for width, scheme, view in product(WIDTHS, ("light", "dark"), TABS):
        await tab.resize(width, 900)
        await tab.set_color_scheme(scheme)
        await tab.evaluate(f"showTab({view!r})")
        assert await tab.evaluate(FIND_SERIOUS_PROBLEMS) == [], (view, width, scheme)
        excess_width = await tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert excess_width <= 0, (view, width, scheme)
    assert not tab.problems
    await tab.evaluate("byId('main').append(h('button', { type: 'button' }))")
    assert await tab.evaluate(FIND_SERIOUS_PROBLEMS) != [], "axe finds a button without a name"


async def test_the_matrix_shows_the_cost_of_the_chosen_pair_and_then_the_chosen_measure(tab: Tab, url: str) -> None:
    await open_matrix(tab, url)
    names = await tab.evaluate("[state.names[2], state.names[1]]")
    headers = f"[{CELL}.parentElement.cells[0].innerText, {CELL}.closest('table').rows[0].cells[2].innerText]"
    assert await tab.evaluate(headers) == names
    selected = "[byId('pair-from'), byId('pair-to')].map((select) => select.selectedOptions[0].text)"
    assert await tab.evaluate(selected) == names
    cost = await tab.evaluate("state.overview.matrix.cost[findCellIndex(2, 1)]")
    assert await tab.evaluate(f"{CELL}.innerText") == str(cost)
    assert f"Cost\n{cost}" in await read_text(tab, "#pair-facts")

    await tab.evaluate("byId('measure').value = 'p50'; byId('measure').dispatchEvent(new Event('change'))")
    p50_ms = await tab.evaluate("formatNumber(state.overview.matrix.p50Us[findCellIndex(2, 1)] / 1000)")
    assert await tab.evaluate(f"{CELL}.innerText") == p50_ms
    assert await tab.evaluate("[999.4e6, 999.6e6].map(formatRate)") == ["999 Mbit/s", "1 Gbit/s"]
    assert not tab.problems


@pytest.mark.parametrize(
    ("measure", "basis", "quality_flags", "sign"),
    [
        ("p50", "inferred", "", ""),
        ("p50", "unreachable", "loss", "!"),
        ("p50", "stale", "", "~"),
        ("cost", "inferred", "loss", "*"),
        ("cost", "measured", "loss", "!"),
    ],
)
async def test_a_sign_in_the_matrix_shows_the_basis_and_flags_of_a_value(
    tab: Tab, url: str, measure: str, basis: str, quality_flags: str, sign: str
) -> None:
    await open_matrix(tab, url)
    await tab.evaluate(f"state.overview.matrix.basis[findCellIndex(2, 1)] = {basis!r}")
    await tab.evaluate(f"state.overview.matrix.qualityFlags[findCellIndex(2, 1)] = {quality_flags!r}")
    await tab.evaluate(f"state.measure = {measure!r}; drawMatrix()")
    assert (await tab.evaluate(f"{CELL}.innerText")).lstrip("0123456789.") == sign
    assert not tab.problems


async def test_findings_and_their_commands_appear_without_a_reload(
    tab: Tab, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await open_page(tab, url)
    assert "Nothing is wrong" in await read_text(tab, "#panel-now")

    await tab.evaluate("window.wasNotReloaded = true")
    newer_data = DATA_BY_CLUSTER["broken"] | {"readAt": DATA_BY_CLUSTER["healthy"]["readAt"] + 60}
    monkeypatch.setitem(DATA_BY_CLUSTER, "healthy", newer_data)
    await tab.wait_for("byId('panel-now').textContent.includes('no controller leads')")

    assert await tab.evaluate("window.wasNotReloaded === true")
    findings = await read_text(tab, "#panel-now")
    for part in ("rollout restart deployment/netaware-controller", "ImagePullBackOff", "NetawareNoLeader"):
        assert part in findings
    assert not tab.problems


async def test_other_views_lead_to_the_findings_whose_age_grows_without_new_data(tab: Tab, url: str) -> None:
    await open_page(tab, url, "broken")
    await tab.evaluate("showTab('matrix')")
    assert "and" in await read_text(tab, "#problems"), "of several findings"

    await tab.evaluate("document.querySelector('#problems button').click()")
    assert not await tab.evaluate("byId('panel-now').hidden")
    assert "for 90 s" in await read_text(tab, "#panel-now"), "since the lease"

    await tab.evaluate("clockOffsetS += 3600; drawAges()")
    assert "for 61 min" in await read_text(tab, "#panel-now")
    assert not tab.problems
