"""Leader election on a Lease: leadership ends by the local clock, and writes are fenced.

The holder renews every ``retry_s``. It may write until ``renew_deadline_s`` after the *start* of its last successful renewal; others may
take over only after ``duration_s``, which is longer. The permission is a point on the monotonic clock (CLOCK_BOOTTIME if there is one,
which also counts suspended time), so a process that was frozen wakes up without it. ``Client.fenced`` checks it before each write and
limits the request's timeout to it.

A write may take effect after its timeout, if a proxy or the server delays it. So no write is sent in the last ``retry_s`` of the
permission, which leaves it ``duration_s - renew_deadline_s + retry_s`` until another may lead. The permission is checked when a request
is sent, after the connection is made. A lease is released early only if all our writes have been answered.

Others count a lease's age from when *they* last saw it change, not from the times in it, so clocks need not agree.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kubekit import logs
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError, KubekitError, NotLeaderError
from kubekit.waiting import wait_for
from kubekit.wire import LEASES, Object, ObjectMeta, Wire, format_time

log = logs.get("kubekit.lease")

WRITES_S = 2.0
"""How long an ending leader waits for answers to its writes before it releases the lease."""


class LeaseSpec(Wire, frozen=True):
    """coordination.k8s.io/v1 LeaseSpec."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True):
    """coordination.k8s.io/v1 Lease."""

    spec: LeaseSpec = LeaseSpec()


def boot_clock() -> float:
    """Seconds of a monotonic clock that includes suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True)
class LeaderElectionConfig:
    """Times of leader election: ``2 retry_s < renew_deadline_s < duration_s``; client-go's defaults are 2, 10 and 15 s.

    A permission is renewed every ``retry_s``, and no write begins in its last ``retry_s``. Failover takes at most ``duration_s`` plus two ``retry_s`` after a leader dies without giving up its lease.
    """

    duration_s: float = 10.0
    renew_deadline_s: float = 7.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not (self.retry_s > 0 and 2 * self.retry_s < self.renew_deadline_s < self.duration_s):
            raise ConfigError(
                "leaderElection",
                f"{self.duration_s:g}, {self.renew_deadline_s:g} and {self.retry_s:g} s do not fit together",
                "twice the retry period below the renewal deadline, and that below the duration",
            )


class WriteFence:
    """A permission to write that expires. A WriteGuard for ``Client.fenced``.

    Args:
        clock: a monotonic clock, seconds.
        reserve_s: no write begins in these last seconds.
    """

    def __init__(self, clock: Callable[[], float] = boot_clock, *, reserve_s: float = 0.0) -> None:
        self._clock, self._reserve_s, self._until = clock, reserve_s, float("-inf")
        self._open, self._quiet = 0, asyncio.Event()
        self._quiet.set()
        self._unanswered = float("-inf")

    @property
    def held(self) -> bool:
        """Whether writing is allowed now."""
        return self.left_s > 0

    @property
    def left_s(self) -> float:
        """Seconds for which writing is still allowed; 0 or less when it is not."""
        return self._until - self._clock()

    def extend(self, until: float) -> None:
        """Allow writing until a time of the clock."""
        self._until = until

    def end(self) -> None:
        """Withdraw the permission."""
        self._until = float("-inf")

    def check(self) -> float:
        """Return the seconds that are left for a write that begins now.

        Raises:
            NotLeaderError: too few are left.
        """
        left_s = self.left_s
        if left_s <= self._reserve_s:
            raise NotLeaderError("this replica does not lead: no write")
        return left_s

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Context of a write. A write that ends without an answer may still take effect."""
        self._open += 1
        self._quiet.clear()
        try:
            yield
        except BaseException:
            # Now, not when it began: it may have been sent at any time between.
            self._unanswered = self._clock()
            raise
        finally:
            self._open -= 1
            if not self._open:
                self._quiet.set()

    async def wait_for_writes(self, limit_s: float, since_s: float) -> bool:
        """Wait for open writes, at most ``limit_s``; returns whether none ended without an answer in the last ``since_s``."""
        return await wait_for(self._quiet, limit_s) and self._unanswered < self._clock() - since_s


