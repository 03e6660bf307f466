"""A write fence stops writes when the leader's permission ends, and knows writes that may still take effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.errors import ApiError, NotLeaderError, UnreachableError
from kubekit.fence import WriteFence
from kubekit.lease import LeaderElectionConfig, LeaderElector
from kubekit.transport import MAX_SHARED_REQUESTS, ConnectionPool
from kubekit.wire import CONFIGMAPS, Object
from lab.polling import poll_until
from tests.unit.kubekit.simulated_api import SimulatedApi

BODY = {"metadata": {"name": "x"}}
WRITES: dict[str, Callable[[Client], Awaitable[object]]] = {
    "create": lambda client: client.create(CONFIGMAPS, BODY, Object, namespace="ns"),
    "replace": lambda client: client.replace(CONFIGMAPS, "x", BODY, Object, namespace="ns"),
    "patch": lambda client: client.patch(CONFIGMAPS, "x", BODY, Object, namespace="ns"),
    "apply": lambda client: client.apply(CONFIGMAPS, "x", BODY, Object, namespace="ns", field_manager="m"),
    "delete": lambda client: client.delete(CONFIGMAPS, "x", namespace="ns"),
}


class SuspendedAfterCheck(WriteFence):
    """The fence of a process that is suspended for a minute between the permission and the sending of a write."""

    def __init__(self) -> None:
        self._now_s, self._check_count = 0.0, 0
        super().__init__(clock=lambda: self._now_s)
        self.extend(10.0)

    def check_permission(self) -> float:
        remaining_s = super().check_permission()
        self._check_count += 1
        if self._check_count == 2:  # before and after the wait for a connection
            self._now_s += 60.0
        return remaining_s


@pytest.fixture
def api() -> SimulatedApi:
    return SimulatedApi(CONFIGMAPS)


def start_create(client: Client, name: str) -> asyncio.Task[Object]:
    return asyncio.create_task(client.create(CONFIGMAPS, {"metadata": {"name": name}}, Object, namespace="ns"))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("make_fence", [WriteFence, SuspendedAfterCheck])
async def test_no_write_is_sent_without_leadership_or_after_a_suspension_that_outlasts_it(
    api: SimulatedApi, write: Callable[[Client], Awaitable[object]], make_fence: Callable[[], WriteFence]
) -> None:
    async with api.running() as config, Client(config) as client:
        with pytest.raises(NotLeaderError):
            await write(client.with_fence(make_fence()))
    assert api.requests == []


async def test_reads_need_no_leadership(api: SimulatedApi) -> None:
    api.put("x")
    async with api.running() as config, Client(config) as client:
        await client.with_fence(WriteFence()).get(CONFIGMAPS, "x", Object, namespace="ns")


async def test_no_write_starts_in_the_last_retry_s_of_a_permission() -> None:
    client = Client(ClusterConfig(server="http://127.0.0.1:1"))
    config = LeaderElectionConfig(duration_s=10.0, renew_deadline_s=7.0, retry_s=2.0)
    fence = LeaderElector(client, namespace="ns", name="lease", identity="r", config=config, clock=lambda: 100.0).fence
    fence.extend(102.1)
    assert fence.check_permission() == pytest.approx(2.1)
    fence.extend(102.0)
    assert fence.is_held, "work without writes may continue"
    with pytest.raises(NotLeaderError):
        fence.check_permission()


@pytest.mark.parametrize("read_count", [0, 2], ids=["writes", "writes and reads"])
async def test_a_write_that_waited_is_not_sent_at_the_end_of_the_permission(api: SimulatedApi, read_count: int) -> None:
    now_s = 100.0
    fence = WriteFence(lambda: now_s, reserve_s=2.0)
    fence.extend(107.0)
    write_count = min(ConnectionPool.WRITE.value or 0, MAX_SHARED_REQUESTS - read_count)
    async with api.running() as config, Client(config) as client:
        fenced = client.with_fence(fence)
        # These requests have all connections that the late write could use.
        api.may_respond.clear()
        reads = [asyncio.create_task(client.get(CONFIGMAPS, "x", Object, namespace="ns")) for _ in range(read_count)]
        await poll_until(lambda: api.count_requests("GET") == read_count)
        writes = [start_create(fenced, f"early-{number}") for number in range(write_count)]
        await poll_until(lambda: api.count_requests("POST") == write_count)
        late_write = start_create(fenced, "late")
        await asyncio.sleep(0.05)  # it passes the first check

        now_s = 105.5  # in the last 2 s of the permission
        api.may_respond.set()
        await asyncio.gather(*writes)
        await asyncio.gather(*reads, return_exceptions=True)

        with pytest.raises(NotLeaderError):
            await late_write
        assert "late" not in api.objects


async def test_a_request_of_the_leader_ends_with_its_permission(api: SimulatedApi) -> None:
    loop = asyncio.get_running_loop()
    async with api.running() as config, Client(config, timeout_s=600.0) as client, asyncio.timeout(60):
        fence = WriteFence(clock=loop.time)
        fence.extend(loop.time() + 0.2)
        api.may_respond.clear()
        with pytest.raises(UnreachableError, match="no response in time"):
            await WRITES["create"](client.with_fence(fence))
        assert -5 < fence.remaining_s < 0.1, "at the end of the permission, except for delays of a busy machine"


async def test_a_write_without_a_response_counts_for_the_duration_of_a_lease(api: SimulatedApi) -> None:
    now_s, lease_duration_s = 100.0, 10.0
    fence = WriteFence(lambda: now_s)
    fence.extend(200.0)
    async with api.running() as config, Client(config, timeout_s=0.3) as client:
        api.may_respond.clear()
        write = start_create(client.with_fence(fence), "x")
        await poll_until(lambda: api.count_requests("POST") == 1)
        now_s += 7
        with pytest.raises(UnreachableError):
            await write
    now_s += 9
    assert not await fence.wait_for_writes(0.0, lease_duration_s), "it may have been sent until its timeout, 9 s ago"
    now_s += 2
    assert await fence.wait_for_writes(0.0, lease_duration_s)


@pytest.mark.parametrize(("status", "has_ended"), [(409, True), (422, True), (500, False), (504, False)])
async def test_a_refused_write_has_ended_and_one_with_a_server_error_may_take_effect(
    api: SimulatedApi, status: int, *, has_ended: bool
) -> None:
    fence = WriteFence()
    fence.extend(float("inf"))
    api.fail_writes = [status]
    async with api.running() as config, Client(config) as client:
        with pytest.raises(ApiError):
            await WRITES["create"](client.with_fence(fence))
    assert await fence.wait_for_writes(0.0, 10.0) is has_ended
