"""Drives a real Chromium through its DevTools protocol: no driver program and no other toolchain, only a web socket.

Used by the tests of the page and by what makes the pictures for the README. Every wait has a deadline, and the browser dies
with the block that started it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from lab.errors import BootError
from tests.support.chromium import Chromium

START_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 30.0
_POLL_S = 0.05
_KEYS = {
    "ArrowRight": 39,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowDown": 40,
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "Home": 36,
    "End": 35,
}
_SHIFT = 8


class Tab:
    """One page.

    Attributes:
        problems: console errors and warnings, uncaught exceptions, failed requests and blocked content, as texts.
        events: every protocol event by name, as received, for measurements.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._next_id = socket, 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.problems: list[str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result.

        Raises:
            BootError: the browser refused it, or did not answer in time.
        """
        self._next_id += 1
        number = self._next_id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": params}))
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                found = await answer
        except TimeoutError as error:
            msg = f"Chromium did not answer {method} in {CALL_TIMEOUT_S:g} s"
            raise BootError(msg) from error
        if "error" in found:
            msg = f"Chromium refused {method}: {found['error']}"
            raise BootError(msg)
        result: dict[str, Any] = found["result"]
        return result

    async def read(self) -> None:
        """Take in what the browser says, until it is gone."""
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            said = json.loads(message.data)
            if "id" in said:
                waiting = self._answers.pop(said["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(said)
            else:
                self._note(said["method"], said.get("params", {}))

    def _note(self, method: str, params: dict[str, Any]) -> None:
        self.events.append((method, params))
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details.get("text", "exception"))
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
            self.problems.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())

    async def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await self._loaded.wait()

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression, awaited where it is a promise.

        Raises:
            BootError: it threw.
        """
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            msg = f"{expression!r} threw: {found['exceptionDetails'].get('exception', {}).get('description')}"
            raise BootError(msg)
        return found["result"].get("value")

    async def wait_for(self, condition: str, timeout_s: float = 20.0) -> Any:
        """Wait until a JavaScript expression is true, and return its value.

        Raises:
            TimeoutError: it did not become true.
        """
        deadline = time.monotonic() + timeout_s
        found = await self.evaluate(condition)
        while not found:
            if time.monotonic() > deadline:
                msg = f"waited {timeout_s:g} s in vain for {condition}"
                raise TimeoutError(msg)
            await asyncio.sleep(_POLL_S)
            found = await self.evaluate(condition)
        return found

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key: a name such as ``ArrowRight``, or a character."""
        code = _KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": _SHIFT if shift else 0}
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def resize(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Size of the viewport in CSS pixels; ``scale`` is the device's pixels per CSS pixel."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)

    async def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``, as the system would ask for it."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of what is seen, or of the whole page."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(_write, path, base64.b64decode(found["data"]))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@asynccontextmanager
async def open_tab(chromium: Chromium, *flags: str, width: int = 1280, height: int = 900) -> AsyncIterator[Tab]:
    """A fresh browser with one empty tab, for the time of the block; ``flags`` are more of its own.

    Raises:
        BootError: it does not start.
    """
    profile = Path(tempfile.mkdtemp(prefix="netaware-chromium-"))
    log = profile / "log"
    try:
        process = _launch(chromium, profile, log, flags)
        try:
            address = await _address_of(profile, process, log)
            async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
                tab = Tab(socket)
                reading = asyncio.create_task(tab.read())
                try:
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await tab.call(f"{domain}.enable")
                    await tab.resize(width, height)
                    yield tab
                finally:
                    reading.cancel()
                    with suppress(asyncio.CancelledError):
                        await reading
        finally:
            _end(process)
    finally:
        shutil.rmtree(profile, ignore_errors=True)


def _launch(chromium: Chromium, profile: Path, log: Path, flags: Iterable[str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(chromium.path), *_arguments(profile), *flags],
            env={**os.environ, **chromium.env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _arguments(profile: Path) -> list[str]:
    return [
        "--headless=new",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        # Chromium's own sandbox refuses to work for root; what it opens here is our own page.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-extensions",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--no-proxy-server",
        "--hide-scrollbars",
        "--mute-audio",
        "about:blank",
    ]


async def _address_of(profile: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    """The web socket of the first tab; Chromium writes its port to a file when it is ready."""
    deadline = time.monotonic() + START_TIMEOUT_S
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session:
        while process.poll() is None and time.monotonic() < deadline:
            port = _text_of(profile / "DevToolsActivePort").partition("\n")[0]
            if port:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [page for page in await answer.json() if page["type"] == "page"]
                if pages:
                    return str(pages[0]["webSocketDebuggerUrl"])
            await asyncio.sleep(_POLL_S)
    msg = f"Chromium did not start: {_text_of(log)[-800:].strip()}"
    raise BootError(msg)


def _text_of(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """The browser is a family of processes in a session of their own."""
    for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
