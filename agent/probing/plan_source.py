"""Watches the probe plan of the node's zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from agent.node import OwnNodeWatch
from kubekit import logs
from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.waiting import run_until
from kubekit.wire import CONFIGMAPS, ConfigMap
from netperf.plans import Probe, ZonePlan, decode_plan, plan_object_name
from netperf.refusals import PlanRefusedError

log = logs.get("agent.probing")


class PlanSource:
    """Watches the current plan, and calls a callback after changes.

    Attributes:
        node: name of the agent's node.
        plan: the current plan; None before the first, after the ConfigMap's deletion, and while the node has no zone.
        refusal_counts: numbers of refused plans and probes, by reason.
        on_change: called after each `set_plan`; must be quick and must not raise.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.plan: ZonePlan | None = None
        self.refusal_counts: Counter[str] = Counter()
        self.on_change: Callable[[], None] = lambda: None

    @property
    def own_probes(self) -> tuple[Probe, ...]:
        """The probes of the plan whose origin is this node."""
        return self.plan.probes_from(self.node) if self.plan is not None else ()

    def set_plan(self, plan: ZonePlan | None) -> None:
        """Replace the current plan, log the change, and call `on_change`."""
        self.plan = plan
        if plan is not None:
            epoch, probes = plan.epoch, len(self.own_probes)
            log.log_change("plan/use", str(epoch), "the plan changed", level="info", epoch=epoch, probes=probes)
        else:
            log.log_change("plan/use", "", "no plan: this node sends no probes")
        self.on_change()

    async def run(self, client: Client, node_watch: OwnNodeWatch, namespace: str) -> None:
        """Watch the ConfigMap with the plan of the node's zone until cancelled; the zone may change."""
        while True:
            zone = (await node_watch.wait_for_node()).zone
            if not zone:
                log.log_change("zone", "none", "this node has no zone label and takes no part in measuring")
                self.set_plan(None)
                await node_watch.changed.wait()
                continue
            log.log_change("zone", "", "this node has a zone", zone=zone)
            selector = f"metadata.name={plan_object_name(zone)}"
            reflector = Reflector(client, CONFIGMAPS, ConfigMap, namespace=namespace, field_selector=selector)
            reflector.subscribe(partial(self._apply_config_map, zone))
            await run_until(_wait_for_other_zone(node_watch, zone), reflector.run())
            self.set_plan(None)

    def _apply_config_map(self, zone: str, _key: str, _old: ConfigMap | None, config_map: ConfigMap | None) -> None:
        if config_map is None:
            self.set_plan(None)
            return
        try:
            decoded = decode_plan(config_map.data, zone=zone, current=self.plan)
        except PlanRefusedError as error:
            self.refusal_counts[error.reason] += 1
            log.log_change("plan", error.reason, "plan refused, keeping the previous one", error=error)
            return
        log.log_change("plan", "", "plan accepted again", epoch=decoded.plan.epoch)
        self.refusal_counts.update(refusal.reason for refusal in decoded.refusals)
        reasons = ",".join(sorted({refusal.reason for refusal in decoded.refusals}))
        message = "some probes of the plan were refused" if reasons else "no probe of the plan was refused"
        log.log_change("plan/probes", reasons, message, why=reasons)
        self.set_plan(decoded.plan)


async def _wait_for_other_zone(node_watch: OwnNodeWatch, zone: str) -> None:
    while (await node_watch.wait_for_node()).zone == zone:
        await node_watch.changed.wait()
