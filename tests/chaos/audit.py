"""Reads the API server's audit log: who wrote what while who held the Lease. Pure: lines in, violations out.

The order of writes is etcd's revision, which the answer to each write carries, so no clock is trusted. A killed API server may
have lost the line of a write that took effect: a Lease that is found renewed by somebody whose taking it was not seen was taken
at some time in between, and both may have written there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

import msgspec

from kubekit.lease import LeaderElectionConfig
from kubekit.wire import DECODE_ERRORS, Wire
from netperf.contract import AGENT, CONTROLLER, HOME_NAMESPACE
from netperf.results import FAILED_SUFFIX, OWN_PREFIX

POD_CLAIM, NODE_CLAIM = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/node-name"
ACCOUNTS = f"system:serviceaccount:{HOME_NAMESPACE}:"
"""How the API server calls our service accounts, before their names."""
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# Asking is not writing; events are not fenced objects, and a Lease is what fences.
_NOT_FENCED = frozenset({"leases", "events", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "tokenreviews"})


class User(Wire, frozen=True):
    """Who asked."""

    username: str = ""
    extra: dict[str, list[str]] | None = None


class ObjectRef(Wire, frozen=True):
    """What was asked for."""

    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class ResponseStatus(Wire, frozen=True):
    """How it ended."""

    code: int = 0


class AuditEvent(Wire, frozen=True):
    """audit.k8s.io/v1 Event: the fields we read."""

    stage: str = ""
    verb: str = ""
    user: User = User()
    object_ref: ObjectRef = ObjectRef()
    response_status: ResponseStatus = ResponseStatus()
    request_received_timestamp: str = ""
    stage_timestamp: str = ""
    request_object: Any = None
    response_object: Any = None

    @property
    def succeeded(self) -> bool:
        """A write that took effect."""
        done = self.stage == "ResponseComplete" and 200 <= self.response_status.code < 300
        return done and self.verb in _WRITES

    @property
    def revision(self) -> int | None:
        """Etcd's revision after this write; None where the answer does not say."""
        body = self.response_object if isinstance(self.response_object, dict) else {}
        text = (body.get("metadata") or {}).get("resourceVersion", "")
        return int(text) if str(text).isdecimal() and body.get("kind") != "Status" else None

    @property
    def when(self) -> float:
        """Seconds since 1970 at its end."""
        return datetime.fromisoformat(self.stage_timestamp).timestamp()

    @property
    def begun(self) -> float:
        """Seconds since 1970 when it was asked; it takes effect between then and its end."""
        return datetime.fromisoformat(self.request_received_timestamp or self.stage_timestamp).timestamp()

    def claim(self, name: str) -> str:
        """What the token says of its owner."""
        return ((self.user.extra or {}).get(name) or [""])[0]


def read(lines: Iterable[bytes]) -> list[AuditEvent]:
    """The events of an audit log; half a line, as a killed API server leaves it, is left out."""
    decoder = msgspec.json.Decoder(AuditEvent)
    events = []
    for line in lines:
        try:
            events.append(decoder.decode(line))
        except DECODE_ERRORS:
            continue
    return events


class Held(msgspec.Struct, frozen=True):
    """From a revision on: who holds the Lease, and whether taking it was seen."""

    revision: int
    pod: str
    identity: str
    renewed_unseen: bool


def _lease_writes(events: Iterable[AuditEvent], lease: str) -> list[AuditEvent]:
    return [e for e in events if e.object_ref.resource == "leases" and e.object_ref.name == lease and e.succeeded]


def held(events: Iterable[AuditEvent], lease: str) -> list[Held]:
    """The Lease's holders in the order of revisions."""
    found: list[Held] = []
    writes = (e for e in _lease_writes(events, lease) if e.revision is not None)
    for event in sorted(writes, key=lambda e: e.revision or 0):
        spec = event.response_object.get("spec") or {}
        identity = spec.get("holderIdentity") or ""
        unseen = bool(identity) and spec.get("renewTime") != spec.get("acquireTime")
        pod = event.claim(POD_CLAIM) if identity else ""
        found.append(Held(event.revision or 0, pod, identity, unseen))
    return found


def foreign_writes(events: list[AuditEvent], lease: str) -> list[str]:
    """Writes of a controller that did not hold the Lease at that revision: two writers, or one that was deposed.

    A write that changes nothing is answered with the revision of whoever changed the object last. It is known by that: etcd had
    gone further before it was asked.
    """
    holders = held(events, lease)
    revisions = [h.revision for h in holders]
    violations = []
    ended = sorted((e.when, e.revision) for e in events if e.succeeded and e.revision is not None)
    times, reached = [when for when, _ in ended], list(accumulate((revision for _, revision in ended), max))
    ours = [e for e in events if e.user.username == ACCOUNTS + CONTROLLER and e.succeeded]
    known = [e for e in ours if e.object_ref.resource not in _NOT_FENCED and e.revision is not None]
    for event in sorted(known, key=lambda e: e.revision or 0):
        revision, ref = event.revision or 0, event.object_ref
        before = bisect_left(times, event.begun)
        if before and revision <= reached[before - 1]:
            continue  # It changed nothing.
        at = bisect_left(revisions, revision)
        allowed = _writers(holders, at)
        pod = event.claim(POD_CLAIM)
        if allowed is not None and pod not in allowed:
            who = " or ".join(sorted(allowed)) or "nobody"
            violations.append(
                f"deposed: {pod} wrote {ref.resource} {ref.namespace}/{ref.name} at revision {revision}, held by {who}"
            )
    return violations


