"""Every tab works in a real browser for a healthy, an empty and a broken cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.diagnosis.control_plane import LeaseStatus, ProgramPod
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page.document import build_csp, build_document
from controller.page.encoding import encode_overview
from controller.views.overview import Overview, build_overview
from tests.support.browser import Tab, open_tab
from tests.support.chromium import Chromium
from tests.unit.controller.cluster_facts import HEALTHY, READY, make_control_plane
from tests.unit.controller.healthy_cluster import NOW_S, make_cluster_snapshot

TABS = ("now", "matrix", "groups")
WIDTHS = (1440, 1024, 390)


def make_broken_snapshot() -> ClusterSnapshot:
    """A cluster without a leader and a ready scheduler, and with a zone without an agent."""
    healthy = make_cluster_snapshot(6)
    without_agent = [
        msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations={}))
        for node in healthy.nodes[:2]
    ]
    scheduler_pod = ProgramPod("scheduler", "scheduler-0", "n2", "Pending", reason="ImagePullBackOff")
    without_leader = make_control_plane(lease=LeaseStatus("controller-0", NOW_S - 90), pods=(READY[0], scheduler_pod))
    return msgspec.structs.replace(healthy, nodes=(*without_agent, *healthy.nodes[2:]), control_plane=without_leader)


def page_data(overview: Overview) -> dict[str, Any]:
    """The page's data as the browser decodes it."""
    text = msgspec.json.encode({"readAt": overview.read_at, **encode_overview(overview)})
    data: dict[str, Any] = msgspec.json.decode(text)
    return data


PAGES: dict[str, dict[str, Any]] = {
    "data": page_data(build_overview(msgspec.structs.replace(make_cluster_snapshot(6), control_plane=HEALTHY))),
    "empty": page_data(build_overview(ClusterSnapshot(now_s=NOW_S, control_plane=HEALTHY))),
    "broken": page_data(build_overview(make_broken_snapshot())),
}


