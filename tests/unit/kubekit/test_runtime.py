"""A program ends with an exit code, keeps its event loop responsive and its memory small."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import sys
import time
import weakref
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from kubekit import runtime
from kubekit.errors import ConfigError, UnreachableError
from kubekit.health import EventLoopMonitor
from kubekit.runtime import compact_memory, run_memory_compaction, run_program, supervise
from kubekit.waiting import CooperativeYield
from lab.polling import poll_until
from tests.support.tasks import running_tasks


class ReferenceCycle:
    """Freed only by the cyclic collector."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[None]:
    """Python's garbage collector with its default settings."""
    threshold, enabled = gc.get_threshold(), gc.isenabled()
    gc.enable()
    gc.set_threshold(700, 10, 10)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
        if not enabled:
            gc.disable()


async def wait_forever() -> None:
    await asyncio.Event().wait()


async def fail(error: BaseException) -> None:
    raise error


def count_full_collections(object_count: int) -> int:
    """Number of full collections while this many objects are created and kept."""
    before: int = gc.get_stats()[2]["collections"]
    objects_kept_alive = [[number] for number in range(object_count)]
    assert len(objects_kept_alive) == object_count
    after: int = gc.get_stats()[2]["collections"]
    return after - before


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_program_with_code_0(stop_signal: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), stop_signal)
        await supervise({"work": wait_forever()})

    assert run_program(main) == 0
    assert not [record for record in caplog.records if record.exc_info]


def test_a_configuration_error_gives_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    error = ConfigError("--reserve", "is 110%", "write 0% to 100%")
    assert run_program(lambda: supervise({"a": wait_forever(), "b": fail(error)})) == 2
    assert capsys.readouterr().err == "error: --reserve: is 110% (write 0% to 100%)\n"


def test_a_failure_is_logged_and_gives_exit_code_1(caplog: pytest.LogCaptureFixture) -> None:
    assert run_program(lambda: fail(UnreachableError("gone"))) == 1
    assert run_program(lambda: fail(ZeroDivisionError("defect"))) == 1
    assert run_program(lambda: supervise({"a": wait_forever(), "b": asyncio.sleep(0)})) == 1
    assert run_program(lambda: fail(asyncio.CancelledError())) == 1
    assert [record.message for record in caplog.records] == ["program failed"] * 4


# A call that yields reads the clock again, so with 3 ms a reading every second of 100 calls yields.
@pytest.mark.parametrize(("reading_takes_s", "yield_count"), [(0.003, 50), (0.0, 0)])
async def test_only_long_work_yields_after_each_time_slice(reading_takes_s: float, yield_count: int) -> None:
    iterations = 0

    async def count_iterations() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    seconds = itertools.count(0, reading_takes_s)
    maybe_yield = CooperativeYield(clock=lambda: next(seconds))
    async with running_tasks(count_iterations()):
        for _ in range(100):
            await maybe_yield()
        assert iterations == yield_count


async def test_a_callback_that_blocks_the_event_loop_is_measured() -> None:
    registry = CollectorRegistry()
    async with running_tasks(EventLoopMonitor(registry).run()):
        await asyncio.sleep(0)
        blocked_until_s = time.thread_time() + 0.2
        while time.thread_time() < blocked_until_s:
            pass
        count = await poll_until(lambda: registry.get_sample_value("netaware_loop_busy_seconds_count"))
    count_up_to_100_ms = registry.get_sample_value("netaware_loop_busy_seconds_bucket", {"le": "0.1"})
    assert count_up_to_100_ms != count


@pytest.mark.usefixtures("collector")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the collector is incremental")
def test_no_full_collection_after_compact_memory() -> None:
    assert count_full_collections(300_000) > 0
    compact_memory()
    assert count_full_collections(300_000) == 0


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("is_frozen", [True, False])
def test_only_compaction_of_everything_frees_cycles_that_an_earlier_call_froze(*, is_frozen: bool) -> None:
    gc.disable()
    cycle = ReferenceCycle()
    reference = weakref.ref(cycle)
    if is_frozen:
        compact_memory()
        assert gc.get_freeze_count() > 0, "later collections exclude these objects"
    del cycle
    compact_memory(everything=False)
    assert (reference() is not None) is is_frozen
    compact_memory()
    assert reference() is None


async def test_memory_is_compacted_again_after_it_grew_by_ten_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    resident_pages, garbage_pages, compacted_at_pages = [0], [0], list[int]()

    def compact() -> None:
        compacted_at_pages.append(resident_pages[0])
        resident_pages[0] -= garbage_pages[0]

    monkeypatch.setattr(runtime, "MEMORY_CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(runtime, "_resident_pages", lambda: resident_pages[0])
    monkeypatch.setattr(runtime, "compact_memory", compact)
    async with running_tasks(run_memory_compaction()):
        # The threshold is relative to the memory after the last compaction, not before it: 1100, 1210, and again 1210.
        steps = ((1000, 0), (1100, 0), (1101, 1), (1200, 0), (1211, 111), (1211, 100))
        for resident_pages[0], garbage_pages[0] in steps:
            for _ in range(5):
                await asyncio.sleep(0)  # lets the task check the memory
    assert compacted_at_pages == [1000, 1101, 1211, 1211]
