"""Leader election on a Lease: leadership ends by the local clock, and writes are fenced.

The holder renews the lease every ``retry_s``. Its permission to write ends ``renew_deadline_s`` after the *start* of its last successful
renewal; others may take over only after ``duration_s``, which is longer. The permission ends at a time of the monotonic clock
(CLOCK_BOOTTIME if available, which includes suspended time), so a process that was suspended has no permission when it resumes.
``Client.with_fence`` checks the permission when a write is sent, and ends the write's timeout with the permission.

A proxy or the server may apply a write after its timeout. So no write starts in the last ``retry_s`` of the permission: a late write
has ``duration_s - renew_deadline_s + retry_s`` to take effect before another process may lead. A lease is released early only if all
writes of the last ``duration_s`` have responses.

The age of a lease is the time since this process saw its last change. The times in the lease are not used, so clocks may differ.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kubekit import logs
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError, KubekitError
from kubekit.fence import WriteFence, boot_clock
from kubekit.wire import LEASES, Object, ObjectMeta, Wire, format_time

log = logs.get("kubekit.lease")

WRITES_TIMEOUT_S = 2.0
"""Time for which a stopping leader waits for responses to its writes before it releases the lease."""
RELEASE_TIMEOUT_S = 2.0
"""Longest time that a release takes. If it fails, the next leader waits until the lease expires."""


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


@dataclass(frozen=True)
class LeaderElectionConfig:
    """Times of leader election, with ``2 retry_s < renew_deadline_s < duration_s``.

    If a leader crashes, failover takes about ``duration_s`` plus up to 2.4 ``retry_s`` and the time of a request.

    Attributes:
        duration_s: others may take over after this time without a renewal; client-go's default is 15 s.
        renew_deadline_s: the permission to write lasts this long after a renewal, and no write starts in its last ``retry_s``;
            client-go's default is 10 s.
        retry_s: interval of renewals and of attempts to acquire the lease; client-go's default is 2 s.
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


