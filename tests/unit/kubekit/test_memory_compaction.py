"""Memory is compacted when it has grown, and later collections exclude the objects that exist then."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from kubekit import runtime
from kubekit.runtime import compact_memory, run_memory_compaction
from tests.support.tasks import running_tasks

pytestmark = pytest.mark.usefixtures("collector")


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


def count_full_collections(object_count: int) -> int:
    """Number of full collections while this many objects are created and kept."""
    before: int = gc.get_stats()[2]["collections"]
    objects_kept_alive = [[number] for number in range(object_count)]
    assert len(objects_kept_alive) == object_count
    after: int = gc.get_stats()[2]["collections"]
    return after - before


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the collector is incremental")
def test_no_full_collection_after_compact_memory() -> None:
    assert count_full_collections(300_000) > 0
    compact_memory()
    assert count_full_collections(300_000) == 0


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
