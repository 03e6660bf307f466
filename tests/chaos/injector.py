"""Injects faults, and takes back those that last a while."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError, KubekitError
from kubekit.wire import CONFIGMAPS, NODES, ConfigMap, Node
from lab.installation import Installation, result_maps
from lab.nodes import build_node
from netperf.contract import CAPACITY_ANNOTATION, HOME_NAMESPACE, PLAN_SELECTOR, RESULTS_NAME, ZONE_LABEL
from netperf.errors import OBJECT_LIMIT_BYTES, size_bytes
from tests.chaos.api_faults import ApiFaults
from tests.chaos.faults import Fault
from tests.chaos.journal import Journal
from tests.chaos.restarter import Restarter, send

_FILLER = "chaos-filler"
_TRY_AGAIN_S = 1.0
LATE_S = 65.0
"""An API server works on a request for a minute at most, and says nothing of it to those that have gone."""


class FaultInjector:
    """Injects faults into a lab.

    Args:
        client: the administrator's.
        installation: our programs and the lab they run in.
        restarter: knows which processes run.
        journal: told of what is taken back.
    """

    def __init__(self, client: Client, installation: Installation, restarter: Restarter, journal: Journal) -> None:
        self._client, self._lab, self._restarter, self._journal = client, installation.lab, restarter, journal
        self._links = self._lab.wan.links()
        self._later: dict[asyncio.Task[None], Fault] = {}
        self._answered: dict[Fault, asyncio.Future[bool]] = {}
        self._by_kind: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "kill": self._kill,
            "kill-control-plane": self._kill,
            "kill-helper": self._kill,
            "pause": self._pause,
            "pause-control-plane": self._pause,
            "kill-netserver": self._netserver,
            "pause-netserver": self._netserver,
            "cut": self._change_link,
            "latency": self._change_link,
            "results-delete": self._delete_results,
            "results-corrupt": self._corrupt_results,
            "results-fill": self._fill_results,
            "plans-delete": self._delete_plans,
            "relabel": self._relabel,
            "node-delete": self._delete_node,
            **ApiFaults(client, installation.lab.control_plane, self._after).by_kind,
        }

    @property
    def pending(self) -> int:
        """Faults that last on."""
        return len(self._later)

    async def inject(self, fault: Fault) -> str:
        """Inject one fault; why it could not be done, else nothing."""
        answered = False
        told = self._answered[fault] = asyncio.get_running_loop().create_future()
        try:
            await self._by_kind[fault.kind](fault)
            answered = True
        except KubekitError as error:
            # What a request of ours would hit is away itself, by an earlier fault.
            answered = isinstance(error, ApiError) and error.status < 500
            return str(error)
        finally:
            told.set_result(answered)
        return ""

    async def revert_all(self, patience_s: float) -> list[str]:
        """Wait until everything that lasts a while is over; what is not, in time."""
        ends = time.monotonic() + patience_s
        while self._later and time.monotonic() < ends:
            await asyncio.wait(set(self._later), timeout=ends - time.monotonic())
        return [
            f"{fault.kind} {fault.target} of {fault.at_s:.0f} s".replace("  ", " ") for fault in self._later.values()
        ]

    async def cancel(self) -> None:
        """Forget what was to be taken back."""
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)

    async def _kill(self, fault: Fault) -> None:
        program = self._restarter.program(fault.target)
        if program is not None:
            send(program.pid, signal.SIGKILL)

    async def _pause(self, fault: Fault) -> None:
        program = self._restarter.program(fault.target)
        if program is not None:
            send(program.pid, signal.SIGSTOP)
            self._after(fault, partial(send, program.pid, signal.SIGCONT))

    async def _netserver(self, fault: Fault) -> None:
        for pid in self._restarter.netservers(fault.target):
            send(pid, signal.SIGSTOP if fault.for_s else signal.SIGKILL)
            if fault.for_s:
                self._after(fault, partial(send, pid, signal.SIGCONT))

    async def _change_link(self, fault: Fault) -> None:
        one, other = fault.target.split("/")
        usual = self._links[min(one, other), max(one, other)]
        if fault.kind == "cut":
            self._lab.wan.change_link(one, other, loss=1.0)
        else:
            self._lab.wan.change_link(one, other, rtt_us=usual.rtt_us * fault.amount)
        self._after(fault, partial(self._lab.wan.set_link, one, other, usual))

    async def _delete_results(self, _: Fault) -> None:
        for found in await result_maps(self._client, RESULTS_NAME):
            await self._client.delete(CONFIGMAPS, found.metadata.name, namespace=HOME_NAMESPACE)

    async def _corrupt_results(self, fault: Fault) -> None:
        for found in await result_maps(self._client, RESULTS_NAME):
            data = found.data or {}
            hit = sorted(data)[: max(1, round(len(data) * fault.amount))]
            await self._write(found.metadata.name, {key: data[key][: len(data[key]) // 2] for key in hit})

    async def _fill_results(self, fault: Fault) -> None:
        async def empty() -> None:
            for found in await result_maps(self._client, RESULTS_NAME):
                if _FILLER in (found.data or {}):
                    await self._write(found.metadata.name, {_FILLER: None})

        # Somebody notices after a while; no program of ours may remove what is not ours.
        self._after(fault, empty)
        for found in await result_maps(self._client, RESULTS_NAME):
            room = OBJECT_LIMIT_BYTES - size_bytes(found.data or {}) - 100
            if room > 0:
                # Random, as somebody's logs would be.
                await self._write(found.metadata.name, {_FILLER: secrets.token_hex(room // 2)})

    async def _write(self, name: str, data: Mapping[str, str | None]) -> None:
        body = {"data": data}
        await self._client.patch(CONFIGMAPS, name, body, ConfigMap, kind=MERGE_PATCH, namespace=HOME_NAMESPACE)

    async def _delete_plans(self, _: Fault) -> None:
        for plan in await self._client.list(
            CONFIGMAPS, ConfigMap, namespace=HOME_NAMESPACE, label_selector=PLAN_SELECTOR
        ):
            await self._client.delete(CONFIGMAPS, plan.metadata.name, namespace=HOME_NAMESPACE)

    async def _relabel(self, fault: Fault) -> None:
        node = self._lab.node(fault.target).node
        zones = [n.node.zone for n in self._lab.nodes if n.node.zone not in {"", node.zone}]
        self._after(fault, lambda: self._label(fault.target, node.zone))
        await self._label(fault.target, zones[0])

    async def _label(self, node: str, zone: str) -> None:
        body: dict[str, Any] = {"metadata": {"labels": {ZONE_LABEL: zone}}}
        try:
            await self._client.patch(NODES, node, body, Node, kind=MERGE_PATCH)
        except ApiError as error:
            if not error.not_found:
                raise  # A node that was deleted meanwhile comes back with its own zone.

    async def _delete_node(self, fault: Fault) -> None:
        network = self._lab.node(fault.target)

        async def make() -> None:
            body = build_node(network, self._lab.name)
            body["metadata"]["annotations"][CAPACITY_ANNOTATION] = str(network.node.nic_bps)
            try:
                await self._client.create(NODES, body, Node)
            except ApiError as error:
                if not error.already_exists:
                    raise

        self._after(fault, make)
        await self._client.delete(NODES, fault.target)

    async def _until_done(self, act: Callable[[], object]) -> None:
        while True:
            try:
                if inspect.isawaitable(done := act()):
                    await done
                return
            except KubekitError:
                await asyncio.sleep(_TRY_AGAIN_S)

    def _after(self, fault: Fault, act: Callable[[], object]) -> None:
        """Take a fault back by ``act``, which may be awaitable, once its time is over."""

        async def later() -> None:
            await asyncio.sleep(fault.for_s)
            # An API server that stood still does what it was asked when it goes on: what was not made yet cannot be taken back,
            # and what nobody answered may be made until the server gives it up.
            answered = await self._answered[fault]
            await self._until_done(act)
            if not answered:
                await asyncio.sleep(LATE_S)
                await self._until_done(act)
            self._journal.write("over", kind=fault.kind, target=fault.target)

        task = asyncio.create_task(later())
        self._later[task] = fault
        task.add_done_callback(self._later.pop)
