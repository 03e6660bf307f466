"""The page in a real Chromium, at 4 and at 100 zones (9,900 cells): when something is seen, and what a frame costs.

The cluster is made up; planned, sampled and priced by the real rules. What the browser gets is real: the document with its
policy, and the data as `controller.page.model` encodes them, then with one second's samples more in each. Beside it stands an
empty page in the same browser.

A frame's cost is the processor time of the page's main thread (Chromium's own ``TaskDuration`` in thread ticks, so script, style,
layout and paint) over the number of frames, with one action in each. A frame may take 16 ms, or the page stutters; whoever opens a view
may wait 100 ms and still calls it at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page.document import document, security_policy
from controller.page.model import encode
from controller.views.overview import build
from lab.debian import Missing
from netperf.results import encode_samples
from netperf.sample import Sample
from tests.support.browser import Tab, open_tab
from tests.support.chromium import Chromium, find_or_fetch
from tests.unit.controller.made_up import HOME, NOW_S, make_snapshot

Figures = dict[str, dict[str, object]]

FEW, MANY = 4, 100
RESULTS = f"{HOME}/netperf-metrics"
PAINTS, FRAMES, NEWS, OPENINGS, REPEATS = 5, 60, 10, 8, 3
PAIRS_PER_SECOND = 50
"""Of 100 zones at most 50 measure at a time, and a run takes a second or longer."""
PAINT_BUDGET_MS, FRAME_BUDGET_MS, OPEN_BUDGET_MS, COMPUTE_BUDGET_MS = 1000.0, 16.0, 100.0, 500.0

FASTER_THAN_PEOPLE = "--disable-ipc-flooding-protection"
"""The browser holds back an address that changes more than some hundred times in half a minute."""

WATCH = """
window.seenAt = null;
requestAnimationFrame(function look() {
  if (typeof state !== "undefined" && state.page && !painting && !dirty.has(shownTab)) window.seenAt = performance.now();
  else requestAnimationFrame(look);
});
"""
EACH_FRAME = """(async (count, act) => {
  for (let i = 0; i < count; i++) {
    await new Promise(requestAnimationFrame);
    act(i);
  }
  await new Promise(requestAnimationFrame);
})"""
CURSOR = "byId('matrix-cursor')"
KEY = f"(i) => {CURSOR}.dispatchEvent(new KeyboardEvent('keydown', {{key: i % 40 < 20 ? 'ArrowRight' : 'ArrowDown'}}))"
POINTER = f"""(i) => {CURSOR}.dispatchEvent(new MouseEvent('mousemove', {{
  clientX: {CURSOR}.getBoundingClientRect().left + matrix.left + (i * 7) % matrix.size,
  clientY: {CURSOR}.getBoundingClientRect().top + matrix.top + (i * 3) % matrix.size}}))"""
MEASURE = "(i) => byId('measures').children[i % 2].click()"
ZONE = "(i) => chooseZone(i % state.names.length)"
MOVE = """(i) => {
  const from = i % (state.names.length - 1), trips = state.page.matrix.p50;
  for (const k of [cellIndex(from, from + 1), cellIndex(from + 1, from)]) trips[k] = (trips[k] ?? 1000) * 1.5;
  drawMap();
}"""
NEWS_ON = "(i) => accept(JSON.parse(window.news[i]))"


def measure() -> Figures:
    """All figures of the page; none where there is no Chromium."""
    chromium = find_or_fetch()
    if isinstance(chromium, Missing):
        print(f"no figures of the page: {chromium.reason}", file=sys.stderr)
        return {}
    return asyncio.run(_measure(chromium))


async def _measure(chromium: Chromium) -> Figures:
    computing_s, pages = {}, {}
    for zones in (FEW, MANY):
        computing_s[zones], pages[zones] = _compute(zones)
    async with (
        _serving({zones: told[0] for zones, told in pages.items()}) as url,
        open_tab(chromium, FASTER_THAN_PEOPLE) as tab,
    ):
        await tab.call("Performance.enable", timeDomain="threadTicks")
        empty = await _empty(tab, url)
        small, large = [await _page(tab, f"{url}/{zones}/#matrix", pages[zones]) for zones in (FEW, MANY)]
        if tab.problems:
            raise AssertionError(tab.problems)
    beside = f"{computing_s[FEW] * 1000:.1f} ms at {FEW} zones; in a thread, at most once a second"
    figures = {f"page_compute_{MANY}_zones": _figure(computing_s[MANY] * 1000, COMPUTE_BUDGET_MS, beside)}
    for name, budget in BUDGETS.items():
        beside = f"{small[name]:.1f} ms at {FEW} zones ({large[name] / small[name]:.1f} times)"
        beside += f", {empty[name]:.1f} ms of an empty page" if name in empty else ""
        figures[f"page_{name}_{MANY}_zones"] = _figure(large[name], budget, beside)
    return figures


BUDGETS = {
    "first_paint": PAINT_BUDGET_MS,
    "data_seen": PAINT_BUDGET_MS,
    "frame_cursor": FRAME_BUDGET_MS,
    "frame_pointer": FRAME_BUDGET_MS,
    "frame_news_on_matrix": FRAME_BUDGET_MS,
    "frame_news_on_map": FRAME_BUDGET_MS,
    "frame_zone_chosen": FRAME_BUDGET_MS,
    "frame_map_moves": FRAME_BUDGET_MS,
    "frame_other_measure": FRAME_BUDGET_MS,
    "open_map": OPEN_BUDGET_MS,
}


def _figure(value_ms: float, budget_ms: float, reference: str) -> dict[str, object]:
    return {
        "value": round(value_ms, 2),
        "unit": "ms",
        "budget": budget_ms,
        "ok": value_ms <= budget_ms,
        "reference": reference,
    }


def _compute(zones: int) -> tuple[float, list[str]]:
    """Seconds to compute a page, and successive pages as JSON: the first, then with one second's samples more in each."""
    snapshot = make_snapshot(zones)
    spent, pages = [], []
    for number in range(1, 2 * NEWS * REPEATS + 2):
        started = time.perf_counter()
        pages.append(msgspec.json.encode({"at": snapshot.now_s, **encode(build(snapshot))}).decode())
        spent.append(time.perf_counter() - started)
        snapshot = _a_second_later(snapshot, number)
    return min(spent), pages


