"""Finds violations in the API server's audit log: writes without the Lease, and pods that were gated too long.

The API server itself refuses a second binding, the binding of a gated pod, and writes of agents about other nodes.
Writes are ordered by etcd's revision, which each response has, so that no clock is trusted. A killed API server may
lose the line of a write that took effect. If the line in which a replica acquires the Lease is lost, both replicas may
have written before its first renewal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

import msgspec

from kubekit.wire import DECODE_ERRORS, Wire

CONTROLLER_USER = "system:serviceaccount:netaware-system:netaware-controller"
LEASE = "netaware-controller"
POD_CLAIM = "authentication.kubernetes.io/pod-name"
_WRITE_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# Reviews change nothing, events are not fenced, and the Lease is itself the fence.
_NOT_FENCED = frozenset({"leases", "events", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "tokenreviews"})


class User(Wire, frozen=True):
    username: str = ""
    extra: dict[str, list[str]] | None = None


class ObjectRef(Wire, frozen=True):
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class ResponseStatus(Wire, frozen=True):
    code: int = 0


class AuditEvent(Wire, frozen=True):
    """An Event of audit.k8s.io/v1, with the fields that are read here."""

    stage: str = ""
    verb: str = ""
    user: User = User()
    object_ref: ObjectRef = ObjectRef()
    response_status: ResponseStatus = ResponseStatus()
    request_received_timestamp: str = ""
    stage_timestamp: str = ""
    response_object: Any = None

    @property
    def is_successful_write(self) -> bool:
        """Whether this is a write that took effect."""
        has_succeeded = self.stage == "ResponseComplete" and 200 <= self.response_status.code < 300
        return has_succeeded and self.verb in _WRITE_VERBS

    @property
    def revision(self) -> int | None:
        """Etcd's revision after this write; None if the response has none."""
        body = self.response_object if isinstance(self.response_object, dict) else {}
        version = (body.get("metadata") or {}).get("resourceVersion", "")
        return int(version) if str(version).isdecimal() and body.get("kind") != "Status" else None

    @property
    def ended_s(self) -> float:
        """Time of the response, in seconds since 1970."""
        return datetime.fromisoformat(self.stage_timestamp).timestamp()

    @property
    def requested_s(self) -> float:
        """Time of the request, in seconds since 1970. A write takes effect between request and response."""
        return datetime.fromisoformat(self.request_received_timestamp or self.stage_timestamp).timestamp()

    @property
    def pod(self) -> str:
        """Name of the pod that the user's token is bound to."""
        return ((self.user.extra or {}).get(POD_CLAIM) or [""])[0]


def read_events(lines: Iterable[bytes]) -> list[AuditEvent]:
    """Events of an audit log, without the incomplete lines of a killed API server."""
    decoder = msgspec.json.Decoder(AuditEvent)
    events = []
    for line in lines:
        try:
            events.append(decoder.decode(line))
        except DECODE_ERRORS:
            continue
    return events


class LeaseHolder(msgspec.Struct, frozen=True):
    """The replica that holds the Lease from a revision on; ``pod`` and ``identity`` are empty if nobody holds it."""

    revision: int
    pod: str
    identity: str
    is_renewal: bool


def list_lease_holders(events: Iterable[AuditEvent]) -> list[LeaseHolder]:
    """Writes of the Lease, by revision."""
    holders: list[LeaseHolder] = []
    writes = [
        e for e in events if e.object_ref.resource == "leases" and e.object_ref.name == LEASE and e.is_successful_write
    ]
    for event in sorted((e for e in writes if e.revision is not None), key=lambda e: e.revision or 0):
        spec = event.response_object.get("spec") or {}
        identity = spec.get("holderIdentity") or ""
        is_renewal = bool(identity) and spec.get("renewTime") != spec.get("acquireTime")
        holders.append(LeaseHolder(event.revision or 0, event.pod if identity else "", identity, is_renewal))
    return holders


def find_unfenced_writes(events: list[AuditEvent]) -> list[str]:
    """Violations by replicas of the controller that wrote without holding the Lease.

    The response to a write that changes nothing has the revision of the last change. Such a write is recognized because
    etcd had reached that revision before the request.
    """
    holders = list_lease_holders(events)
    revisions = [h.revision for h in holders]
    violations = []
    writes = [e for e in events if e.is_successful_write and e.revision is not None]
    writes.sort(key=lambda e: e.ended_s)
    end_times_s = [e.ended_s for e in writes]
    reached_revisions = list(accumulate((e.revision or 0 for e in writes), max))
    fenced_writes = [
        e for e in writes if e.user.username == CONTROLLER_USER and e.object_ref.resource not in _NOT_FENCED
    ]
    for event in sorted(fenced_writes, key=lambda e: e.revision or 0):
        revision, ref = event.revision or 0, event.object_ref
        earlier_writes = bisect_left(end_times_s, event.requested_s)
        if earlier_writes and revision <= reached_revisions[earlier_writes - 1]:
            continue  # The write changed nothing.
        allowed_pods = _find_allowed_writers(holders, bisect_left(revisions, revision))
        if allowed_pods is not None and event.pod not in allowed_pods:
            holder = " or ".join(sorted(allowed_pods)) or "no replica"
            target = f"{ref.resource} {ref.namespace}/{ref.name} at revision {revision}"
            violations.append(f"former leader: {event.pod} wrote {target}, held by {holder}")
    return violations


