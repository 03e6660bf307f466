"""Injects faults, reverts them after their duration, and restarts programs as a kubelet does."""

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
from kubekit.wire import CONFIGMAPS, NODES, ConfigMap, Node, Object
from lab.cluster import Lab
from lab.installation import list_result_configmaps
from lab.programs import Program
from lab.topology import zone_pair
from netperf.contract import NETAWARE_NAMESPACE, PLAN_SELECTOR, RESULTS_NAME, ZONE_LABEL
from tests.chaos.faults import CLUSTER_COMPONENTS, CONTROL_PLANE, Fault
from tests.support.admission import POLICIES, POLICY_BINDINGS
from tests.support.etcd import create_client_context

_POLICY_PREFIX = "chaos-"
_IS_OUR_USER = f"request.userInfo.username.startsWith('system:serviceaccount:{NETAWARE_NAMESPACE}:netaware-')"
_LATENCY_FACTOR, _CORRUPTED_SHARE = 4, 0.5
_RETRY_S, _POLL_S, _ETCD_TIMEOUT_S = 1.0, 0.25, 5.0
LATE_WRITE_S = 65.0
"""How long an API server may still execute a request whose client gave up: its request timeout is a minute."""
# A kubelet backs off from 10 s; programs are killed more often here.
_RESTART_DELAY_S = 1.0

log = logging.getLogger(__name__)