class LeaderElector:
    """A candidate of one election; ``fence`` is its permission to write."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        config: LeaderElectionConfig | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._client = client.with_dedicated_connection()
        self._namespace, self._name, self._identity = namespace, name, identity
        self._config, self._clock = config or LeaderElectionConfig(), clock
        self.fence = WriteFence(clock, reserve_s=self._config.retry_s)
        self._observed_holder = self._observed_version = ""
        self._observed_at = float("-inf")
        self._may_release = False

    async def run(self, on_started_leading: Callable[[WriteFence], Awaitable[None]]) -> None:
        """Wait for leadership, run ``on_started_leading``, cancel it when leadership ends, and wait again; until cancelled.

        At the end a held lease is released, unless a write of the last ``duration_s`` has no response.

        Raises:
            RuntimeError: ``on_started_leading`` returned. Its exceptions, and unexpected ones of a renewal, are raised unchanged.
        """
        self._may_release = False
        try:
            while True:
                await self._wait_for_leadership()
                log.info("leading", lease=self._name, identity=self._identity)
                await self._run_while_leading(on_started_leading)
                log.warning("leadership lost", lease=self._name, identity=self._identity)
        finally:
            await self._release()

    async def _run_while_leading(self, on_started_leading: Callable[[WriteFence], Awaitable[None]]) -> None:
        work = asyncio.ensure_future(on_started_leading(self.fence))
        renewal = asyncio.create_task(self._renew_until_lost())
        try:
            await asyncio.wait({work, renewal}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                raise RuntimeError("the leader's work ended by itself")
            renewal.result()
        finally:
            renewal.cancel()
            try:
                self._may_release = await self._end_writing()
            finally:
                work.cancel()
                await asyncio.gather(work, renewal, return_exceptions=True)

    async def _end_writing(self) -> bool:
        """Stop new writes, and wait for responses to those in flight, before their tasks are cancelled.

        Returns whether the lease may be released: not if it is lost, nor after a write without a response, for which the next leader
        must wait.
        """
        if not self.fence.is_held:
            return False
        self.fence.revoke()
        if await self.fence.wait_for_writes(WRITES_TIMEOUT_S, self._config.duration_s):
            return True
        log.info("lease not released: a write had no response", lease=self._name)
        return False

    async def _wait_for_leadership(self) -> None:
        while not await self._try_acquire_or_renew():  # noqa: ASYNC110 - each iteration sends requests
            await asyncio.sleep(self._config.retry_s * random.uniform(0.8, 1.2))

    async def _renew_until_lost(self) -> None:
        while (remaining_s := self.fence.remaining_s) > 0:
            await asyncio.sleep(min(self._config.retry_s, remaining_s))
            # A server that does not respond must not prolong the permission.
            await self._try_acquire_or_renew(timeout_s=self.fence.remaining_s)
        self.fence.revoke()

    async def _try_acquire_or_renew(self, timeout_s: float = float("inf")) -> bool:
        """Acquire or renew the lease once, within ``timeout_s`` and twice ``retry_s``; returns whether this process holds it.

        Extends the fence if it does, and revokes the fence if another process does.
        """
        if timeout_s <= 0:
            return False
        started_at = self._clock()
        try:
            async with asyncio.timeout(min(self._config.retry_s * 2, timeout_s)):
                is_holder = await self._claim_lease()
        except (KubekitError, TimeoutError) as error:
            log.log_change(self._name, type(error).__name__, "lease not reached", lease=self._name, error=error)
            return False
        log.log_change(self._name, "", "lease reached again", lease=self._name)
        if is_holder:
            self.fence.extend(started_at + self._config.renew_deadline_s)
        else:
            self.fence.revoke()
        return is_holder

    async def _claim_lease(self) -> bool:
        """Write this process into the lease if it is the holder already, or if the lease is free; returns whether it is the holder."""
        try:
            lease = await self._client.get(LEASES, self._name, Lease, namespace=self._namespace)
        except ApiError as error:
            if not error.is_not_found:
                raise
            return await self._write_lease(None)
        holder = lease.spec.holder_identity or ""
        self._observe(holder, lease.metadata.resource_version)
        duration_s = lease.spec.lease_duration_seconds or self._config.duration_s
        if holder not in {"", self._identity} and self._clock() < self._observed_at + duration_s:
            return False
        return await self._write_lease(lease)

    async def _write_lease(self, old: Lease | None) -> bool:
        now = format_time(time.time(), with_microseconds=True)
        old_spec = old.spec if old else LeaseSpec()
        is_renewal = old_spec.holder_identity == self._identity
        spec = LeaseSpec(
            holder_identity=self._identity,
            # Rounded up: others must wait at least as long as the permission lasts.
            lease_duration_seconds=math.ceil(self._config.duration_s),
            acquire_time=old_spec.acquire_time if is_renewal else now,
            renew_time=now,
            lease_transitions=(old_spec.lease_transitions or 0) + (0 if is_renewal or old is None else 1),
        )
        lease = await self._create_or_replace(old, spec)
        if lease is not None:
            self._observe(self._identity, lease.metadata.resource_version)
        return lease is not None

    async def _create_or_replace(self, old: Lease | None, spec: LeaseSpec) -> Lease | None:
        """Create the lease, or replace the spec of ``old``; returns None if another process wrote the lease since it was read."""
        meta = old.metadata if old else ObjectMeta(name=self._name, namespace=self._namespace)
        body = {**LEASES.type_meta, "metadata": meta, "spec": spec}
        try:
            if old is None:
                return await self._client.create(LEASES, body, Lease, namespace=self._namespace)
            return await self._client.replace(LEASES, self._name, body, Lease, namespace=self._namespace)
        except ApiError as error:
            if error.is_conflict or error.is_already_exists:
                return None
            raise

    def _observe(self, holder: str, version: str) -> None:
        """Remember when this process saw holder or version of the lease change, because the lease expires ``duration_s`` later."""
        if (holder, version) != (self._observed_holder, self._observed_version):
            self._observed_holder, self._observed_version, self._observed_at = holder, version, self._clock()

    async def _release(self) -> None:
        """Clear the lease's holder, so that the next leader need not wait for ``duration_s``."""
        if not (self._may_release or self.fence.is_held):
            return
        self.fence.revoke()
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                # A renewal that was in flight at the cancellation may change the lease after it was read.
                for _ in range(2):
                    lease = await self._client.get(LEASES, self._name, Lease, namespace=self._namespace)
                    if lease.spec.holder_identity != self._identity:
                        return
                    # Transitions are kept, as by client-go: they count the changes of the holder.
                    transitions = lease.spec.lease_transitions
                    spec = LeaseSpec(holder_identity="", lease_duration_seconds=1, lease_transitions=transitions)
                    if await self._create_or_replace(lease, spec):
                        return
        except (KubekitError, TimeoutError) as error:
            log.info("lease not released", lease=self._name, error=error)