def _find_allowed_writers(holders: list[LeaseHolder], index: int) -> set[str] | None:
    """Pods that may write between ``holders[index - 1]`` and ``holders[index]``; None if the log does not tell."""
    if index == 0:
        return None
    holder = holders[index - 1]
    writers = {holder.pod} - {""}
    # A renewal by another replica: the line in which it acquired the Lease is lost.
    if index < len(holders) and holders[index].is_renewal and holders[index].identity != holder.identity:
        writers.add(holders[index].pod)
    # A lost line may follow the last one of the log.
    return None if index == len(holders) and not writers else writers


class GatedPod(msgspec.Struct):
    """A pod, by namespace and name, that was created with a gate; times are seconds since 1970.

    ``ended_s`` is the time of its release, of its deletion, or of its binding if the line of the release is lost; None
    while it is gated.
    """

    name: str
    created_s: float
    ended_s: float | None = None


def list_gated_pods(events: Iterable[AuditEvent]) -> list[GatedPod]:
    """All pods that were created with a gate."""
    pod_by_uid: dict[str, GatedPod] = {}
    newest_pod_by_name: dict[str, GatedPod] = {}
    writes = [e for e in events if e.object_ref.resource == "pods" and e.is_successful_write]
    for event in sorted(writes, key=lambda e: e.ended_s):
        ref, metadata = event.object_ref, _read_section(event.response_object, "metadata")
        name, uid = f"{ref.namespace}/{metadata.get('name') or ref.name}", str(metadata.get("uid", ""))
        if event.verb == "create" and not ref.subresource:
            pod = GatedPod(name, event.ended_s, None if _is_gated(event.response_object) else event.ended_s)
            pod_by_uid[uid] = newest_pod_by_name[name] = pod
        elif event.verb == "deletecollection":
            # A namespace ends: its unbound pods are deleted by this one request.
            items = event.response_object.get("items") if isinstance(event.response_object, dict) else None
            for uid in (str(_read_section(item, "metadata").get("uid", "")) for item in items or ()):
                if deleted_pod := pod_by_uid.get(uid):
                    deleted_pod.ended_s = deleted_pod.ended_s or event.ended_s
        elif _ends_gate(event) and (gated_pod := pod_by_uid.get(uid) or newest_pod_by_name.get(name)):
            gated_pod.ended_s = gated_pod.ended_s or event.ended_s
    return list(pod_by_uid.values())


def _ends_gate(event: AuditEvent) -> bool:
    if event.object_ref.subresource:
        return event.object_ref.subresource == "binding" and event.verb == "create"
    # A log of another level has responses without the pod.
    is_released = bool(_read_section(event.response_object, "spec")) and not _is_gated(event.response_object)
    return event.verb == "delete" or (event.verb in {"patch", "update"} and is_released)


def _read_section(body: Any, name: str) -> dict[str, Any]:
    section = body.get(name) if isinstance(body, dict) else None
    return section if isinstance(section, dict) else {}


def _is_gated(pod: Any) -> bool:
    return bool(_read_section(pod, "spec").get("schedulingGates"))


def find_pods_gated_too_long(
    events: list[AuditEvent], limit_s: float, outages: Sequence[tuple[float, float]] = ()
) -> list[str]:
    """Violations by pods that were gated for longer than the limit.

    Outages, which have a begin and an end, are times without an API server or a leader; they do not count.
    """
    log_end_s = max((e.ended_s for e in events if e.stage_timestamp), default=0.0)
    violations = []
    for pod in list_gated_pods(events):
        end_s = log_end_s if pod.ended_s is None else pod.ended_s
        gated_s = end_s - pod.created_s
        outage_s = sum(
            max(0.0, min(end_s, outage_end_s) - max(pod.created_s, start_s)) for start_s, outage_end_s in outages
        )
        if gated_s - outage_s > limit_s:
            violations.append(f"gated: pod {pod.name} for {gated_s:.0f} s, of which {outage_s:.0f} s without a leader")
    return violations
