"""Reads the API server's audit log: who wrote what while who held the Lease, and how long pods were gated. Pure: lines in, violations out.

The API server itself refuses a second binding of a pod, a binding of a gated one, and agents' writes about other nodes. The order of writes is etcd's revision, which the answer to each write carries, so no clock is trusted. A killed API server may
have lost the line of a write that took effect: a Lease that is found renewed by somebody whose taking it was not seen was taken
at some time in between, and both may have written there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

import msgspec

from kubekit.wire import DECODE_ERRORS, Wire

CONTROLLER_USER, LEASE = "system:serviceaccount:netaware-system:netaware-controller", "netaware-controller"
POD_CLAIM = "authentication.kubernetes.io/pod-name"
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# Asking is not writing; events are not fenced objects, and a Lease is what fences.
_NOT_FENCED = frozenset({"leases", "events", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "tokenreviews"})


class User(Wire, frozen=True):
    """The user of a request."""

    username: str = ""
    extra: dict[str, list[str]] | None = None


class ObjectRef(Wire, frozen=True):
    """The object of a request."""

    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class ResponseStatus(Wire, frozen=True):
    """The status of a response."""

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

    @property
    def pod(self) -> str:
        """The pod that the user's token is bound to."""
        return ((self.user.extra or {}).get(POD_CLAIM) or [""])[0]


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


class LeaseHolder(msgspec.Struct, frozen=True):
    """From a revision on: who holds the Lease, and whether taking it was seen."""

    revision: int
    pod: str
    identity: str
    renewed_unseen: bool


def lease_holders(events: Iterable[AuditEvent]) -> list[LeaseHolder]:
    """The Lease's holders in the order of revisions."""
    found: list[LeaseHolder] = []
    writes = [e for e in events if e.object_ref.resource == "leases" and e.object_ref.name == LEASE and e.succeeded]
    for event in sorted((e for e in writes if e.revision is not None), key=lambda e: e.revision or 0):
        spec = event.response_object.get("spec") or {}
        identity = spec.get("holderIdentity") or ""
        unseen = bool(identity) and spec.get("renewTime") != spec.get("acquireTime")
        pod = event.pod if identity else ""
        found.append(LeaseHolder(event.revision or 0, pod, identity, unseen))
    return found


def unfenced_writes(events: list[AuditEvent]) -> list[str]:
    """Writes of a controller that did not hold the Lease at that revision: two writers, or one that was deposed.

    A write that changes nothing is answered with the revision of whoever changed the object last. It is known by that: etcd had
    gone further before it was asked.
    """
    holders = lease_holders(events)
    revisions = [h.revision for h in holders]
    violations = []
    ended = sorted((e.when, e.revision) for e in events if e.succeeded and e.revision is not None)
    times, reached = [when for when, _ in ended], list(accumulate((revision for _, revision in ended), max))
    ours = [e for e in events if e.user.username == CONTROLLER_USER and e.succeeded]
    known = [e for e in ours if e.object_ref.resource not in _NOT_FENCED and e.revision is not None]
    for event in sorted(known, key=lambda e: e.revision or 0):
        revision, ref = event.revision or 0, event.object_ref
        before = bisect_left(times, event.begun)
        if before and revision <= reached[before - 1]:
            continue  # It changed nothing.
        at = bisect_left(revisions, revision)
        allowed = _writers(holders, at)
        pod = event.pod
        if allowed is not None and pod not in allowed:
            who = " or ".join(sorted(allowed)) or "nobody"
            violations.append(
                f"deposed: {pod} wrote {ref.resource} {ref.namespace}/{ref.name} at revision {revision}, held by {who}"
            )
    return violations


def _writers(holders: list[LeaseHolder], at: int) -> set[str] | None:
    """Pods that may write between the Lease's writes ``at - 1`` and ``at``; None where no line tells."""
    if at == 0:
        return None
    before = holders[at - 1]
    writers = {before.pod} - {""}
    if at < len(holders) and holders[at].renewed_unseen and holders[at].identity != before.identity:
        writers.add(holders[at].pod)
    # After the last line that was kept, a lost one may have been followed by writes.
    return None if at == len(holders) and not writers else writers


class GatedPod(msgspec.Struct):
    """A pod that was created with a gate; seconds since 1970. It ends with its release, its binding (the line of the release was lost) or its deletion."""

    name: str
    created: float
    ended: float | None = None


def gated_pods(events: Iterable[AuditEvent]) -> list[GatedPod]:
    """Every pod that the log saw created with a gate."""
    by_uid: dict[str, GatedPod] = {}
    newest: dict[str, GatedPod] = {}
    of_pods = [e for e in events if e.object_ref.resource == "pods" and e.succeeded]
    for event in sorted(of_pods, key=lambda e: e.when):
        ref, meta = event.object_ref, _part(event.response_object, "metadata")
        name, uid = f"{ref.namespace}/{meta.get('name') or ref.name}", str(meta.get("uid", ""))
        if event.verb == "create" and not ref.subresource:
            pod = GatedPod(name, event.when, None if _is_gated(event.response_object) else event.when)
            by_uid[uid] = newest[name] = pod
        elif event.verb == "deletecollection":
            # The end of a namespace: a pod without a node is gone by it, and no line of its own says so.
            items = event.response_object.get("items") if isinstance(event.response_object, dict) else None
            for uid in (str(_part(item, "metadata").get("uid", "")) for item in items or ()):
                if uid in by_uid:
                    by_uid[uid].ended = by_uid[uid].ended or event.when
        elif _ends_gate(event) and (found := by_uid.get(uid) or newest.get(f"{ref.namespace}/{ref.name}")):
            found.ended = found.ended or event.when
    return list(by_uid.values())


def _ends_gate(event: AuditEvent) -> bool:
    sub = event.object_ref.subresource
    if sub:
        return sub == "binding" and event.verb == "create"
    # An answer that is no pod, as in a log of another level, tells nothing.
    is_open = bool(_part(event.response_object, "spec")) and not _is_gated(event.response_object)
    return event.verb == "delete" or (event.verb in {"patch", "update"} and is_open)


def _part(body: Any, name: str) -> dict[str, Any]:
    part = body.get(name) if isinstance(body, dict) else None
    return part if isinstance(part, dict) else {}


def _is_gated(pod: Any) -> bool:
    return bool(_part(pod, "spec").get("schedulingGates"))


def gated_too_long(events: list[AuditEvent], limit_s: float, away: Sequence[tuple[float, float]] = ()) -> list[str]:
    """Pods whose gate stayed shut beyond the limit.

    Args:
        events: in any order.
        limit_s: how long a pod may be gated, with leeway.
        away: begin and end of times that do not count, since nobody could open a gate: no API server, no leader.
    """
    until = max((e.when for e in events if e.stage_timestamp), default=0.0)
    violations = []
    for pod in gated_pods(events):
        end = until if pod.ended is None else pod.ended
        lost_s = sum(max(0.0, min(end, b) - max(pod.created, a)) for a, b in away)
        if end - pod.created - lost_s > limit_s:
            gated_s = end - pod.created
            violations.append(f"gated: pod {pod.name} for {gated_s:.0f} s, {lost_s:.0f} s of it with nobody to open it")
    return violations
