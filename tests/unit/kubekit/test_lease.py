"""At most one candidate leads, through faults of the server and of clocks, and its permission to write ends by a local clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.errors import ApiError, ConfigError, NotLeaderError, UnreachableError
from kubekit.fence import WriteFence
from kubekit.lease import LeaderElectionConfig, LeaderElector
from kubekit.transport import MAX_SHARED_REQUESTS, ConnectionPool
from kubekit.wire import LEASES, Object, format_time
from lab.polling import poll_until
from tests.unit.kubekit.simulated_api import SimulatedApi

FAST = LeaderElectionConfig(duration_s=1.0, renew_deadline_s=0.6, retry_s=0.1)
# Deadlines that a busy machine meets.
PATIENT = LeaderElectionConfig(duration_s=60.0, renew_deadline_s=30.0, retry_s=0.1)
# Lasts far longer than a test, so another replica leads only after a release.
LONG_LEASE = LeaderElectionConfig(duration_s=600.0, renew_deadline_s=300.0, retry_s=0.1)
# No renewal happens during a test.
NO_RENEWALS = LeaderElectionConfig(duration_s=60.0, renew_deadline_s=30.0, retry_s=10.0)
BODY = {"metadata": {"name": "x"}}


class Replica:
    """A candidate with a client of its own, and the number of its terms."""

    def __init__(self, client: Client, identity: str, config: LeaderElectionConfig = FAST) -> None:
        self.elector = LeaderElector(client, namespace="ns", name="lease", identity=identity, config=config)
        self.terms = 0
        self.is_working = False
        self.task: asyncio.Task[None] | None = None

    async def lead(self, fence: WriteFence) -> None:
        assert fence is self.elector.fence
        self.terms += 1
        self.is_working = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_working = False

    def start(self) -> None:
        self.task = asyncio.create_task(self.elector.run(self.lead))

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    @property
    def is_leader(self) -> bool:
        return self.elector.fence.is_held


@asynccontextmanager
async def replicas(api: SimulatedApi, count: int, config: LeaderElectionConfig = FAST) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(api.running())
        clients = [await stack.enter_async_context(Client(cluster, user_agent=f"r{i}")) for i in range(count)]
        candidates = [Replica(client, f"r{i}", config) for i, client in enumerate(clients)]
        try:
            yield candidates
        finally:
            for replica in candidates:
                await replica.stop()


@pytest.fixture
def api() -> SimulatedApi:
    return SimulatedApi(LEASES)


def holder_of(api: SimulatedApi) -> str:
    return str(api.objects["lease"]["spec"]["holderIdentity"])


def _writes(client: Client) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: client.create(LEASES, BODY, Object, namespace="ns"),
        lambda: client.replace(LEASES, "x", BODY, Object, namespace="ns"),
        lambda: client.patch(LEASES, "x", BODY, Object, namespace="ns"),
        lambda: client.apply(LEASES, "x", BODY, Object, namespace="ns", field_manager="m"),
        lambda: client.delete(LEASES, "x", namespace="ns"),
    ]


async def test_one_of_three_candidates_leads_and_keeps_leading(api: SimulatedApi) -> None:
    async with replicas(api, 3, PATIENT) as candidates:
        for replica in candidates:
            replica.start()
        leader_counts: set[int] = set()
        for _ in range(150):
            leader_counts.add(sum(r.is_leader for r in candidates))
            await asyncio.sleep(0.01)
        assert max(leader_counts) == 1
        assert sum(r.terms for r in candidates) == 1
        assert api.objects["lease"]["spec"]["leaseTransitions"] == 0


async def test_the_leader_keeps_a_lease_that_another_process_changed_or_deleted(api: SimulatedApi) -> None:
    async with replicas(api, 1, PATIENT) as (leader,):
        leader.start()
        await poll_until(lambda: leader.is_leader)
        api.put("lease", spec=api.objects["lease"]["spec"])
        writes = api.count("PUT")
        await poll_until(lambda: api.count("PUT") >= writes + 5)
        api.drop("lease")
        await poll_until(lambda: "lease" in api.objects)
        assert leader.is_leader
        assert leader.terms == 1


@pytest.mark.parametrize("is_renewing", [False, True])
async def test_a_stopping_leader_releases_its_lease_also_during_a_renewal(
    api: SimulatedApi, *, is_renewing: bool
) -> None:
    async with replicas(api, 2, LONG_LEASE) as (first, second):
        first.start()
        await poll_until(lambda: first.is_leader)
        second.start()
        await asyncio.sleep(0.3)
        assert not second.is_leader
        if is_renewing:  # As after a renewal without a response.
            api.put("lease", spec=api.objects["lease"]["spec"])
        await first.stop()
        assert not first.is_leader
        await poll_until(lambda: second.is_leader)


async def test_leaders_keep_the_labels_of_the_lease_and_count_its_transitions(api: SimulatedApi) -> None:
    api.put("lease", metadata={"labels": {"team": "a"}}, spec={"holderIdentity": "", "leaseTransitions": 5})
    async with replicas(api, 2, LONG_LEASE) as candidates:
        for replica in candidates:
            replica.start()
            await poll_until(lambda candidate=replica: candidate.is_leader)  # type: ignore[misc]
            await replica.stop()
    assert holder_of(api) == ""
    assert api.objects["lease"]["spec"]["leaseTransitions"] == 7
    assert api.objects["lease"]["metadata"]["labels"] == {"team": "a"}


@pytest.mark.parametrize("responds", [True, False])
async def test_a_leader_that_stops_releases_its_lease_only_after_the_response_to_its_last_write(
    api: SimulatedApi, monkeypatch: pytest.MonkeyPatch, *, responds: bool
) -> None:
    if not responds:
        monkeypatch.setattr("kubekit.lease.WRITES_TIMEOUT_S", 0.2)
    api.unresponsive_to.add("writes")
    async with api.running() as config, Client(config) as client, Client(config, user_agent="writes") as slow:
        elector = LeaderElector(client, namespace="ns", name="lease", identity="r", config=PATIENT)

        async def lead(fence: WriteFence) -> None:
            await slow.with_fence(fence).create(LEASES, {"metadata": {"name": "late"}}, Object, namespace="ns")
            await asyncio.Event().wait()

        task = asyncio.create_task(elector.run(lead))
        await poll_until(lambda: api.count("POST") == 2)
        task.cancel()
        await asyncio.sleep(0.1)
        assert holder_of(api) == "r", "the write may take effect while another leads"
        if responds:
            api.unresponsive_to.clear()
        await asyncio.gather(task, return_exceptions=True)
        assert ("late" in api.objects, holder_of(api)) == ((True, "") if responds else (False, "r"))


async def test_a_write_without_a_response_counts_for_the_duration_of_a_lease(api: SimulatedApi) -> None:
    now = [100.0]
    fence = WriteFence(clock=lambda: now[0])
    fence.extend(200.0)
    async with api.running() as config, Client(config, timeout_s=0.3) as client:
        api.may_respond.clear()
        write = asyncio.create_task(client.with_fence(fence).create(LEASES, BODY, Object, namespace="ns"))
        await poll_until(lambda: api.count("POST") == 1)
        now[0] += 7
        with pytest.raises(UnreachableError):
            await write
        now[0] += 9
        assert not await fence.wait_for_writes(0.0, 10.0), "it may have been sent until its timeout"
        now[0] += 2
        assert await fence.wait_for_writes(0.0, 10.0)


@pytest.mark.parametrize(("status", "is_released"), [(409, True), (422, True), (500, False), (504, False)])
async def test_only_a_write_without_a_response_delays_the_next_leader(
    api: SimulatedApi, status: int, *, is_released: bool
) -> None:
    fence = WriteFence()
    fence.extend(float("inf"))
    async with api.running() as config, Client(config) as client:
        api.fail_writes = [status]
        with pytest.raises(ApiError):
            await client.with_fence(fence).create(LEASES, BODY, Object, namespace="ns")
    assert await fence.wait_for_writes(0.0, 10.0) is is_released


@pytest.mark.parametrize("read_count", [0, 2])
async def test_a_write_that_waited_for_a_connection_is_not_sent_at_the_end_of_the_permission(
    api: SimulatedApi, read_count: int
) -> None:
    now = [100.0]
    fence = WriteFence(clock=lambda: now[0], reserve_s=2.0)
    fence.extend(107.0)
    async with api.running() as config, Client(config) as client:
        fenced = client.with_fence(fence)
        api.may_respond.clear()

        def create(name: str) -> asyncio.Task[Object]:
            body = {"metadata": {"name": name}}
            return asyncio.create_task(fenced.create(LEASES, body, Object, namespace="ns"))

        # The late write waits for other writes, or for reads that have the last connections.
        reads = [asyncio.create_task(client.get(LEASES, "x", Object, namespace="ns")) for _ in range(read_count)]
        await poll_until(lambda: api.count("GET") == read_count)
        write_count = min(ConnectionPool.WRITE.value or 0, MAX_SHARED_REQUESTS - read_count)
        first_writes = [create(f"first-{number}") for number in range(write_count)]
        await poll_until(lambda: api.count("POST") == write_count)
        late = create("late")
        await asyncio.sleep(0.05)
        now[0] = 105.5
        api.may_respond.set()
        await asyncio.gather(*first_writes)
        await asyncio.gather(*reads, return_exceptions=True)
        with pytest.raises(NotLeaderError):
            await late
        assert "late" not in api.objects


async def test_a_former_leader_that_stops_does_not_release_its_successors_lease(api: SimulatedApi) -> None:
    async with replicas(api, 2) as (first, second):
        first.start()
        await poll_until(lambda: first.is_leader)
        second.start()
        api.unresponsive_to.add("r0")
        await poll_until(lambda: second.is_leader)
        api.unresponsive_to.clear()
        get_count = api.count("GET")
        await poll_until(lambda: api.count("GET") >= get_count + 2)
        await first.stop()
        assert holder_of(api) == "r1"


async def test_a_former_leader_that_runs_and_stops_again_does_not_release_its_successors_lease(
    api: SimulatedApi,
) -> None:
    async with replicas(api, 2, NO_RENEWALS) as (first, second):
        first.start()
        await poll_until(lambda: first.is_leader)
        await first.stop()
        second.start()
        await poll_until(lambda: second.is_leader)
        first.start()
        await poll_until(lambda: first.elector._observed_holder == "r1")
        await first.stop()
        assert holder_of(api) == "r1"


async def test_no_write_starts_in_the_last_retry_s_of_a_permission() -> None:
    client, config = Client(ClusterConfig(server="http://127.0.0.1:1")), LeaderElectionConfig(10.0, 7.0, 2.0)
    fence = LeaderElector(client, namespace="ns", name="lease", identity="r", config=config, clock=lambda: 100.0).fence
    fence.extend(102.1)
    assert fence.check_permission() == pytest.approx(2.1)
    fence.extend(102.0)
    assert fence.is_held, "work without writes may continue"
    with pytest.raises(NotLeaderError):
        fence.check_permission()


async def test_a_disconnected_leader_loses_the_lease_after_its_duration_and_may_lead_again(api: SimulatedApi) -> None:
    loop = asyncio.get_running_loop()
    async with replicas(api, 2) as (first, second):
        first.start()
        await poll_until(lambda: first.is_leader)
        second.start()
        await asyncio.sleep(0.3)
        api.unresponsive_to.add("r0")
        cut_off_at = loop.time()
        async with asyncio.timeout(60):
            while not second.is_leader:
                assert not (first.is_working and second.is_working)
                await asyncio.sleep(0.005)
        assert not first.is_leader
        assert not first.is_working
        # The lease was renewed at most one pause before the cut.
        assert loop.time() - cut_off_at >= FAST.duration_s - 2 * FAST.retry_s
        api.unresponsive_to.clear()
        await second.stop()
        await poll_until(lambda: first.is_leader and first.is_working)
        assert first.terms == 2


async def test_no_write_passes_the_fence_without_leadership(api: SimulatedApi) -> None:
    async with api.running() as config, Client(config) as client:
        now = [0.0]
        fence = WriteFence(clock=lambda: now[0])
        fenced = client.with_fence(fence)
        for attempt in _writes(fenced):
            with pytest.raises(NotLeaderError):
                await attempt()
        assert api.requests == [], "no request is sent"
        fence.extend(10.0)
        await fenced.create(LEASES, BODY, Object, namespace="ns")
        now[0] = 10.0
        with pytest.raises(NotLeaderError):
            await fenced.replace(LEASES, "x", BODY, Object, namespace="ns")
        assert api.count("PUT") == 0
        await fenced.get(LEASES, "x", Object, namespace="ns")


class SuspendedAfterCheck(WriteFence):
    """The fence of a process that is suspended for a minute between the permission and the sending of a write."""

    def __init__(self) -> None:
        self._now, self.checks = 0.0, 0
        super().__init__(clock=lambda: self._now)
        self.extend(10.0)

    def check_permission(self) -> float:
        remaining_s = super().check_permission()
        self.checks += 1
        if self.checks == 2:  # before and after the wait for a connection
            self._now += 60.0
        return remaining_s


@pytest.mark.parametrize("index", range(5), ids=["create", "replace", "patch", "apply", "delete"])
async def test_a_process_suspended_between_check_and_sending_does_not_send(api: SimulatedApi, index: int) -> None:
    fence = SuspendedAfterCheck()
    async with api.running() as config, Client(config) as client:
        with pytest.raises(NotLeaderError):
            await _writes(client.with_fence(fence))[index]()
        assert fence.checks == 2
        assert api.requests == []


async def test_a_request_of_the_leader_ends_with_its_permission(api: SimulatedApi) -> None:
    loop = asyncio.get_running_loop()
    async with api.running() as config, Client(config, timeout_s=600.0) as client, asyncio.timeout(60):
        fence = WriteFence(clock=loop.time)
        fence.extend(loop.time() + 0.2)
        api.may_respond.clear()
        with pytest.raises(UnreachableError, match="no response in time"):
            await client.with_fence(fence).create(LEASES, BODY, Object, namespace="ns")
        assert -5 < fence.remaining_s < 0.1, "at the end of the permission, except for delays of a busy machine"


async def test_a_lease_that_changes_does_not_expire_however_old_its_times_are(api: SimulatedApi) -> None:
    async with replicas(api, 1) as (waiting,):
        old = "2001-01-01T00:00:00.000000Z"
        spec = {"holderIdentity": "far-away", "leaseDurationSeconds": 1, "acquireTime": old, "renewTime": old}
        api.put("lease", spec=spec)
        waiting.start()
        for _ in range(15):
            await asyncio.sleep(0.1)
            api.put("lease", spec=spec)
            assert not waiting.is_leader
        await poll_until(lambda: waiting.is_leader)


async def test_only_one_of_two_candidates_acquires_a_released_lease(api: SimulatedApi) -> None:
    api.put("lease", spec={"holderIdentity": "", "leaseDurationSeconds": 1})
    async with replicas(api, 2) as candidates:
        for _ in range(20):
            api.put("lease", spec={"holderIdentity": "", "leaseDurationSeconds": 1})
            are_holders = await asyncio.gather(*(r.elector._try_acquire_or_renew() for r in candidates))
            assert sum(are_holders) <= 1
            for replica in candidates:
                replica.elector.fence.revoke()


async def test_the_election_fails_if_the_leaders_work_returns(api: SimulatedApi) -> None:
    async with api.running() as config, Client(config) as client:
        elector = LeaderElector(client, namespace="ns", name="lease", identity="r", config=FAST)

        async def return_at_once(_: WriteFence) -> None:
            return None

        with pytest.raises(RuntimeError, match="ended by itself"):
            await asyncio.wait_for(elector.run(return_at_once), 60)
        assert holder_of(api) == "", "and the lease is released"


async def test_the_election_fails_at_an_unexpected_error_of_a_renewal(
    api: SimulatedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api.running() as config, Client(config) as client:
        elector = LeaderElector(client, namespace="ns", name="lease", identity="r", config=FAST)
        errors = [OverflowError()]

        def format_once_broken(unix_s: float, *, with_microseconds: bool) -> str:
            if errors:
                raise errors.pop()
            return format_time(unix_s, with_microseconds=with_microseconds)

        async def work(_: WriteFence) -> None:
            monkeypatch.setattr("kubekit.lease.format_time", format_once_broken)
            await asyncio.Event().wait()

        with pytest.raises(OverflowError):
            await asyncio.wait_for(elector.run(work), 5)
        assert holder_of(api) == "", "and the lease is released"


# With 10, 7 and 5 s a leader could hardly write: it renews every 5 s, and no write starts in the last 5 of its 7 s.
@pytest.mark.parametrize("times", [(10, 10, 2), (10, 7, 7), (7, 10, 2), (10, 7, 0), (10, 7, 5), (10, 4, 2)])
def test_inconsistent_times_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match="do not fit together"):
        LeaderElectionConfig(*times)
