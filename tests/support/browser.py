"""A real Chromium, driven by Playwright: used by the tests of the page and by what makes the pictures for the README."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import CDPSession, Page, async_playwright

from tests.support.chromium import Chromium

_POLL_S = 0.05


class Tab:
    """One page.

    Attributes:
        page: Playwright's.
        problems: console errors and warnings, and uncaught exceptions, as texts.
    """

    def __init__(self, page: Page, session: CDPSession) -> None:
        self.page, self._session = page, session
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda told: self.problems.append(told.text) if told.type in {"error", "warning"} else None)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol and return its result."""
        result: dict[str, Any] = await self._session.send(method, params)
        return result

    async def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        await self.page.goto(url)

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression, awaited where it is a promise. Playwright's own evaluation is eval, which our policy forbids."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, f"{expression!r} threw: {found['exceptionDetails']}"
        return found["result"].get("value")

    async def wait_for(self, condition: str, timeout_s: float = 20.0) -> Any:
        """Wait until a JavaScript expression is true, and return its value. Raises TimeoutError when it does not become true."""
        deadline = time.monotonic() + timeout_s
        while not (found := await self.evaluate(condition)):
            if time.monotonic() > deadline:
                msg = f"{condition} is not true after {timeout_s:g} s"
                raise TimeoutError(msg)
            await asyncio.sleep(_POLL_S)
        return found

    async def resize(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Size of the viewport in CSS pixels; ``scale`` is the device's pixels per CSS pixel."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)

    async def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``, as the system would ask for it."""
        await self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of what is seen, or of the whole page."""
        await self.page.screenshot(path=path, full_page=whole)


@asynccontextmanager
async def open_tab(chromium: Chromium, *flags: str, width: int = 1280, height: int = 900) -> AsyncIterator[Tab]:
    """A fresh browser with one empty tab, for the time of the block; ``flags`` are more of its own."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium.path,
            # Chromium's own sandbox refuses to work for root; what it opens here is our own page.
            chromium_sandbox=False,
            args=["--no-proxy-server", *flags],
            env={**os.environ, **chromium.env},
        )
        try:
            context = await browser.new_context(viewport={"width": width, "height": height})
            page = await context.new_page()
            yield Tab(page, await context.new_cdp_session(page))
        finally:
            await browser.close()
