"""Each key is reconciled by one worker at a time, is never lost, and is retried with back-off."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubekit.errors import UnreachableError
from kubekit.workqueue import Reconcile, WorkQueue
from lab.polling import poll_until
from tests.support.tasks import running_tasks


class RecordingQueue(WorkQueue):
    """A queue that remembers the delays with which keys are added."""

    def __init__(self) -> None:
        super().__init__()
        self.delays_s: list[float] = []

    def add_after(self, key: str, delay_s: float) -> None:
        self.delays_s.append(delay_s)
        super().add_after(key, delay_s)


def run_workers(queue: WorkQueue, reconcile: Reconcile, count: int = 1) -> AbstractAsyncContextManager[object]:
    return running_tasks(*(queue.work(reconcile, name="test", base_s=0.01, cap_s=0.05) for _ in range(count)))


async def wait_until_idle(queue: WorkQueue) -> None:
    """Wait until no key is queued, being reconciled or due later."""
    await poll_until(lambda: not (queue._queue or queue._processing or queue._timers))


async def test_a_defect_ends_the_worker_so_that_the_program_ends() -> None:
    queue = WorkQueue()

    async def fail(_: str) -> None:
        raise ZeroDivisionError

    queue.add("a")
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(queue.work(fail, name="test"), 60)


async def test_a_key_added_many_times_is_reconciled_once_unless_reconcile_requests_another_call() -> None:
    queue, reconciled_keys = WorkQueue(), list[str]()

    async def reconcile(key: str) -> float | None:
        reconciled_keys.append(key)
        return 0.01 if reconciled_keys.count("b") in {1, 2} else None

    for _ in range(100):
        queue.add("a")
    queue.add("b")
    async with run_workers(queue, reconcile):
        await wait_until_idle(queue)
    assert reconciled_keys == ["a", "b", "b", "b"]


async def test_a_key_added_while_it_is_reconciled_is_reconciled_again_afterwards() -> None:
    queue, started_keys, may_finish = WorkQueue(), list[str](), asyncio.Event()

    async def reconcile(key: str) -> None:
        started_keys.append(key)
        if key == "a":
            await may_finish.wait()

    async with run_workers(queue, reconcile, 3):
        queue.add("a")
        await poll_until(lambda: started_keys)
        for _ in range(5):
            queue.add("a")
        queue.add("b")
        await poll_until(lambda: "b" in started_keys)
        assert started_keys == ["a", "b"], "only the first worker reconciles the key"
        may_finish.set()
        await wait_until_idle(queue)
    assert started_keys.count("a") == 2


async def test_the_shortest_delay_of_a_key_counts_and_no_other_is_left() -> None:
    queue, loop = WorkQueue(), asyncio.get_running_loop()
    reconciled_at_s, added_at_s = list[tuple[str, float]](), loop.time()

    async def reconcile(key: str) -> None:
        reconciled_at_s.append((key, loop.time()))

    for delay_s in (600.0, 0.05, 900.0):
        queue.add_after("soon", delay_s)
    queue.add_after("now", 600.0)
    queue.add("now")
    async with run_workers(queue, reconcile):
        await poll_until(lambda: len(reconciled_at_s) == 2)
        await wait_until_idle(queue)
    assert [key for key, _ in reconciled_at_s] == ["now", "soon"]
    assert reconciled_at_s[1][1] - added_at_s >= 0.045


async def test_failures_are_retried_with_back_off_and_do_not_delay_other_keys() -> None:
    queue, reconciled_keys = RecordingQueue(), list[str]()

    async def reconcile(key: str) -> None:
        reconciled_keys.append(key)
        if key == "failing" and reconciled_keys.count(key) < 4:
            error = UnreachableError("simulated")
            error.retry_after_s = 0.3 if reconciled_keys.count(key) == 3 else None
            raise error

    queue.add("failing")
    queue.add("good")
    for attempts in (2, 4):  # The back-off continues with another worker.
        async with run_workers(queue, reconcile):
            await poll_until(partial(lambda count: reconciled_keys.count("failing") >= count, attempts))
    assert reconciled_keys == ["failing", "good", "failing", "failing", "failing"]
    assert 0.01 <= queue.delays_s[1] < 0.3 <= queue.delays_s[2], "at least Retry-After"


async def test_a_cancelled_worker_releases_its_key() -> None:
    queue, has_started, reconciled_keys = WorkQueue(), asyncio.Event(), list[str]()

    async def start_and_hang(_: str) -> None:
        has_started.set()
        await asyncio.Event().wait()

    async def reconcile(key: str) -> None:
        reconciled_keys.append(key)

    queue.add("a")
    async with run_workers(queue, start_and_hang):
        await has_started.wait()
    queue.add("a")
    async with run_workers(queue, reconcile):
        await poll_until(lambda: reconciled_keys == ["a"])


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, 0.0, 0.001, 0.003])), max_size=30))
def test_no_key_is_lost_for_any_sequence_of_adds(adds: list[tuple[str, float | None]]) -> None:
    async def add_all() -> None:
        queue, latest_by_key, reconciled_by_key = WorkQueue(), dict[str, int](), dict[str, int]()

        async def reconcile(key: str) -> None:
            reconciled_by_key[key] = latest_by_key[key]
            await asyncio.sleep(0.001)

        async with run_workers(queue, reconcile, 2):
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

    asyncio.run(add_all())