def _writers(holders: list[Held], at: int) -> set[str] | None:
    """Pods that may write between the Lease's writes ``at - 1`` and ``at``; None where no line tells."""
    if at == 0:
        return None
    before = holders[at - 1]
    writers = {before.pod} - {""}
    if at < len(holders) and holders[at].renewed_unseen and holders[at].identity != before.identity:
        writers.add(holders[at].pod)
    # After the last line that was kept, a lost one may have been followed by writes.
    return None if at == len(holders) and not writers else writers


def foreign_keys(events: Iterable[AuditEvent]) -> list[str]:
    """Results that an agent wrote about another node's pairs, and other agents' Nodes."""
    violations = []
    owner: dict[str, str] = {}
    for event in events:
        if event.user.username != ACCOUNTS + AGENT or not event.succeeded:
            continue
        node, ref = event.claim(NODE_CLAIM), event.object_ref
        if ref.resource == "nodes" and ref.name != node:
            violations.append(f"foreign node: the agent of {node} wrote node {ref.name}")
        if ref.resource != "configmaps":
            continue
        for key, origin in _origins(event, owner).items():
            if origin != node:
                violations.append(f"foreign key: the agent of {node} wrote {key} of {origin or 'nobody'}")
    return violations


def _origins(event: AuditEvent, owner: dict[str, str]) -> dict[str, str]:
    """The node whose key each one is. A key that is removed was written before, by its owner."""
    found = {}
    for key, value in _data(event).items():
        if not key.startswith(OWN_PREFIX):
            continue
        base = key.removesuffix(FAILED_SUFFIX)
        if isinstance(value, str):
            owner[base] = _ends(value)[0][0]
        if base in owner:
            found[key] = owner[base]
    return found


def _data(event: AuditEvent) -> Mapping[str, Any]:
    body = event.request_object if isinstance(event.request_object, dict) else {}
    data = body.get("data")
    return data if isinstance(data, dict) else {}


def _ends(value: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Node and zone of both ends of a sample or a failure."""
    try:
        body = msgspec.json.decode(value)
        origin, destination = body["origin"], body["destination"]
        return (origin["node"], origin["zone"]), (destination["node"], destination["zone"])
    except (msgspec.MsgspecError, LookupError, TypeError):
        return ("", ""), ("", "")


def measured(events: Iterable[AuditEvent]) -> dict[tuple[str, str], list[float]]:
    """When agents wrote a word on two zones, by the zones in order; a failure is a word too."""
    found: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.user.username != ACCOUNTS + AGENT or not event.succeeded:
            continue
        for key, value in _data(event).items():
            if key.startswith(OWN_PREFIX) and isinstance(value, str):
                (_, here), (_, there) = _ends(value)
                found.setdefault((min(here, there), max(here, there)), []).append(event.when)
    return {pair: sorted(times) for pair, times in found.items()}


class CostSnapshot(msgspec.Struct, frozen=True):
    """Costs as they stood at a moment (seconds since 1970) at which all had been well for a while."""

    at: float
    costs: dict[tuple[str, str], int]


def _reached(origin: str, near: Mapping[str, set[str]]) -> set[str]:
    """Everything that measured pairs lead to."""
    found, ahead = {origin}, [origin]
    while ahead:
        new = near.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


class Handover(msgspec.Struct, frozen=True):
    """Seconds since 1970: when a leadership was last renewed, and when the next one began."""

    ended: float
    begun: float


def handovers(events: Iterable[AuditEvent], lease: str) -> list[Handover]:
    """To another holder, or to the same one after it could not renew in time."""
    found = list[Handover]()
    holder, renewed = "", 0.0
    for event in sorted(_lease_writes(events, lease), key=lambda e: e.when):
        identity = (event.response_object.get("spec") or {}).get("holderIdentity") or ""
        if not identity:
            continue
        if holder and (identity != holder or event.when - renewed > LeaderElectionConfig().renew_deadline_s):
            found.append(Handover(renewed, event.when))
        holder, renewed = identity, event.when
    return found


def unsupported_costs(
    seen: Iterable[CostSnapshot],
    words: Mapping[tuple[str, str], list[float]],
    lifetime_s: float,
    handed: Sequence[Handover] = (),
) -> list[str]:
    """Costs that no measurement within its lifetime supports, be it of the pair or of pairs that lead there one after the other.

    A leader that begins keeps what stands for one more lifetime (`netperf.memory.restore`): it knows what was written, and not
    when it was measured. What stood without support when the leader before it ended is no better for that.
    """
    violations: dict[tuple[str, str], str] = {}
    for moment in seen:
        # Moments at which what stands at this one must have been supported: one of them.
        ends = [moment.at, *(h.ended for h in handed if moment.at - lifetime_s <= h.begun <= moment.at)]
        fresh = {
            pair for pair, times in words.items() if any(end - lifetime_s <= t <= end for t in times for end in ends)
        }
        near: dict[str, set[str]] = {}
        for a, b in fresh:
            near.setdefault(a, set()).add(b)
            near.setdefault(b, set()).add(a)
        for origin, destination in moment.costs:
            pair = (min(origin, destination), max(origin, destination))
            if pair not in violations and destination not in _reached(origin, near):
                last = max((t for t in words.get(pair, ()) if t <= moment.at), default=None)
                age = "never" if last is None else f"{moment.at - last:.0f} s ago"
                violations[pair] = f"unsupported cost: {pair[0]} to {pair[1]}, last measured {age}"
    return list(violations.values())
