"""A program ends with exit code 0 after a signal, 1 after a failure, and 2 after a configuration error; memory is compacted."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import weakref
from collections.abc import Iterator

import pytest

from kubekit import runtime
from kubekit.errors import ConfigError, UnreachableError
from kubekit.runtime import compact_memory, run_memory_compaction, run_program, supervise


async def wait_forever() -> None:
    await asyncio.Event().wait()


async def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_program_with_exit_code_0(number: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        await supervise({"work": wait_forever()})

    assert run_program(main) == 0
    assert not [record for record in caplog.records if record.exc_info]


def test_a_configuration_error_gives_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        await supervise({"a": wait_forever(), "b": fail(ConfigError("--reserve", "is 110%", "write 0% to 100%"))})

    assert run_program(main) == 2
    assert capsys.readouterr().err == "error: --reserve: is 110% (write 0% to 100%)\n"


def test_an_unreachable_cluster_or_a_defect_gives_exit_code_1() -> None:
    assert run_program(lambda: fail(UnreachableError("gone"))) == 1
    assert run_program(lambda: fail(ZeroDivisionError("defect"))) == 1


def test_a_task_that_ends_by_itself_ends_the_program() -> None:
    async def main() -> None:
        await supervise({"a": wait_forever(), "b": asyncio.sleep(0)})

    assert run_program(main) == 1


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


def count_full_collections(object_count: int) -> int:
    """Number of full collections while this many objects are created and kept."""
    before: int = gc.get_stats()[2]["collections"]
    objects_kept_alive = [[number] for number in range(object_count)]
    assert len(objects_kept_alive) == object_count
    after: int = gc.get_stats()[2]["collections"]
    return after - before


@pytest.mark.usefixtures("collector")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the collector is incremental")
def test_no_full_collection_after_compact_memory() -> None:
    assert count_full_collections(300_000) > 0
    compact_memory()
    assert count_full_collections(300_000) == 0


class ReferenceCycle:
    """Freed only by the cyclic collector."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("collector")
def test_compact_memory_frees_cycles_that_an_earlier_call_froze() -> None:
    gc.disable()
    first = ReferenceCycle()
    reference = weakref.ref(first)
    compact_memory()
    assert gc.get_freeze_count() > 0, "later collections exclude these objects"
    del first
    compact_memory(everything=False)
    assert reference() is not None
    compact_memory()
    assert reference() is None
    second = ReferenceCycle()
    reference = weakref.ref(second)
    del second
    compact_memory(everything=False)
    assert reference() is None


@pytest.mark.usefixtures("collector")
async def test_memory_is_compacted_again_after_it_grew_by_ten_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, garbage, compacted_at = [0], [0], list[int]()

    def compact() -> None:
        compacted_at.append(memory[0])
        memory[0] -= garbage[0]

    monkeypatch.setattr(runtime, "MEMORY_CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(runtime, "_resident_pages", lambda: memory[0])
    monkeypatch.setattr(runtime, "compact_memory", compact)
    task = asyncio.create_task(run_memory_compaction())
    # The threshold is the memory after the last compaction, not before it.
    for memory[0], garbage[0] in ((1000, 0), (1100, 0), (1101, 1), (1200, 0), (1211, 111), (1211, 100)):
        for _ in range(5):
            await asyncio.sleep(0)  # lets the task check the memory
    task.cancel()
    assert compacted_at == [1000, 1101, 1211, 1211]
