"""Configures all tests: markers by folder, programs built first, and no blocking calls in unit tests."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# Imported early: CPython before 3.11.9 may fail to compile them deep in the stack ("recursion depth mismatch").
import hypothesis.internal.conjecture.optimiser
import hypothesis.internal.conjecture.shrinker  # noqa: F401
import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

from lab.build import find_or_build_binaries
from lab.errors import BuildError, UnsupportedError
from lab.netperf_install import Netperf, find_or_fetch_netperf
from lab.pod_installation import find_or_build_images
from lab.realnode.programs import find_or_build_node_binaries
from tests.support.chains import ChainScheduling, is_chained
from tests.support.page_programs import Chromium, find_or_fetch_axe, find_or_fetch_chromium
from tests.support.parsing import paused_garbage_collection
from tests.support.tools.builds import HELM, OLDEST_CONTROL_PLANE, PROMETHEUS, find_or_build_tool, find_or_build_tools
from tests.support.unsupported import skip_if_unsupported

TESTS = Path(__file__).parent
MARKED_FOLDERS = ("unit", "integration", "e2e")
MARKER_BY_FIXTURE = {
    "node_binaries": "real_nodes",
    "images": "real_nodes",
    "prometheus_programs": "prometheus",
    "helm_program": "helm",
    "chromium": "browser",
    "axe": "browser",
}
"""Marker of tests with this fixture, unless they have the marker of another group."""
BUILD_BY_FIXTURE: Mapping[str, Callable[[], object]] = {
    "node_binaries": find_or_build_node_binaries,
    "images": find_or_build_images,
    "prometheus_programs": lambda: find_or_build_tools(PROMETHEUS),
    "oldest": lambda: find_or_build_binaries(OLDEST_CONTROL_PLANE),
    "helm_program": lambda: find_or_build_tools(HELM),
    "chromium": find_or_fetch_chromium,
    "axe": find_or_fetch_axe,
}
"""Function that builds or fetches the programs of a fixture."""
OUR_PACKAGES = ["kubekit", "netperf", "agent", "controller", "lab"]

# Other work of the machine delays tests, so Hypothesis must not check times.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--phase",
        choices=("all", "together", "alone"),
        default="all",
        help="only tests that can run side by side, or only those marked alone (default: all); see .ci/test",
    )
    parser.addoption("--all", action="store_true", help="also the groups of tests that are left out otherwise")


def list_opt_in_markers(config: pytest.Config) -> list[str]:
    """Markers in pyproject.toml of tests that only `make test-all` runs."""
    return [line.partition(":")[0] for line in config.getini("markers") if "make test-all" in line]


def pytest_configure(config: pytest.Config) -> None:
    # asyncio.get_event_loop() would create a loop that nothing closes.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    config.add_cleanup(loop.close)
    if not config.option.markexpr and not config.getoption("all"):
        config.option.markexpr = f"not ({' or '.join(list_opt_in_markers(config))})"


def pytest_report_header(config: pytest.Config) -> str:
    return f"selected: {config.option.markexpr or 'every test'}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore unit tests in the phase of tests that run alone, because none of them does."""
    return True if config.getoption("phase") == "alone" and collection_path == TESTS / "unit" else None


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    markers = list_opt_in_markers(config)
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
        if not any(item.get_closest_marker(name) for name in markers):
            for name in MARKER_BY_FIXTURE.keys() & getattr(item, "fixturenames", ()):
                item.add_marker(MARKER_BY_FIXTURE[name])
    phase = config.getoption("phase")
    if phase != "all":
        deselected = [item for item in items if (item.get_closest_marker("alone") is not None) != (phase == "alone")]
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in set(deselected)]
    items.sort(key=lambda item: not is_chained(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ChainScheduling:
    return ChainScheduling(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Pause garbage collections while pytest parses source for a failure's text; see `paused_garbage_collection`."""
    with paused_garbage_collection():
        return (yield)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build and fetch programs before the first test, because this may take longer than a test's timeout."""
    if all(item.get_closest_marker("unit") for item in session.items) or session.config.option.collectonly:
        return
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    needed = [name for name in BUILD_BY_FIXTURE if name in fixtures]
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        if needed and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
            print(f"these tests build or fetch, besides the control plane: {', '.join(needed)}", file=sys.stderr)
        try:
            find_or_build_binaries()
            for name in needed:
                # The fixture skips its tests then.
                with suppress(UnsupportedError):
                    BUILD_BY_FIXTURE[name]()
        except BuildError as error:
            pytest.exit(f"no programs to test with: {error}", returncode=1)


@pytest.fixture(scope="session")
def prometheus_programs() -> Mapping[str, Path]:
    """The files of ``prometheus`` and ``promtool``."""
    return find_or_build_tools(PROMETHEUS)


@pytest.fixture(scope="session")
def helm_program() -> Path:
    return find_or_build_tool(HELM)


@pytest.fixture(scope="session")
def chromium() -> Chromium:
    """Chromium from PATH, or from the distribution's package in the user's cache."""
    return skip_if_unsupported(find_or_fetch_chromium)


@pytest.fixture(scope="session")
def axe() -> str:
    return skip_if_unsupported(find_or_fetch_axe).read_text()


@pytest.fixture(scope="session")
def netperf_programs() -> Netperf:
    """netperf and netserver from PATH, or from the distribution's package in the user's cache."""
    return skip_if_unsupported(find_or_fetch_netperf)


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """Undo `kubekit.logs.configure`, which commands and programs call, because other tests read logs."""
    loggers = [logging.getLogger(name) for name in (None, "asyncio", "aiohttp.access")]
    levels, handlers = [logger.level for logger in loggers], list(loggers[0].handlers)
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """In unit tests, our code fails if it sleeps or uses sockets synchronously in the event loop; it may read files."""
    if request.node.get_closest_marker("unit") is None:
        yield
        return
    buster = BlockBuster(scanned_modules=OUR_PACKAGES)
    for name in set(buster.functions):
        if not name.startswith(("time.", "socket.", "ssl.")):
            del buster.functions[name]
    buster.activate()
    yield
    buster.deactivate()
