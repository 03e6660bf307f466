"""Settings of all tests: a mark for their folder, no blocking calls in unit tests, programs built before the first test."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# hypothesis imports these in the middle of a run. pytest then compiles them deep in the stack, where CPython 3.11 before
# 3.11.9 may fail with "AST constructor recursion depth mismatch"; imported here, they are compiled at the top.
import hypothesis.internal.conjecture.optimiser
import hypothesis.internal.conjecture.shrinker  # noqa: F401
import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

from lab.build import find_or_build_programs
from lab.errors import BuildError, UnsupportedError
from lab.netperf_install import Netperf, find_or_fetch_netperf
from lab.realnode.programs import find_or_build_node_binaries
from lab.shipped import find_or_build_images
from tests.support.axe import find_or_fetch_axe
from tests.support.chains import ByChain, is_chained
from tests.support.chromium import Chromium
from tests.support.chromium import find_or_fetch as find_or_fetch_chromium
from tests.support.syntax import nothing_collected
from tests.support.tools.builds import HELM, OLDEST_CONTROL_PLANE, PROMETHEUS, find_or_build_tool, find_or_build_tools
from tests.support.unsupported import skip_if_unsupported

TESTS = Path(__file__).parent
MANIFESTS = TESTS.parent / "manifests"
KINDS = ("unit", "integration", "e2e")
GROUP_OF_FIXTURE = {
    "node_binaries": "real_nodes",
    "images": "real_nodes",
    "prometheus_programs": "prometheus",
    "helm_program": "helm",
    "chromium": "browser",
    "axe": "browser",
}
"""Group of tests by a fixture that builds or fetches programs, unless they are of another group already."""
OUR_PACKAGES = ["kubekit", "netperf", "agent", "controller", "lab"]
# Hypothesis watches the clock, which tells more about what else the machine does than about the code under test.
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


def groups_of(config: pytest.Config) -> list[str]:
    """Markers of tests that only `make test-all` runs; pyproject.toml says what they are."""
    return [line.partition(":")[0] for line in config.getini("markers") if "make test-all" in line]


def pytest_configure(config: pytest.Config) -> None:
    # asyncio makes a loop for the first that asks for one outside of all, and nobody closes it.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    config.add_cleanup(loop.close)
    if not config.option.markexpr and not config.getoption("all"):
        config.option.markexpr = f"not ({' or '.join(groups_of(config))})"


def pytest_report_header(config: pytest.Config) -> str:
    return f"selected: {config.option.markexpr or 'every test'}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Unit tests measure nothing: the phase of those that do need not import them."""
    return True if config.getoption("phase") == "alone" and collection_path == TESTS / "unit" else None


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    groups = groups_of(config)
    for item in items:
        kind = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if kind in KINDS:
            item.add_marker(kind)
        if not any(item.get_closest_marker(name) for name in groups):
            for name in GROUP_OF_FIXTURE.keys() & getattr(item, "fixturenames", ()):
                item.add_marker(GROUP_OF_FIXTURE[name])
    phase = config.getoption("phase")
    if phase != "all":
        left_out = [item for item in items if (item.get_closest_marker("alone") is not None) != (phase == "alone")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    items.sort(key=lambda item: not is_chained(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByChain:
    return ByChain(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """No garbage collection while a failure is put into words: pytest parses source for it, and would else end the whole run."""
    with nothing_collected():
        return (yield)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build and fetch programs before the first test, where no test's timeout runs and progress can be seen."""
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if all(item.get_closest_marker("unit") for item in session.items) or session.config.option.collectonly:
        return
    wanted = {name: get for name, get in PROGRAMS_OF_FIXTURE.items() if name in fixtures}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        if wanted and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
            print(f"beside the control plane these tests build or fetch: {', '.join(wanted)}", file=sys.stderr)
        try:
            find_or_build_programs()
            for get in wanted.values():
                # The fixture says so, test by test.
                with suppress(UnsupportedError):
                    get()
        except BuildError as error:
            pytest.exit(f"no programs to test with: {error}", returncode=1)


PROGRAMS_OF_FIXTURE: Mapping[str, Callable[[], object]] = {
    "node_binaries": find_or_build_node_binaries,
    "images": find_or_build_images,
    "prometheus_programs": lambda: find_or_build_tools(PROMETHEUS),
    "oldest": lambda: find_or_build_programs(OLDEST_CONTROL_PLANE),
    "helm_program": lambda: find_or_build_tools(HELM),
    "chromium": find_or_fetch_chromium,
    "axe": find_or_fetch_axe,
}
"""How each fixture's programs are built or fetched."""


@pytest.fixture(scope="session")
def prometheus_programs() -> Mapping[str, Path]:
    """The files of ``prometheus`` and ``promtool``."""
    return find_or_build_tools(PROMETHEUS)


@pytest.fixture(scope="session")
def helm_program() -> Path:
    """The file of ``helm``."""
    return find_or_build_tool(HELM)


@pytest.fixture(scope="session")
def chromium() -> Chromium:
    """A real browser: from PATH, or the distribution's package in the user's cache."""
    return skip_if_unsupported(find_or_fetch_chromium)


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core: from the user's cache, or by npm."""
    return skip_if_unsupported(find_or_fetch_axe).read_text()


@pytest.fixture(scope="session")
def netperf_programs() -> Netperf:
    """Real netperf and netserver: from PATH, or the distribution's package in the user's cache."""
    return skip_if_unsupported(find_or_fetch_netperf)


@pytest.fixture(autouse=True)
def no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """In unit tests our own code may neither sleep nor use sockets synchronously inside the event loop.

    Reading a small file is let pass: tokens and configuration are files.
    """
    if request.node.get_closest_marker("unit") is None:
        yield
        return
    buster = BlockBuster(scanned_modules=OUR_PACKAGES)
    for name in [name for name in buster.functions if not name.startswith(("time.", "socket.", "ssl."))]:
        del buster.functions[name]
    buster.activate()
    yield
    buster.deactivate()
