"""At most one candidate of an election leads, through faults of the API server and of clocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from kubekit.client import Client
from kubekit.errors import ConfigError
from kubekit.fence import WriteFence
from kubekit.lease import LeaderElectionConfig, LeaderElector
from kubekit.wire import LEASES, Object, format_time
from lab.polling import poll_until
from tests.unit.kubekit.simulated_api import SimulatedApi

FAST = LeaderElectionConfig(duration_s=1.0, renew_deadline_s=0.6, retry_s=0.1)
# Lasts far longer than a test, so a busy machine meets its deadlines, and another replica leads only after a release.
LONG_LEASE = LeaderElectionConfig(duration_s=600.0, renew_deadline_s=300.0, retry_s=0.1)


class Replica:
    """A candidate with a client of its own, and the number of its terms."""

    def __init__(self, client: Client, identity: str, config: LeaderElectionConfig) -> None:
        self.elector = LeaderElector(client, namespace="ns", name="lease", identity=identity, config=config)
        self.terms = 0
        self.is_working = False
        self.task: asyncio.Task[None] | None = None

    async def work(self, fence: WriteFence) -> None:
        assert fence is self.elector.fence
        self.terms += 1
        self.is_working = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_working = False

    def start(self) -> None:
        self.task = asyncio.create_task(self.elector.run(self.work))

    async def start_and_lead(self) -> None:
        self.start()
        await poll_until(lambda: self.is_leader)

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    @property
    def is_leader(self) -> bool:
        return self.elector.fence.is_held


@pytest.fixture
def api() -> SimulatedApi:
    return SimulatedApi(LEASES)


@asynccontextmanager
async def make_replicas(
    api: SimulatedApi, count: int, config: LeaderElectionConfig = FAST
) -> AsyncIterator[list[Replica]]:
    """Replicas r0, r1, ..., which are also the user agents of their clients; they stop after the block."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(api.running())
        clients = [await stack.enter_async_context(Client(cluster, user_agent=f"r{i}")) for i in range(count)]
        replicas = [Replica(client, f"r{i}", config) for i, client in enumerate(clients)]
        try:
            yield replicas
        finally:
            for replica in replicas:
                await replica.stop()


def read_holder(api: SimulatedApi) -> str:
    return str(api.objects["lease"]["spec"]["holderIdentity"])


@pytest.mark.parametrize("is_released", [False, True], ids=["new lease", "released lease"])
async def test_one_of_three_candidates_leads_and_keeps_leading(api: SimulatedApi, *, is_released: bool) -> None:
    if is_released:
        api.put("lease", spec={"holderIdentity": "", "leaseDurationSeconds": 1})
    async with make_replicas(api, 3, LONG_LEASE) as replicas:
        for replica in replicas:
            replica.start()
        leader_counts: set[int] = set()
        for _ in range(150):
            leader_counts.add(sum(replica.is_leader for replica in replicas))
            await asyncio.sleep(0.01)
        assert max(leader_counts) == 1
        assert sum(replica.terms for replica in replicas) == 1
        assert api.objects["lease"]["spec"]["leaseTransitions"] == is_released


async def test_the_leader_keeps_a_lease_that_another_process_changed_or_deleted(api: SimulatedApi) -> None:
    async with make_replicas(api, 1, LONG_LEASE) as (leader,):
        await leader.start_and_lead()
        api.put("lease", spec=api.objects["lease"]["spec"])
        write_count = api.count_requests("PUT")
        await poll_until(lambda: api.count_requests("PUT") >= write_count + 5)
        api.delete("lease")
        await poll_until(lambda: "lease" in api.objects)
        assert leader.is_leader
        assert leader.terms == 1


@pytest.mark.parametrize("is_renewing", [False, True])
async def test_a_stopping_leader_releases_its_lease_also_in_a_renewal(api: SimulatedApi, *, is_renewing: bool) -> None:
    async with make_replicas(api, 2, LONG_LEASE) as (leader, successor):
        await leader.start_and_lead()
        successor.start()
        await asyncio.sleep(0.3)  # some attempts
        assert not successor.is_leader
        if is_renewing:  # As after a renewal without a response.
            api.put("lease", spec=api.objects["lease"]["spec"])
        await leader.stop()
        assert not leader.is_leader
        await poll_until(lambda: successor.is_leader)


async def test_leaders_keep_the_labels_of_the_lease_and_count_its_transitions(api: SimulatedApi) -> None:
    api.put("lease", metadata={"labels": {"team": "a"}}, spec={"holderIdentity": "", "leaseTransitions": 5})
    async with make_replicas(api, 2, LONG_LEASE) as replicas:
        for replica in replicas:
            await replica.start_and_lead()
            await replica.stop()
    assert read_holder(api) == ""
    assert api.objects["lease"]["spec"]["leaseTransitions"] == 7, "two leaders after five"
    assert api.objects["lease"]["metadata"]["labels"] == {"team": "a"}