@asynccontextmanager
async def running_pages() -> AsyncIterator[str]:
    """Serve the pages of `PAGES` at ``/NAME/``; yields the URL."""

    async def show(_: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": build_csp()}
        return web.Response(body=build_document(), content_type="text/html", charset="utf-8", headers=headers)

    async def overview(request: web.Request) -> web.Response:
        return web.Response(
            body=msgspec.json.encode(PAGES[request.match_info["name"]]),
            content_type="application/json",
            headers={"ETag": '"1"'},
        )

    app = web.Application()
    app.router.add_get("/{name}/", show)
    app.router.add_get("/{name}/api/v1/overview", overview)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def show(tab: Tab, url: str, name: str) -> None:
    await tab.open(f"{url}/{name}/")
    await tab.wait_for("state.overview !== null")


async def text_of(tab: Tab, selector: str) -> str:
    return str(await tab.evaluate(f"document.querySelector({selector!r}).innerText"))


async def test_a_rendering_error_is_shown(chromium: Chromium) -> None:
    async with running_pages() as url, open_tab(chromium) as tab:
        await show(tab, url, "data")
        await tab.evaluate(
            "var drawn = 0; DRAW_BY_TAB.matrix = () => { drawn++; throw new Error('simulated'); }; shownTab = 'matrix'"
        )
        await tab.wait_for("drawn > 1")
        assert "cannot be drawn: simulated" in await text_of(tab, "#live")
        assert await tab.evaluate("etag") == ""


SERIOUS = """
(async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.filter((each) => ["serious", "critical"].includes(each.impact))
    .flatMap((each) => each.nodes.map((node) => `${each.id}: ${node.target.join(" ")}`));
})()
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(PAGES))
async def test_axe_finds_no_serious_problem_and_no_view_is_wider_than_its_window(
    chromium: Chromium, axe: str, name: str
) -> None:
    async with running_pages() as url, open_tab(chromium) as tab:
        await show(tab, url, name)
        await tab.evaluate(f"{axe}; true")
        for width in WIDTHS:
            await tab.resize(width, 900)
            for scheme in ("light", "dark"):
                await tab.set_color_scheme(scheme)
                for view in TABS:
                    await tab.evaluate(f"showTab({view!r})")
                    assert await tab.evaluate(SERIOUS) == [], (name, view, width, scheme)
                    wide = await tab.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert wide <= 0, (name, view, width, scheme)
        assert not tab.problems
        await tab.evaluate("byId('main').append(h('button', { type: 'button' }))")
        assert await tab.evaluate(SERIOUS) != [], "axe does not see a button without a name"


async def test_the_matrix_shows_the_chosen_measure_and_pair(chromium: Chromium) -> None:
    async with running_pages() as url, open_tab(chromium) as tab:
        await tab.open(f"{url}/data/#matrix")
        await tab.wait_for("state.overview !== null && !byId('panel-matrix').hidden")
        cell = 'document.querySelector(\'[data-from="2"][data-to="1"]\')'
        headers = f"[{cell}.parentElement.cells[0].innerText, {cell}.closest('table').rows[0].cells[2].innerText]"
        await tab.evaluate(f"{cell}.click()")
        chosen = await tab.evaluate("[byId('pair-from'), byId('pair-to')].map((e) => e.selectedOptions[0].text)")
        assert await tab.evaluate(headers) == chosen == await tab.evaluate("[state.names[2], state.names[1]]")
        cost = await tab.evaluate("state.overview.matrix.cost[findCellIndex(2, 1)]")
        assert await tab.evaluate(f"{cell}.innerText") == str(cost)
        assert f"Cost\n{cost}" in await text_of(tab, "#pair-facts")
        await tab.evaluate("byId('measure').value = 'p50'; byId('measure').dispatchEvent(new Event('change'))")
        assert await tab.evaluate(f"{cell}.innerText") == await tab.evaluate(
            "formatNumber(state.overview.matrix.p50Us[findCellIndex(2, 1)] / 1000)"
        )
        for measure, basis, flags, sign in (
            ("p50", "inferred", "", ""),
            ("p50", "unreachable", "loss", "!"),
            ("p50", "stale", "", "~"),
            ("cost", "inferred", "loss", "*"),
            ("cost", "measured", "loss", "!"),
        ):
            change = f"{{ const m = state.overview.matrix, i = findCellIndex(2, 1); m.basis[i] = {basis!r}; m.qualityFlags[i] = {flags!r}; }}"
            await tab.evaluate(f"{change} state.measure = {measure!r}; drawMatrix()")
            assert (await tab.evaluate(f"{cell}.innerText")).lstrip("0123456789.") == sign, (measure, basis, flags)
        assert await tab.evaluate("[999.4e6, 999.6e6].map(formatRate)") == ["999 Mbit/s", "1 Gbit/s"]
        assert not tab.problems


async def test_findings_and_their_commands_appear_without_a_reload(
    chromium: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_pages() as url, open_tab(chromium) as tab:
        await show(tab, url, "data")
        assert "Nothing is wrong" in await text_of(tab, "#panel-now")
        await tab.evaluate("window.neverReloaded = true")
        monkeypatch.setitem(PAGES, "data", PAGES["broken"] | {"readAt": PAGES["data"]["readAt"] + 60})
        await tab.wait_for("byId('panel-now').textContent.includes('no controller leads')")
        assert await tab.evaluate("window.neverReloaded === true")
        text = await text_of(tab, "#panel-now")
        for part in ("rollout restart deployment/netaware-controller", "ImagePullBackOff", "NetawareNoLeader"):
            assert part in text
        assert "for 2 min" in text
        await tab.evaluate("clockOffset += 3600; drawAges()")
        assert "for 62 min" in await text_of(tab, "#panel-now"), "ages grow without new data"
        await tab.evaluate("showTab('matrix')")
        assert "and" in await text_of(tab, "#problems"), "the other views show that something is wrong"
        await tab.evaluate("document.querySelector('#problems button').click()")
        assert not await tab.evaluate("byId('panel-now').hidden")
        assert not tab.problems
