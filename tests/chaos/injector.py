"""Injects faults, takes back those that last a while, and starts again what died, as a kubelet does."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
import psutil

from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError, KubekitError, UnreachableError
from kubekit.wire import CONFIGMAPS, NODES, ConfigMap, Node, Object, Resource
from lab.cluster import Lab
from lab.installation import list_result_configmaps
from lab.programs import Program
from netperf.contract import NETAWARE_NAMESPACE, PLAN_SELECTOR, RESULTS_NAME, ZONE_LABEL
from tests.chaos.faults import CONTROL_PLANE, HELPERS, Fault
from tests.support.etcd import create_client_context

_ADMISSION = "admissionregistration.k8s.io"
POLICIES = Resource(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", is_namespaced=False)
BINDINGS = Resource(
    _ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", is_namespaced=False
)
_POLICY_PREFIX = "chaos-"
_OURS = f"request.userInfo.username.startsWith('system:serviceaccount:{NETAWARE_NAMESPACE}:netaware-')"
_LATENCY_FACTOR, _CORRUPTED_SHARE = 4, 0.5
_TRY_AGAIN_S, _POLL_S, _ETCD_TIMEOUT_S = 1.0, 0.25, 5.0
LATE_S = 65.0
"""An API server works on a request for a minute at most, and says nothing of it to those that have gone."""
# A kubelet starts a container again at once, and later after 10 s and more; programs die more often than that.
_RESTART_AFTER_S = 1.0

log = logging.getLogger(__name__)


class FaultInjector:
    """Injects faults into a lab.

    Args:
        client: the administrator's.
        lab: with our programs.

    Attributes:
        crashes: programs of ours that ended by themselves.
        restarts: how many programs were started again.
    """

    def __init__(self, client: Client, lab: Lab) -> None:
        self._client, self._lab = client, lab
        self._links = lab.wan.read_links()
        self._later: dict[asyncio.Task[None], Fault] = {}
        self._answered: dict[Fault, asyncio.Future[bool]] = {}
        self.crashes: list[str] = []
        self.restarts = 0
        self._by_kind: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "kill": self._kill,
            "kill-control-plane": self._kill,
            "kill-helper": self._kill,
            "pause": self._pause,
            "pause-control-plane": self._pause,
            "cut": self._change_link,
            "latency": self._change_link,
            "results-delete": self._delete_results,
            "results-corrupt": self._corrupt_results,
            "plans-delete": self._delete_plans,
            "relabel": self._relabel,
            "deny": self._deny,
            "etcd-full": self._fill_etcd,
        }

    @property
    def pending(self) -> int:
        """Faults that last on."""
        return len(self._later)

    async def inject(self, fault: Fault) -> None:
        """Inject one fault; one that cannot be done is logged."""
        answered, error = False, ""
        future = self._answered[fault] = asyncio.get_running_loop().create_future()
        try:
            await self._by_kind[fault.kind](fault)
            answered = True
        except KubekitError as reason:
            # What a request of ours would hit is away itself, by an earlier fault.
            answered, error = isinstance(reason, ApiError) and reason.status < 500, str(reason)
        finally:
            future.set_result(answered)
        log.info("fault %s %s for %.1f s %s", fault.kind, fault.target, fault.for_s, error)

    async def revert_all(self, patience_s: float) -> list[str]:
        """Wait until everything that lasts a while is over; what is not, in time."""
        ends = time.monotonic() + patience_s
        while self._later and time.monotonic() < ends:
            await asyncio.wait(set(self._later), timeout=ends - time.monotonic())
        return [f"a fault is not reverted: {fault}" for fault in self._later.values()]

    async def cancel(self) -> None:
        """Forget what was to be taken back, and wake all programs: a stopped one cannot end in good order."""
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)
        for program in self._lab.programs:
            with suppress(psutil.Error):
                for process in program.process_tree():
                    _send(process.pid, signal.SIGCONT)

    async def restart_dead(self) -> None:
        """Start again what died, until cancelled."""
        dead_since: dict[str, float] = {}
        while True:
            for program in self._lab.programs:
                if program.poll() is None:
                    dead_since.pop(program.name, None)
                elif time.monotonic() - dead_since.setdefault(program.name, time.monotonic()) >= _RESTART_AFTER_S:
                    del dead_since[program.name]
                    if program.name not in (*CONTROL_PLANE, *HELPERS) and program.poll() != -signal.SIGKILL:
                        self.crashes.append(f"crash: {program.name} ended by itself with code {program.poll()}")
                    log.info("restarts %s, which ended with %s", program.name, program.poll())
                    self.restarts += 1
                    await self._lab.programs.restart(program)
            await asyncio.sleep(_POLL_S)

    def _program(self, name: str) -> Program | None:
        return next((p for p in self._lab.programs if p.name == name and p.poll() is None), None)

    async def _kill(self, fault: Fault) -> None:
        if program := self._program(fault.target):
            _send(program.pid, signal.SIGKILL)

    async def _pause(self, fault: Fault) -> None:
        if program := self._program(fault.target):
            _send(program.pid, signal.SIGSTOP)
            self._after(fault, partial(_send, program.pid, signal.SIGCONT))

    async def _change_link(self, fault: Fault) -> None:
        one, other = fault.target.split("/")
        usual = self._links[min(one, other), max(one, other)]
        if fault.kind == "cut":
            self._lab.wan.change_link(one, other, loss=1.0)
        else:
            self._lab.wan.change_link(one, other, rtt_us=usual.rtt_us * _LATENCY_FACTOR)
        self._after(fault, partial(self._lab.wan.set_link, one, other, usual))

    async def _delete_results(self, _: Fault) -> None:
        for found in await list_result_configmaps(self._client, RESULTS_NAME):
            await self._client.delete(CONFIGMAPS, found.metadata.name, namespace=NETAWARE_NAMESPACE)

    async def _corrupt_results(self, _: Fault) -> None:
        for found in await list_result_configmaps(self._client, RESULTS_NAME):
            data = found.data or {}
            halves = {
                key: data[key][: len(data[key]) // 2] for key in sorted(data)[: round(len(data) * _CORRUPTED_SHARE)]
            }
            await self._client.patch(
                CONFIGMAPS,
                found.metadata.name,
                {"data": halves},
                ConfigMap,
                patch_type=MERGE_PATCH,
                namespace=NETAWARE_NAMESPACE,
            )

    async def _delete_plans(self, _: Fault) -> None:
        for plan in await self._client.list(
            CONFIGMAPS, ConfigMap, namespace=NETAWARE_NAMESPACE, label_selector=PLAN_SELECTOR
        ):
            await self._client.delete(CONFIGMAPS, plan.metadata.name, namespace=NETAWARE_NAMESPACE)

    async def _relabel(self, fault: Fault) -> None:
        node = self._lab.network_of(fault.target).node

        async def label(zone: str) -> None:
            body = {"metadata": {"labels": {ZONE_LABEL: zone}}}
            await self._client.patch(NODES, fault.target, body, Node, patch_type=MERGE_PATCH)

        self._after(fault, partial(label, node.zone))
        await label(next(n.node.zone for n in self._lab.networks if n.node.zone not in {"", node.zone}))

    async def _deny(self, fault: Fault) -> None:
        """A policy forbids our programs to write one kind of object."""
        name = f"{_POLICY_PREFIX}{fault.at_s:g}"

        async def end() -> None:
            for resource in (BINDINGS, POLICIES):
                try:
                    await self._client.delete(resource, name)
                except ApiError as error:
                    if not error.is_not_found:
                        raise

        self._after(fault, end)
        for resource, spec in zip((POLICIES, BINDINGS), _policy(name, fault.target), strict=True):
            await self._client.create(resource, {"metadata": {"name": name}, "spec": spec}, Object)

    async def _fill_etcd(self, fault: Fault) -> None:
        self._after(fault, partial(self._alarm, "DEACTIVATE"))
        await self._alarm("ACTIVATE")

    async def _alarm(self, action: str) -> None:
        """The alarm that etcd raises itself once its quota is used up; while it is on, it refuses whatever needs space."""
        plane = self._lab.control_plane
        timeout = aiohttp.ClientTimeout(total=_ETCD_TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                body, context = {"action": action, "alarm": "NOSPACE"}, create_client_context(plane)
                async with session.post(f"{plane.etcd}/v3/maintenance/alarm", json=body, ssl=context) as answer:
                    answer.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(f"etcd: {error!r}") from error

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
            log.info("over %s %s", fault.kind, fault.target)

        task = asyncio.create_task(later())
        self._later[task] = fault
        task.add_done_callback(self._later.pop)


def _policy(name: str, resource: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A policy and its binding."""
    rule = {
        "apiGroups": ["*"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": [resource, f"{resource}/*"],
        "scope": "*",
    }
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "ours", "expression": _OURS}],
        "validations": [{"expression": "false", "message": "denied by tests.chaos", "reason": "Forbidden"}],
    }
    return policy, {"policyName": name, "validationActions": ["Deny"]}


def _send(pid: int, number: signal.Signals) -> None:
    """A signal, or nothing when the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