class FaultInjector:
    """Injects faults into a lab, with the administrator's rights.

    Attributes:
        crashes: a violation for each program of ours that ended by itself.
        restarts: number of restarted programs.
    """

    def __init__(self, client: Client, lab: Lab) -> None:
        self._client, self._lab = client, lab
        self._links = lab.wan.read_links()
        self._reverts: dict[asyncio.Task[None], Fault] = {}
        self._was_answered: dict[Fault, asyncio.Future[bool]] = {}
        self.crashes: list[str] = []
        self.restarts = 0
        self._inject_by_kind: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "kill-program": self._kill,
            "kill-control-plane": self._kill,
            "kill-component": self._kill,
            "pause-program": self._pause,
            "pause-control-plane": self._pause,
            "cut-link": self._change_link,
            "slow-link": self._change_link,
            "delete-results": self._delete_results,
            "corrupt-results": self._corrupt_results,
            "delete-plans": self._delete_plans,
            "relabel-node": self._relabel_node,
            "deny-writes": self._deny_writes,
            "fill-etcd": self._fill_etcd,
        }

    @property
    def pending_reverts(self) -> int:
        """Number of faults that are not reverted yet."""
        return len(self._reverts)

    async def inject(self, fault: Fault) -> None:
        """Inject a fault; log why it cannot be injected."""
        answered, reason = False, ""
        future = self._was_answered[fault] = asyncio.get_running_loop().create_future()
        try:
            await self._inject_by_kind[fault.kind](fault)
            answered = True
        except KubekitError as error:
            # An earlier fault may have stopped what this one needs.
            answered, reason = isinstance(error, ApiError) and error.status < 500, str(error)
        finally:
            future.set_result(answered)
        log.info("fault %s %s for %.1f s %s", fault.kind, fault.target, fault.duration_s, reason)

    async def wait_for_reverts(self, timeout_s: float) -> list[str]:
        """Wait until all faults are reverted; returns a violation for each that is not reverted in time."""
        if self._reverts:
            await asyncio.wait(set(self._reverts), timeout=timeout_s)
        return [f"a fault is not reverted: {fault}" for fault in self._reverts.values()]

    async def cancel(self) -> None:
        """Cancel all reverts, and continue stopped programs, which could not end otherwise."""
        for task in self._reverts:
            task.cancel()
        await asyncio.gather(*self._reverts, return_exceptions=True)
        for program in self._lab.programs:
            with suppress(psutil.Error):
                for process in program.find_process_tree():
                    _send_signal(process.pid, signal.SIGCONT)

    async def restart_ended_programs(self) -> None:
        """Restart programs that ended, until cancelled."""
        ended_at: dict[str, float] = {}
        while True:
            for program in self._lab.programs:
                if program.poll() is None:
                    ended_at.pop(program.name, None)
                elif time.monotonic() - ended_at.setdefault(program.name, time.monotonic()) >= _RESTART_DELAY_S:
                    del ended_at[program.name]
                    if program.name not in (*CONTROL_PLANE, *CLUSTER_COMPONENTS) and program.poll() != -signal.SIGKILL:
                        self.crashes.append(f"crash: {program.name} ended by itself with code {program.poll()}")
                    log.info("restarts %s, which ended with %s", program.name, program.poll())
                    self.restarts += 1
                    await self._lab.programs.restart(program)
            await asyncio.sleep(_POLL_S)

    def _find_running_program(self, name: str) -> Program | None:
        return next((p for p in self._lab.programs if p.name == name and p.poll() is None), None)

    async def _kill(self, fault: Fault) -> None:
        if program := self._find_running_program(fault.target):
            _send_signal(program.pid, signal.SIGKILL)

    async def _pause(self, fault: Fault) -> None:
        if program := self._find_running_program(fault.target):
            _send_signal(program.pid, signal.SIGSTOP)
            self._revert_later(fault, partial(_send_signal, program.pid, signal.SIGCONT))

    async def _change_link(self, fault: Fault) -> None:
        zones = zone_pair(*fault.target.split("/"))
        original = self._links[zones]
        change = {"loss": 1.0} if fault.kind == "cut-link" else {"rtt_us": original.rtt_us * _LATENCY_FACTOR}
        self._lab.wan.change_link(*zones, **change)
        self._revert_later(fault, partial(self._lab.wan.set_link, *zones, original))

    async def _delete_results(self, _: Fault) -> None:
        for results in await list_result_configmaps(self._client, RESULTS_NAME):
            await self._client.delete(CONFIGMAPS, results.metadata.name, namespace=NETAWARE_NAMESPACE)

    async def _corrupt_results(self, _: Fault) -> None:
        for results in await list_result_configmaps(self._client, RESULTS_NAME):
            data, name = results.data or {}, results.metadata.name
            keys = sorted(data)[: round(len(data) * _CORRUPTED_SHARE)]
            patch = {"data": {key: data[key][: len(data[key]) // 2] for key in keys}}
            await self._client.patch(CONFIGMAPS, name, patch, ConfigMap, namespace=NETAWARE_NAMESPACE)

    async def _delete_plans(self, _: Fault) -> None:
        namespace = NETAWARE_NAMESPACE
        for plan in await self._client.list(CONFIGMAPS, ConfigMap, namespace=namespace, label_selector=PLAN_SELECTOR):
            await self._client.delete(CONFIGMAPS, plan.metadata.name, namespace=namespace)

    async def _relabel_node(self, fault: Fault) -> None:
        zone = self._lab.network_of(fault.target).node.zone
        zones = [network.node.zone for network in self._lab.networks]

        async def set_zone(label: str) -> None:
            patch = {"metadata": {"labels": {ZONE_LABEL: label}}}
            await self._client.patch(NODES, fault.target, patch, Node, patch_type=MERGE_PATCH)

        self._revert_later(fault, partial(set_zone, zone))
        await set_zone(next(other for other in zones if other not in {"", zone}))

    async def _deny_writes(self, fault: Fault) -> None:
        """Forbid our programs to write a resource, by an admission policy."""
        name = f"{_POLICY_PREFIX}{fault.at_s:g}"

        async def delete_policy() -> None:
            for resource in (POLICY_BINDINGS, POLICIES):
                try:
                    await self._client.delete(resource, name)
                except ApiError as error:
                    if not error.is_not_found:
                        raise

        self._revert_later(fault, delete_policy)
        specs = _build_policy_and_binding(name, fault.target)
        for resource, spec in zip((POLICIES, POLICY_BINDINGS), specs, strict=True):
            await self._client.create(resource, {"metadata": {"name": name}, "spec": spec}, Object)

    async def _fill_etcd(self, fault: Fault) -> None:
        self._revert_later(fault, partial(self._send_alarm, "DEACTIVATE"))
        await self._send_alarm("ACTIVATE")

    async def _send_alarm(self, action: str) -> None:
        """Activate or deactivate the alarm of an etcd whose quota is used up, which makes etcd refuse writes."""
        plane = self._lab.control_plane
        timeout = aiohttp.ClientTimeout(total=_ETCD_TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                body, context = {"action": action, "alarm": "NOSPACE"}, create_client_context(plane)
                async with session.post(f"{plane.etcd}/v3/maintenance/alarm", json=body, ssl=context) as answer:
                    answer.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(f"etcd: {error!r}") from error

    async def _retry_until_done(self, revert: Callable[[], object]) -> None:
        while True:
            try:
                if inspect.isawaitable(result := revert()):
                    await result
                return
            except KubekitError:
                await asyncio.sleep(_RETRY_S)

    def _revert_later(self, fault: Fault, revert: Callable[[], object]) -> None:
        """Call ``revert``, which may be awaitable, after the fault's duration."""

        async def wait_and_revert() -> None:
            await asyncio.sleep(fault.duration_s)
            # A request without a response may take effect until the API server gives it up, so it is reverted again
            # then.
            answered = await self._was_answered[fault]
            await self._retry_until_done(revert)
            if not answered:
                await asyncio.sleep(LATE_WRITE_S)
                await self._retry_until_done(revert)
            log.info("reverted %s %s", fault.kind, fault.target)

        task = asyncio.create_task(wait_and_revert())
        self._reverts[task] = fault
        task.add_done_callback(self._reverts.pop)


def _build_policy_and_binding(name: str, resource: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The specs of an admission policy that denies writes of a resource, and of its binding."""
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
        "matchConditions": [{"name": "ours", "expression": _IS_OUR_USER}],
        "validations": [{"expression": "false", "message": "denied by tests.chaos", "reason": "Forbidden"}],
    }
    return policy, {"policyName": name, "validationActions": ["Deny"]}


def _send_signal(pid: int, signal_number: signal.Signals) -> None:
    """Send a signal, unless the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal_number)
