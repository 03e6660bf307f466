"""Each key is reconciled by one worker at a time, is never lost, and is retried with back-off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubekit.errors import UnreachableError
from kubekit.workqueue import Reconcile, WorkQueue
from lab.polling import poll_until


@asynccontextmanager
async def running_workers(
    queue: WorkQueue, reconcile: Reconcile, workers: int = 1
) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(queue.work(reconcile, name="test", base_s=0.01, cap_s=0.05)) for _ in range(workers)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_defect_ends_the_worker_so_that_the_program_ends() -> None:
    queue = WorkQueue()

    async def reconcile(_: str) -> None:
        raise ZeroDivisionError

    queue.add("a")
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(queue.work(reconcile, name="test"), 60)


async def wait_until_idle(queue: WorkQueue) -> None:
    """Wait until no key is queued, being reconciled or due later."""
    await poll_until(lambda: not (queue._queue or queue._processing or queue._timers))


async def test_a_key_added_many_times_is_reconciled_once() -> None:
    queue, reconciled_keys = WorkQueue(), list[str]()

    async def reconcile(key: str) -> None:
        reconciled_keys.append(key)

    for _ in range(100):
        queue.add("a")
    queue.add("b")
    async with running_workers(queue, reconcile):
        await wait_until_idle(queue)
    assert reconciled_keys == ["a", "b"]


async def test_a_key_added_while_it_is_reconciled_is_reconciled_again_afterwards() -> None:
    queue, started_keys, may_finish = WorkQueue(), list[str](), asyncio.Event()

    async def reconcile(key: str) -> None:
        started_keys.append(key)
        if key == "a":
            await may_finish.wait()

    async with running_workers(queue, reconcile, workers=3):
        queue.add("a")
        await poll_until(lambda: bool(started_keys))
        for _ in range(5):
            queue.add("a")
        queue.add("b")
        await poll_until(lambda: "b" in started_keys)
        assert started_keys == ["a", "b"], "only the first worker reconciles the key"
        may_finish.set()
        await wait_until_idle(queue)
    assert started_keys.count("a") == 2


@pytest.mark.parametrize(
    ("delays_s", "min_delay_s"), [((600.0, 0.05, 900.0), 0.045), ((600.0, None), 0.0)], ids=["earlier", "now"]
)
async def test_the_shortest_delay_of_a_key_counts(delays_s: tuple[float | None, ...], min_delay_s: float) -> None:
    queue, loop = WorkQueue(), asyncio.get_running_loop()
    times, started = list[float](), loop.time()

    async def reconcile(key: str) -> None:
        if key == "a":
            times.append(loop.time() - started)

    for delay_s in delays_s:
        if delay_s is None:
            queue.add("a")
        else:
            queue.add_after("a", delay_s)
    async with running_workers(queue, reconcile):
        await poll_until(lambda: bool(times))
        await wait_until_idle(queue)
    assert len(times) == 1, "no delay is left"
    assert times[0] >= min_delay_s


async def test_a_reconcile_can_request_to_be_called_again() -> None:
    queue, calls = WorkQueue(), list[str]()

    async def reconcile(key: str) -> float | None:
        calls.append(key)
        return 0.01 if len(calls) < 4 else None

    queue.add("a")
    async with running_workers(queue, reconcile):
        await poll_until(lambda: len(calls) == 4)


async def test_failures_are_retried_with_back_off_and_do_not_delay_other_keys() -> None:
    queue, pauses_s, order = WorkQueue(), list[float](), list[str]()
    add_after = queue.add_after

    def remember(key: str, delay_s: float) -> None:
        pauses_s.append(delay_s)
        add_after(key, delay_s)

    queue.add_after = remember  # type: ignore[method-assign]

    async def reconcile(key: str) -> None:
        order.append(key)
        if key == "bad" and order.count("bad") < 4:
            error = UnreachableError("simulated")
            error.retry_after_s = 0.3 if order.count("bad") == 3 else None
            raise error

    queue.add("bad")
    queue.add("good")
    for count in (2, 4):  # The back-off continues with another worker.
        async with running_workers(queue, reconcile):
            await poll_until(lambda count=count: order.count("bad") >= count)  # type: ignore[misc]
    assert order == ["bad", "good", "bad", "bad", "bad"]
    assert 0.01 <= pauses_s[1] < 0.3 <= pauses_s[2], "at least Retry-After"


async def test_a_cancelled_worker_releases_its_key() -> None:
    queue, has_started, reconciled_keys = WorkQueue(), asyncio.Event(), list[str]()

    async def slow(_: str) -> None:
        has_started.set()
        await asyncio.Event().wait()

    async def quick(key: str) -> None:
        reconciled_keys.append(key)

    queue.add("a")
    async with running_workers(queue, slow):
        await has_started.wait()
    queue.add("a")
    async with running_workers(queue, quick):
        await poll_until(lambda: reconciled_keys == ["a"])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, 0.0, 0.001, 0.003])), max_size=30))
def test_no_key_is_lost_for_any_sequence_of_adds(adds: list[tuple[str, float | None]]) -> None:
    async def main() -> None:
        queue, latest_by_key, reconciled_by_key = WorkQueue(), dict[str, int](), dict[str, int]()

        async def reconcile(key: str) -> None:
            reconciled_by_key[key] = latest_by_key[key]
            await asyncio.sleep(0.001)

        async with running_workers(queue, reconcile, workers=2):
            for number, (key, delay_s) in enumerate(adds):
                latest_by_key[key] = number
                if delay_s is None:
                    queue.add(key)
                else:
                    queue.add_after(key, delay_s)
                if number % 7 == 0:
                    await asyncio.sleep(0.001)
            # The last state of each key is reconciled after it was set.
            await poll_until(lambda: reconciled_by_key == latest_by_key)

    asyncio.run(main())
