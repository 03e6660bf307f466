"""What every test gets: a mark for the folder it lives in, no blocking calls in unit tests, the lab's programs built first."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

# hypothesis imports these in the middle of a run. pytest then compiles them deep in the stack, where CPython 3.11 before
# 3.11.9 may fail with "AST constructor recursion depth mismatch"; imported here, they are compiled at the top.
import hypothesis.internal.conjecture.optimiser
import hypothesis.internal.conjecture.shrinker  # noqa: F401
import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

from lab.build import find_or_build
from lab.chromium_install import Chromium
from lab.chromium_install import find_or_fetch as find_or_fetch_chromium
from lab.debian import Missing
from lab.errors import BuildError, UnsupportedError
from lab.realnode.programs import CNI_CHECKSUMS, find_or_build_node_programs
from lab.tool_builds import PROMETHEUS, find_or_build_tools
from tests.support.axe import find_or_fetch_axe
from tests.support.chains import ByChain, is_chained
from tests.support.syntax import nothing_collected

TESTS = Path(__file__).parent
MANIFESTS = TESTS.parent / "manifests"
KINDS = ("unit", "integration", "e2e")
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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Unit tests measure nothing: the phase of those that do need not import them."""
    return True if config.getoption("phase") == "alone" and collection_path == TESTS / "unit" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        kind = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if kind in KINDS:
            item.add_marker(kind)
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
    needs_programs = any(item.get_closest_marker(kind) for item in session.items for kind in ("integration", "e2e"))
    if not needs_programs or session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        try:
            find_or_build()
            if "prometheus_programs" in fixtures:
                find_or_build_tools(PROMETHEUS)
            if "node_programs" in fixtures:
                _build_node_programs()
            if "chromium" in fixtures:
                find_or_fetch_chromium()
            if "axe" in fixtures:
                find_or_fetch_axe()
        except BuildError as error:
            pytest.exit(f"no control plane to test against: {error}", returncode=1)


def _build_node_programs() -> None:
    try:
        find_or_build_node_programs(CNI_CHECKSUMS)
    except UnsupportedError:
        # The fixture says so, test by test.
        return


@pytest.fixture(scope="session")
def prometheus_programs() -> Mapping[str, Path]:
    """The files of ``prometheus`` and ``promtool``."""
    return find_or_build_tools(PROMETHEUS)


@pytest.fixture(scope="session")
def chromium() -> Chromium:
    """A real browser: from PATH, or the distribution's package in the user's cache."""
    found = find_or_fetch_chromium()
    if isinstance(found, Missing):
        pytest.skip(found.reason)
    return found


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core: from the user's cache, or by npm."""
    found = find_or_fetch_axe()
    if isinstance(found, Missing):
        pytest.skip(found.reason)
    return found.read_text()


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
