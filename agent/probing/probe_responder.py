"""Answers probes on this node, by netserver and by the datagram responder, and announces the endpoint on the node.

The announcement is an annotation. It stays during a restart, because a rolling update must not change the plan. It is removed if nothing
has answered for `SILENCE_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from agent.node import OwnNode, OwnNodeWatch
from kubekit import logs
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import KubekitError
from kubekit.version import installed_version
from kubekit.waiting import Backoff, wait_until_set
from kubekit.wire import NODES
from netperf.contract import AGENT_ANNOTATION, Announcement, encode_announcement
from netperf.probers.netserver import Netserver
from netperf.probers.responder import DatagramResponder

log = logs.get("agent.probing")

SILENCE_S = 30.0
"""Time without an answer after which the announcement is removed."""
UNANNOUNCED_CHECK_INTERVAL_S, ANNOUNCED_CHECK_INTERVAL_S = 0.25, 5.0
"""Intervals of comparing the announcement: often while there is none, because the plan waits for it."""
MIN_PATCH_PAUSE_S = 1.0
"""Pause after a patch, in which the watch shows its result."""


class ServerSettings(NamedTuple):
    """The node's address (an IP literal), the ports of netserver and of the datagram responder, and the passphrase, possibly empty."""

    address: str
    control_port: int
    datagram_port: int
    passphrase: bytes


class ProbeResponder:
    """Runs netserver and the datagram responder on one address; ``binary`` is netserver's path, None if netperf is not installed."""

    def __init__(self, settings: ServerSettings, binary: str | None) -> None:
        self._settings = settings
        address, port, _, passphrase = settings
        self._netserver = Netserver(binary, address, port, passphrase) if binary is not None else None
        self._datagrams: DatagramResponder | None = None

    @property
    def problem(self) -> str:
        """The reason why the endpoint to announce (netserver's if it is installed) does not answer; empty if it answers."""
        if self._netserver is not None:
            return "" if self._netserver.listening.is_set() else f"netserver: {self._netserver.failure or 'starting'}"
        is_ready = self._datagrams is not None and self._datagrams.listening.is_set()
        return "" if is_ready else "the datagram responder is not listening"

    @property
    def announcement(self) -> Announcement | None:
        """The announcement for the node; None while the endpoint to announce does not answer."""
        if self.problem:
            return None
        address, port, datagram_port, _ = self._settings
        if self._netserver is not None:
            return Announcement(address, port, installed_version(), "netperf")
        return Announcement(address, datagram_port, installed_version(), "datagrams")

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._answer_datagrams(), name="datagram-responder")
            if self._netserver is not None:
                group.create_task(self._netserver.run(), name="netserver")

    async def _answer_datagrams(self) -> None:
        backoff = Backoff()  # Never reset: once the responder listens, only cancellation ends it.
        address, _, port, passphrase = self._settings
        while True:
            self._datagrams = DatagramResponder(address, port, passphrase)
            try:
                await self._datagrams.run()
            except OSError as error:
                where = f"{address}:{port}"
                log.log_change("responder", str(error), "cannot answer datagrams", where=where, error=error.strerror)
            await asyncio.sleep(backoff.next_delay_s())


async def maintain_announcement(
    client: Client, node_watch: OwnNodeWatch, current_announcement: Callable[[], Announcement | None]
) -> None:
    """Keep the node's annotation equal to what ``current_announcement`` returns; remove it after `SILENCE_S` without an announcement."""
    loop = asyncio.get_running_loop()
    backoff, answered_at_s = Backoff(), loop.time()
    while True:
        node = await node_watch.wait_for_node()
        announcement = current_announcement()
        if announcement:
            answered_at_s = loop.time()
        text = encode_announcement(announcement) if announcement else None
        published_text = (node.metadata.annotations or {}).get(AGENT_ANNOTATION)
        if text != published_text and (text is not None or loop.time() - answered_at_s >= SILENCE_S):
            try:
                body = {"metadata": {"annotations": {AGENT_ANNOTATION: text}}}
                await client.patch(NODES, node.metadata.name, body, OwnNode, patch_type=MERGE_PATCH)
            except KubekitError as error:
                log.log_change("announce", error.kind, "cannot announce this agent on its node", error=error)
                await asyncio.sleep(backoff.next_delay_s())
                continue
            backoff.reset()
            log.log_change("announce", "", "this agent can be announced again")
            log.info("announced" if text else "announcement withdrawn: nothing answers here", value=text)
            await asyncio.sleep(MIN_PATCH_PAUSE_S)
        interval_s = ANNOUNCED_CHECK_INTERVAL_S if text is not None else UNANNOUNCED_CHECK_INTERVAL_S
        await wait_until_set(node_watch.changed, interval_s)
