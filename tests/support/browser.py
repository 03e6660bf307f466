"""Drives Chromium with Playwright, for tests of the page and for the pictures in the documents."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from playwright.async_api import CDPSession, Page, async_playwright

from lab.polling import poll_until
from tests.support.page_programs import Chromium


class Tab:
    """A page of Playwright; ``problems`` are texts of console errors, console warnings and uncaught exceptions."""

    def __init__(self, page: Page, session: CDPSession) -> None:
        self.page, self._session = page, session
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda line: self.problems.append(line.text) if line.type in {"error", "warning"} else None)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result."""
        result: dict[str, Any] = await self._session.send(method, params)
        return result

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression, awaited if it is a promise. Playwright's own evaluation uses eval, which the page forbids."""
        response = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in response, f"{expression!r} threw: {response['exceptionDetails']}"
        return response["result"].get("value")

    async def wait_for(self, condition: str, timeout_s: float = 20.0) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        return await poll_until(partial(self.evaluate, condition), condition, timeout_s, every_s=0.05)

    async def resize(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Set the viewport's size in CSS pixels; ``scale`` is the number of device pixels per CSS pixel."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)

    async def set_color_scheme(self, scheme: str) -> None:
        """Set the preferred color scheme to ``light`` or ``dark``."""
        await self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")


@asynccontextmanager
async def open_tab(chromium: Chromium, *flags: str, width: int = 1280, height: int = 900) -> AsyncIterator[Tab]:
    """A new browser with an empty tab, during the block; ``flags`` are arguments of Chromium."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium.path,
            # Chromium's sandbox does not work for root.
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
