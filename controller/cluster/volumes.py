"""Which nodes a pod's volumes can be reached from: one rule for the leader and for `simulate`.

A volume that a claim is bound to says so by its node affinity, or, as older provisioners have it, by labels of its zone
and region (kube-scheduler's VolumeBinding and VolumeZone). A claim that is bound to nothing yet demands nothing here: what
its class would provide, and where, is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controller.cluster.pods import GroupPod, NodeSelector, NodeSelectorTerm
from kubekit.reflector import Mirror, follow
from kubekit.selectors import MatchExpression
from kubekit.wire import Object, Resource, Wire
from netperf.contract import REGION_LABEL, ZONE_LABEL

VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PLACE_LABELS = {
    ZONE_LABEL: ZONE_LABEL,
    REGION_LABEL: REGION_LABEL,
    "failure-domain.beta.kubernetes.io/zone": ZONE_LABEL,
    "failure-domain.beta.kubernetes.io/region": REGION_LABEL,
}
"""Label of a volume -> label of the nodes that reach it; several places in one value are joined by ``__``."""


class VolumeNodeAffinity(Wire, frozen=True):
    """Which nodes reach a volume."""

    required: NodeSelector | None = None


class ClaimReference(Wire, frozen=True):
    """The claim that a volume is bound to."""

    namespace: str = ""
    name: str = ""


class VolumeSpec(Wire, frozen=True):
    """Of a volume."""

    node_affinity: VolumeNodeAffinity | None = None
    claim_ref: ClaimReference | None = None


class PersistentVolume(Object, frozen=True):
    """v1 PersistentVolume."""

    spec: VolumeSpec = VolumeSpec()


class ClaimSpec(Wire, frozen=True):
    """Of a claim."""

    volume_name: str = ""


class PersistentVolumeClaim(Object, frozen=True):
    """v1 PersistentVolumeClaim."""

    spec: ClaimSpec = ClaimSpec()


class Volumes:
    """Volumes and claims, kept up to date by watch events.

    Attributes:
        version: counts the changes that may change an answer.
    """

    def __init__(self) -> None:
        self.version = 0
        self._reach: dict[str, tuple[NodeSelector, ...]] = {}
        self._bound_by_claim: dict[str, str] = {}
        self._bound_by_volume: dict[str, str] = {}

    @classmethod
    def among(cls, volumes: Iterable[PersistentVolume], claims: Iterable[PersistentVolumeClaim]) -> Volumes:
        """Those that were there at one moment."""
        made = cls()
        for volume in volumes:
            made.take_volume(volume.metadata.key, None, volume)
        for claim in claims:
            made.take_claim(claim.metadata.key, None, claim)
        return made

    def copy(self) -> Volumes:
        """As they are now, for a thread: nothing that is taken later changes them."""
        made = Volumes()
        made.version, made._reach = self.version, self._reach.copy()
        made._bound_by_claim, made._bound_by_volume = self._bound_by_claim.copy(), self._bound_by_volume.copy()
        return made

    def follow(self, volumes: Mirror[PersistentVolume], claims: Mirror[PersistentVolumeClaim]) -> None:
        """Take everything that these mirrors hold, and every change to come."""
        follow(volumes, self.take_volume)
        follow(claims, self.take_claim)

    def take_volume(self, name: str, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """A volume came, changed or went."""
        before = self._reach.pop(name, ())
        claim = _claim_of(old)
        if claim and self._bound_by_volume.get(claim) == name:
            del self._bound_by_volume[claim]
        claim = _claim_of(new)
        if new is not None:
            self._reach[name] = tuple(_reach_of(new))
            if claim:
                self._bound_by_volume[claim] = name
        self.version += self._reach.get(name, ()) != before or claim != _claim_of(old)

    def take_claim(self, key: str, _: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """A claim came, changed or went."""
        before = self._bound_by_claim.pop(key, "")
        if new is not None and new.spec.volume_name:
            self._bound_by_claim[key] = new.spec.volume_name
        self.version += self._bound_by_claim.get(key, "") != before

    def demands_of(self, pod: GroupPod) -> tuple[NodeSelector, ...]:
        """What the volumes of its bound claims demand of a node; every one must hold."""
        return self.demands(pod.metadata.namespace, claims_of(pod))

    def demands(self, namespace: str, claims: Iterable[str]) -> tuple[NodeSelector, ...]:
        """The same of claims by name."""
        found: list[NodeSelector] = []
        for name in claims:
            key = f"{namespace}/{name}"
            volume = self._bound_by_claim.get(key) or self._bound_by_volume.get(key, "")
            found += self._reach.get(volume, ())
        return tuple(found)


def claims_of(pod: GroupPod) -> Iterator[str]:
    """Names of a pod's claims; an ephemeral volume has one that is named after pod and volume."""
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"


def _claim_of(volume: PersistentVolume | None) -> str:
    claim = volume.spec.claim_ref if volume is not None else None
    return f"{claim.namespace}/{claim.name}" if claim is not None else ""


def _reach_of(volume: PersistentVolume) -> Iterator[NodeSelector]:
    affinity = volume.spec.node_affinity
    if affinity is not None and affinity.required is not None:
        yield affinity.required
    for label, of_node in PLACE_LABELS.items():
        value = volume.metadata.label(label)
        if value:
            places = MatchExpression(of_node, "In", [part.strip() for part in value.split("__")])
            yield NodeSelector([NodeSelectorTerm(match_expressions=[places])])