def _a_second_later(snapshot: ClusterSnapshot, seed: int) -> ClusterSnapshot:
    chance = random.Random(seed)
    data = dict(snapshot.results[RESULTS])
    for key in chance.sample(sorted(data), min(PAIRS_PER_SECOND, len(data) // 2)):
        sample = msgspec.json.decode(data[key], type=Sample)
        factor = chance.uniform(0.95, 1.05)
        read = sample.measurement
        grown = {
            name: value * factor
            for name in ("p50_us", "p90_us", "p99_us")
            if (value := getattr(read, name)) is not None
        }
        newer = msgspec.structs.replace(
            sample,
            measurement=msgspec.structs.replace(read, **grown),
            sequence=sample.sequence + seed,
            taken_at=NOW_S + seed,
        )
        data |= {name: text for name, text in encode_samples([newer]).items() if text is not None}
    return msgspec.structs.replace(snapshot, results={RESULTS: data}, now_s=NOW_S + seed)


@asynccontextmanager
async def _serving(pages: dict[int, str]) -> AsyncIterator[str]:
    """``/ZONES/`` as the controller would serve it, ``/empty/`` beside it."""

    async def show(_: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": security_policy(), "Cache-Control": "no-store"}
        return web.Response(body=document(), content_type="text/html", charset="utf-8", headers=headers)

    async def show_nothing(_: web.Request) -> web.Response:
        return web.Response(
            text="<!doctype html><link rel=icon href=data:,><title>empty</title><p>empty", content_type="text/html"
        )

    async def overview(request: web.Request) -> web.Response:
        answer = web.Response(text=pages[int(request.match_info["zones"])], content_type="application/json")
        answer.enable_compression(web.ContentCoding.gzip)
        return answer

    app = web.Application()
    app.router.add_get("/empty/", show_nothing)
    app.router.add_get(r"/{zones:\d+}/", show)
    app.router.add_get(r"/{zones:\d+}/api/v1/overview", overview)
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _empty(tab: Tab, url: str) -> dict[str, float]:
    paints = [await _painted(tab, f"{url}/empty/") for _ in range(PAINTS)]
    idle = await _frames(tab, FRAMES, "() => {}")
    return {"first_paint": statistics.median(paints), "frame_cursor": idle}


async def _painted(tab: Tab, url: str) -> float:
    """Milliseconds from navigation to the first content on the screen."""
    await tab.open("about:blank")
    await tab.open(url)
    await tab.wait_for("performance.getEntriesByName('first-contentful-paint').length > 0")
    return float(await tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))


async def _page(tab: Tab, url: str, pages: list[str]) -> dict[str, float]:
    """Every figure of one page, in milliseconds; its address opens the matrix, which draws most."""
    watching = await tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    paints, seen = [], []
    for _ in range(PAINTS):
        paints.append(await _painted(tab, url))
        await tab.wait_for("window.seenAt !== null")
        seen.append(float(await tab.evaluate("window.seenAt")))
    await tab.call("Page.removeScriptToEvaluateOnNewDocument", identifier=watching["identifier"])
    found = {"first_paint": statistics.median(paints), "data_seen": statistics.median(seen)}
    news = pages[1:]
    await tab.evaluate(f"{CURSOR}.focus()")
    found["frame_cursor"] = await _frames(tab, FRAMES, KEY)
    found["frame_pointer"] = await _frames(tab, FRAMES, POINTER)
    found["frame_other_measure"] = await _frames(tab, FRAMES, MEASURE)
    found["frame_news_on_matrix"] = await _news(tab, news[: NEWS * REPEATS])
    found["open_map"] = await _opening(tab)
    found["frame_zone_chosen"] = await _frames(tab, FRAMES, ZONE)
    await tab.evaluate("chooseZone(-1)")
    found["frame_map_moves"] = await _frames(tab, FRAMES, MOVE)
    found["frame_news_on_map"] = await _news(tab, news[NEWS * REPEATS :])
    return found


async def _news(tab: Tab, news: list[str]) -> float:
    spent = []
    for start in range(0, len(news), NEWS):
        told = news[start : start + NEWS]
        await tab.evaluate(f"window.news = {json.dumps(told)}; 0")
        spent.append(await _frames(tab, len(told), NEWS_ON, times=1))
    assert await tab.evaluate("state.page.at") == msgspec.json.decode(news[-1])["at"], "the news were not taken"
    return min(spent)


async def _opening(tab: Tab) -> float:
    """Opening the map and the matrix in turn, half of which are the map's."""
    each = await _frames(tab, 2 * OPENINGS, "(i) => showTab(i % 2 ? 'matrix' : 'map')")
    await tab.evaluate("showTab('map')")
    return 2 * each


async def _frames(tab: Tab, count: int, act: str, times: int = REPEATS) -> float:
    """Main thread's milliseconds per frame with one action in each; the least of some repetitions, since whatever else the
    machine does only adds."""
    spent = []
    for _ in range(times):
        before = await _busy_s(tab)
        await tab.evaluate(f"{EACH_FRAME}({count}, {act})")
        spent.append((await _busy_s(tab) - before) * 1000 / count)
    return min(spent)


async def _busy_s(tab: Tab) -> float:
    found = await tab.call("Performance.getMetrics")
    return next(float(metric["value"]) for metric in found["metrics"] if metric["name"] == "TaskDuration")