class LeaderElector:
    """Take part in one election until cancelled."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaderElectionConfig | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._client, self._namespace, self._name, self._identity = (
            client.with_dedicated_connection(),
            namespace,
            name,
            identity,
        )
        self._timing, self._clock = timing or LeaderElectionConfig(), clock
        self.leadership = WriteFence(clock, reserve_s=self._timing.retry_s)
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = float("-inf")
        self._may_return = False

    async def run(self, lead: Callable[[WriteFence], Awaitable[None]]) -> None:
        """Wait for leadership, run ``lead``, and cancel it when leadership ends; then wait again.

        ``lead`` returning or raising ends ``run`` likewise. On cancellation a held lease is released.
        """
        self._may_return = False
        try:
            while True:
                await self._acquire()
                log.info("leading", lease=self._name, identity=self._identity)
                await self._lead(lead)
                log.warning("leadership lost", lease=self._name, identity=self._identity)
        finally:
            await self._release()

    async def _lead(self, lead: Callable[[WriteFence], Awaitable[None]]) -> None:
        work = asyncio.ensure_future(lead(self.leadership))
        renewal = asyncio.create_task(self._renew_until_lost())
        try:
            await asyncio.wait({work, renewal}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                msg = "the leader's work ended by itself"
                raise RuntimeError(msg)
        finally:
            renewal.cancel()
            try:
                self._may_return = await self._end_writing()
            finally:
                work.cancel()
                await asyncio.gather(work, renewal, return_exceptions=True)

    async def _end_writing(self) -> bool:
        """Stop new writes, and wait for the answers to those in flight, before their tasks are cancelled.

        Returns whether the lease may be released: after a write without an answer the next leader must wait.
        """
        if not self.leadership.held:
            return False
        self.leadership.end()
        if await self.leadership.wait_for_writes(WRITES_S, self._timing.duration_s):
            return True
        log.info("lease not released: a write was not answered", lease=self._name)
        return False

    async def _acquire(self) -> None:
        while not await self._try():  # noqa: ASYNC110 - each turn asks the API server
            await asyncio.sleep(self._timing.retry_s * random.uniform(0.8, 1.2))

    async def _renew_until_lost(self) -> None:
        while (left_s := self.leadership.left_s) > 0:
            await asyncio.sleep(min(self._timing.retry_s, left_s))
            # Within the permission, because a server that hangs must not prolong the work.
            await self._try(limit_s=self.leadership.left_s)
        self.leadership.end()

    async def _try(self, limit_s: float = float("inf")) -> bool:
        """Take or renew the lease once, within ``limit_s``; returns whether we hold it."""
        if limit_s <= 0:
            return False
        started = self._clock()
        try:
            async with asyncio.timeout(min(self._timing.retry_s * 2, limit_s)):
                ours = await self._take_or_renew()
        except (KubekitError, TimeoutError) as error:
            log.change(self._name, type(error).__name__, "lease not reached", lease=self._name, error=error)
            return False
        log.change(self._name, "", "lease reached again", lease=self._name)
        if ours:
            self.leadership.extend(started + self._timing.renew_deadline_s)
        else:
            self.leadership.end()
        return ours

    async def _take_or_renew(self) -> bool:
        try:
            lease = await self._client.get(LEASES, self._name, Lease, namespace=self._namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            return await self._write(None)
        seen = (lease.spec.holder_identity or "", lease.metadata.resource_version)
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        if seen[0] and seen[0] != self._identity:
            lasts_s = lease.spec.lease_duration_seconds or self._timing.duration_s
            if self._clock() < self._seen_at + lasts_s:
                return False
        return await self._write(lease)

    async def _write(self, old: Lease | None) -> bool:
        now = format_time(time.time(), micro=True)
        before = old.spec if old else LeaseSpec()
        renewing = before.holder_identity == self._identity
        spec = LeaseSpec(
            holder_identity=self._identity,
            # Rounded up: others must wait at least as long as we believe to lead.
            lease_duration_seconds=math.ceil(self._timing.duration_s),
            acquire_time=before.acquire_time if renewing else now,
            renew_time=now,
            lease_transitions=(before.lease_transitions or 0) + (0 if renewing or old is None else 1),
        )
        version = old.metadata.resource_version if old else ""
        meta = ObjectMeta(name=self._name, namespace=self._namespace, resource_version=version)
        body = {**LEASES.type_meta, "metadata": meta, "spec": spec}
        try:
            if old is None:
                lease = await self._client.create(LEASES, body, Lease, namespace=self._namespace)
            else:
                lease = await self._client.replace(LEASES, self._name, body, Lease, namespace=self._namespace)
        except ApiError as error:
            if error.conflict or error.already_exists:
                return False
            raise
        self._seen, self._seen_at = (self._identity, lease.metadata.resource_version), self._clock()
        return True

    async def _release(self) -> None:
        """Clear the lease's holder, so that the next leader need not wait; on failure it waits."""
        if not (self._may_return or self.leadership.held):
            return
        self.leadership.end()
        try:
            async with asyncio.timeout(2):
                if not await self._empty(self._seen[1]):
                    # A renewal that was on its way when we were told to end has taken effect.
                    lease = await self._client.get(LEASES, self._name, Lease, namespace=self._namespace)
                    if lease.spec.holder_identity == self._identity:
                        await self._empty(lease.metadata.resource_version)
        except (KubekitError, TimeoutError) as error:
            log.info("lease not released", lease=self._name, error=error)

    async def _empty(self, version: str) -> bool:
        meta = ObjectMeta(name=self._name, namespace=self._namespace, resource_version=version)
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
        body = {**LEASES.type_meta, "metadata": meta, "spec": spec}
        try:
            await self._client.replace(LEASES, self._name, body, Lease, namespace=self._namespace)
        except ApiError as error:
            if error.conflict:
                return False
            raise
        return True
