"""Keys are reconciled one at a time, never lost, and failures wait longer and longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubekit.errors import UnreachableError
from kubekit.workqueue import Reconcile, WorkQueue


@asynccontextmanager
async def working(queue: WorkQueue, reconcile: Reconcile, workers: int = 1) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(queue.work(reconcile, name="test", base_s=0.01, cap_s=0.05)) for _ in range(workers)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def settled(queue: WorkQueue, pause_s: float = 0.02) -> None:
    async with asyncio.timeout(5):
        while len(queue):
            await asyncio.sleep(pause_s)
        await asyncio.sleep(pause_s)


async def test_a_key_added_many_times_is_reconciled_once() -> None:
    queue, done = WorkQueue(), []

    async def reconcile(key: str) -> None:
        done.append(key)

    for _ in range(100):
        queue.add("a")
    queue.add("b")
    async with working(queue, reconcile):
        await settled(queue)
    assert done == ["a", "b"]


async def test_a_key_added_while_it_is_worked_on_is_reconciled_again_and_never_by_two() -> None:
    queue, active, most, done = WorkQueue(), 0, 0, 0

    async def reconcile(_: str) -> None:
        nonlocal active, most, done
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.02)
        active -= 1
        done += 1

    async with working(queue, reconcile, workers=3):
        queue.add("a")
        await asyncio.sleep(0.005)
        for _ in range(5):
            queue.add("a")
        await asyncio.sleep(0.1)
    assert (most, done) == (1, 2)


async def test_a_delay_is_cut_short_by_an_earlier_one_and_not_put_off_by_a_later_one() -> None:
    queue, loop = WorkQueue(), asyncio.get_running_loop()
    times: list[float] = []
    started = loop.time()

    async def reconcile(_: str) -> None:
        times.append(loop.time() - started)

    queue.add_after("a", 10)
    queue.add_after("a", 0.05)
    queue.add_after("a", 20)
    async with working(queue, reconcile):
        await asyncio.sleep(0.15)
    assert len(times) == 1
    assert times[0] >= 0.045


async def test_adding_now_overtakes_a_delay() -> None:
    queue, done = WorkQueue(), []

    async def reconcile(key: str) -> None:
        done.append(key)

    queue.add_after("a", 10)
    queue.add("a")
    async with working(queue, reconcile):
        await settled(queue)
    assert done == ["a"]
    assert not queue._timers


async def test_a_reconcile_can_ask_to_be_called_again() -> None:
    queue, calls = WorkQueue(), 0

    async def reconcile(_: str) -> float | None:
        nonlocal calls
        calls += 1
        return 0.01 if calls < 4 else None

    queue.add("a")
    async with working(queue, reconcile), asyncio.timeout(60):
        while calls < 4:
            await asyncio.sleep(0.01)


async def test_failures_are_tried_again_with_growing_pauses_and_do_not_hold_up_other_keys() -> None:
    queue, loop = WorkQueue(), asyncio.get_running_loop()
    tries: list[float] = []
    good: list[str] = []

    async def reconcile(key: str) -> None:
        if key == "good":
            good.append(key)
            return
        tries.append(loop.time())
        if len(tries) < 4:
            raise UnreachableError("simulated")

    queue.add("bad")
    queue.add("good")
    async with working(queue, reconcile), asyncio.timeout(60):
        while len(tries) < 4:
            await asyncio.sleep(0.01)
    assert good == ["good"]
    assert tries[3] - tries[2] > tries[1] - tries[0]


async def test_a_defect_ends_the_worker_so_that_the_program_ends() -> None:
    queue = WorkQueue()

    async def reconcile(_: str) -> None:
        raise ZeroDivisionError

    queue.add("a")
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(queue.work(reconcile, name="test"), 1)


async def test_a_worker_that_is_cancelled_gives_its_key_back() -> None:
    queue, begun, done = WorkQueue(), asyncio.Event(), []

    async def slow(_: str) -> None:
        begun.set()
        await asyncio.sleep(10)

    async def quick(key: str) -> None:
        done.append(key)

    queue.add("a")
    async with working(queue, slow):
        await begun.wait()
    queue.add("a")
    async with working(queue, quick):
        await settled(queue)
    assert done == ["a"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, 0.0, 0.001, 0.003])), max_size=30))
def test_no_key_is_ever_lost_whatever_the_sequence_of_adds(adds: list[tuple[str, float | None]]) -> None:
    async def main() -> None:
        queue, wanted, seen = WorkQueue(), dict[str, int](), dict[str, int]()

        async def reconcile(key: str) -> None:
            seen[key] = wanted[key]
            await asyncio.sleep(0.001)

        async with working(queue, reconcile, workers=2):
            for number, (key, delay_s) in enumerate(adds):
                wanted[key] = number
                if delay_s is None:
                    queue.add(key)
                else:
                    queue.add_after(key, delay_s)
                if number % 7 == 0:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.03)
        assert seen == wanted, "the last state of each key was reconciled after it was set"

    asyncio.run(main())