@pytest.mark.parametrize("has_response", [True, False])
async def test_a_leader_that_stops_releases_its_lease_only_after_the_response_to_its_last_write(
    api: SimulatedApi, monkeypatch: pytest.MonkeyPatch, *, has_response: bool
) -> None:
    if not has_response:
        monkeypatch.setattr("kubekit.lease.WRITES_TIMEOUT_S", 0.2)
    api.unresponsive_to.add("writer")
    async with api.running() as config, Client(config) as client, Client(config, user_agent="writer") as writer:
        elector = LeaderElector(client, namespace="ns", name="lease", identity="r", config=LONG_LEASE)

        async def write(fence: WriteFence) -> None:
            await writer.with_fence(fence).create(LEASES, {"metadata": {"name": "late"}}, Object, namespace="ns")
            await asyncio.Event().wait()

        leading = asyncio.create_task(elector.run(write))
        await poll_until(lambda: api.count_requests("POST") == 2)
        leading.cancel()
        await asyncio.sleep(0.1)
        assert read_holder(api) == "r", "the write may take effect while another leads"
        if has_response:
            api.unresponsive_to.clear()
        await asyncio.gather(leading, return_exceptions=True)
        assert ("late" in api.objects) is has_response
        assert read_holder(api) == ("" if has_response else "r")


async def test_a_stopping_leader_does_not_release_a_lease_that_another_process_took(api: SimulatedApi) -> None:
    async with make_replicas(api, 1, LONG_LEASE) as (leader,):
        await leader.start_and_lead()
        api.put("lease", spec={"holderIdentity": "another", "leaseDurationSeconds": 600})
        await leader.stop()
        assert read_holder(api) == "another"


async def test_a_disconnected_leader_loses_the_lease_after_its_duration_and_may_lead_again(api: SimulatedApi) -> None:
    loop = asyncio.get_running_loop()
    async with make_replicas(api, 2) as (disconnected, successor):
        await disconnected.start_and_lead()
        successor.start()
        await asyncio.sleep(0.3)  # some renewals
        api.unresponsive_to.add("r0")
        disconnected_at_s = loop.time()
        async with asyncio.timeout(60):
            while not successor.is_leader:
                assert not (disconnected.is_working and successor.is_working)
                await asyncio.sleep(0.005)
        assert not disconnected.is_leader
        assert not disconnected.is_working
        # The last renewal was at most one pause before.
        assert loop.time() - disconnected_at_s >= FAST.duration_s - 2 * FAST.retry_s

        api.unresponsive_to.clear()
        await successor.stop()
        await poll_until(lambda: disconnected.is_leader and disconnected.is_working)
        assert disconnected.terms == 2


async def test_a_permission_lasts_from_the_start_of_a_renewal(api: SimulatedApi) -> None:
    async def read_remaining_s(fence: WriteFence) -> None:
        raise ZeroDivisionError(fence.remaining_s)

    async with api.running() as config, Client(config) as client:
        clock = lambda: float(api.count_requests("GET") + api.count_requests("POST"))  # noqa: E731 - a second for each
        elector = LeaderElector(client, namespace="ns", name="lease", identity="r", clock=clock)
        with pytest.raises(ZeroDivisionError, match=str(LeaderElectionConfig().renew_deadline_s - 2)):
            await elector.run(read_remaining_s)


async def test_a_lease_that_changes_does_not_expire_however_old_its_times_are(api: SimulatedApi) -> None:
    old = "2001-01-01T00:00:00.000000Z"
    spec = {"holderIdentity": "far-away", "leaseDurationSeconds": 1, "acquireTime": old, "renewTime": old}
    api.put("lease", spec=spec)
    async with make_replicas(api, 1) as (waiting,):
        waiting.start()
        for _ in range(15):  # half a second longer than the lease's duration
            await asyncio.sleep(0.1)
            api.put("lease", spec=spec)
            assert not waiting.is_leader
        await poll_until(lambda: waiting.is_leader)


async def test_the_election_fails_and_releases_the_lease_if_the_leaders_work_returns(api: SimulatedApi) -> None:
    async def return_at_once(_: WriteFence) -> None:
        return None

    async with make_replicas(api, 1) as (replica,):
        with pytest.raises(RuntimeError, match="ended by itself"):
            await asyncio.wait_for(replica.elector.run(return_at_once), 60)
    assert read_holder(api) == ""


async def test_the_election_fails_and_releases_the_lease_at_an_unexpected_error_of_a_renewal(
    api: SimulatedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [OverflowError()]

    def format_time_but_fail_first(unix_s: float, *, with_microseconds: bool) -> str:
        if errors:
            raise errors.pop()
        return format_time(unix_s, with_microseconds=with_microseconds)

    async def break_renewal(_: WriteFence) -> None:
        monkeypatch.setattr("kubekit.lease.format_time", format_time_but_fail_first)
        await asyncio.Event().wait()

    async with make_replicas(api, 1) as (replica,):
        with pytest.raises(OverflowError):
            await asyncio.wait_for(replica.elector.run(break_renewal), 5)
    assert read_holder(api) == ""


@pytest.mark.parametrize(
    ("duration_s", "renew_deadline_s", "retry_s"),
    # At last, a leader that renews every 5 s, and starts no write in the last 5 of its 7 s, could hardly write.
    [(10, 10, 2), (10, 7, 7), (7, 10, 2), (10, 7, 0), (10, 4, 2), (10, 7, 5)],
)
def test_inconsistent_times_are_refused(duration_s: float, renew_deadline_s: float, retry_s: float) -> None:
    with pytest.raises(ConfigError, match="do not fit together"):
        LeaderElectionConfig(duration_s, renew_deadline_s, retry_s)
