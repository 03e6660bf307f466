"""Finds the nodes that can mount a pod's volumes, by the rules of kube-scheduler's VolumeBinding and VolumeZone.

A bound volume restricts nodes by its node affinity and, if an older provisioner made it, by its zone and region labels. An unbound claim
with WaitForFirstConsumer restricts them to those where an available volume matches, or where its class allows provisioning.
CSIStorageCapacity is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from controller.cluster.index import Index
from controller.cluster.pods import NodeSelector, NodeSelectorTerm, Pod
from controller.cluster.resource_requests import parse_amount_or_zero
from kubekit.selectors import LabelSelector, MatchExpression, selects
from kubekit.stores import Store, subscribe_from_start
from kubekit.wire import Object, Resource, ResourceRequirements, Wire
from netperf.contract import REGION_LABEL, ZONE_LABEL

VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", is_namespaced=False)
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", is_namespaced=False)
SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
"""On a claim: the node for which kube-scheduler requested provisioning."""
_STATIC_PROVISIONERS = frozenset({"", "kubernetes.io/no-provisioner"})
"""Provisioners of StorageClasses whose volumes are created by hand."""
_AVAILABLE_PHASES = frozenset({"Available", ""})
"""Phases of volumes that a claim may be bound to; volumes in hand-written files have none."""
_LABELS_AND_BETA_LABELS = (
    (ZONE_LABEL, "failure-domain.beta.kubernetes.io/zone"),
    (REGION_LABEL, "failure-domain.beta.kubernetes.io/region"),
)
StorageObject = TypeVar("StorageObject", bound=Object)


class VolumeNodeAffinity(Wire, frozen=True):
    """Node affinity of a PersistentVolume; without ``required`` every node reaches the volume."""

    required: NodeSelector | None = None


class ClaimReference(Wire, frozen=True):
    """Reference to the claim that a volume is bound to."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeSpec(Wire, frozen=True):
    """spec of a PersistentVolume; without claim_ref it is not bound."""

    node_affinity: VolumeNodeAffinity | None = None
    claim_ref: ClaimReference | None = None
    capacity: dict[str, str] | None = None
    access_modes: list[str] | None = None
    volume_mode: str = "Filesystem"
    storage_class_name: str = ""


class VolumeStatus(Wire, frozen=True):
    """status of a PersistentVolume."""

    phase: str = ""


class PersistentVolume(Object, frozen=True):
    """v1 PersistentVolume."""

    spec: VolumeSpec = VolumeSpec()
    status: VolumeStatus = VolumeStatus()


class ClaimSpec(Wire, frozen=True):
    """spec of a PersistentVolumeClaim; without volume_name it is not bound."""

    volume_name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    access_modes: list[str] | None = None
    selector: LabelSelector | None = None
    volume_mode: str = "Filesystem"
    storage_class_name: str = ""


class PersistentVolumeClaim(Object, frozen=True):
    """v1 PersistentVolumeClaim."""

    spec: ClaimSpec = ClaimSpec()


class LabelValues(Wire, frozen=True):
    """A node label and its allowed values."""

    key: str = ""
    values: list[str] | None = None


class TopologySelectorTerm(Wire, frozen=True):
    """Node labels and their allowed values, all of which must match."""

    match_label_expressions: list[LabelValues] | None = None


class StorageClass(Object, frozen=True):
    """storage.k8s.io/v1 StorageClass."""

    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: list[TopologySelectorTerm] | None = None


class Volumes(Index):
    """PersistentVolumes, PersistentVolumeClaims and StorageClasses, updated by watch events.

    ``version`` is the number of changes after which node selectors may differ.
    """

    def __init__(self) -> None:
        self.version = 0
        self._volumes: dict[str, PersistentVolume] = {}
        self._claims: dict[str, PersistentVolumeClaim] = {}
        self._storage_classes: dict[str, StorageClass] = {}
        self._volume_name_by_claim: dict[str, str] = {}
        self._available_volumes: dict[str, PersistentVolume] = {}
        self._selectors_by_claim_spec: dict[bytes, tuple[NodeSelector, ...]] = {}

    @classmethod
    def from_objects(
        cls,
        volumes: Iterable[PersistentVolume],
        claims: Iterable[PersistentVolumeClaim],
        storage_classes: Iterable[StorageClass] = (),
    ) -> Volumes:
        """Build an index of these objects."""
        index = cls()
        for volume in volumes:
            index.on_volume_change(volume.metadata.key, None, volume)
        for claim in claims:
            index.on_claim_change(claim.metadata.key, None, claim)
        for storage_class in storage_classes:
            index.on_storage_class_change(storage_class.metadata.key, None, storage_class)
        return index

    def subscribe_to(
        self,
        volumes: Store[PersistentVolume],
        claims: Store[PersistentVolumeClaim],
        storage_classes: Store[StorageClass],
    ) -> None:
        """Add all objects of these stores, and follow their changes."""
        subscribe_from_start(volumes, self.on_volume_change)
        subscribe_from_start(claims, self.on_claim_change)
        subscribe_from_start(storage_classes, self.on_storage_class_change)

    def on_volume_change(self, name: str, _: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """Update a volume."""
        claim_key = _claim_key_of(self._volumes.get(name))
        if claim_key and self._volume_name_by_claim.get(claim_key) == name:
            del self._volume_name_by_claim[claim_key]
        self._available_volumes.pop(name, None)
        self._replace_object(self._volumes, name, new)
        if claim_key := _claim_key_of(new):
            self._volume_name_by_claim[claim_key] = name
        elif new is not None and new.metadata.deletion_timestamp is None and new.status.phase in _AVAILABLE_PHASES:
            self._available_volumes[name] = new

    def on_claim_change(self, key: str, _: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """Update a claim."""
        self._replace_object(self._claims, key, new)

    def on_storage_class_change(self, name: str, _: StorageClass | None, new: StorageClass | None) -> None:
        """Update a StorageClass."""
        self._replace_object(self._storage_classes, name, new)

    def _replace_object(self, objects: dict[str, StorageObject], key: str, new: StorageObject | None) -> None:
        before = objects.pop(key, None)
        if new is not None:
            objects[key] = new
        if _selection_fields(before) != _selection_fields(new):
            self.version += 1
            self._selectors_by_claim_spec.clear()

    def node_selectors_of_pod(self, pod: Pod) -> tuple[NodeSelector, ...]:
        """Node selectors of the volumes that a pod mounts."""
        return self.node_selectors_of_claims(pod.metadata.namespace, claim_names_of(pod))

    def node_selectors_of_next_replica(self, pod: Pod) -> tuple[NodeSelector, ...]:
        """Node selectors for another replica of a pod's workload, which gets new, unbound claims in place of those made for the pod.

        Claims made for one pod are those of ephemeral volumes, and those whose names end in the pod's, as a StatefulSet names them.
        """
        selectors: list[NodeSelector] = []
        ephemeral_names = {f"{pod.metadata.name}-{v.name}" for v in pod.spec.volumes or () if v.ephemeral is not None}
        for name in claim_names_of(pod):
            claim = self._claims.get(f"{pod.metadata.namespace}/{name}")
            is_made_for_pod = name in ephemeral_names or name.endswith(f"-{pod.metadata.name}")
            if claim is not None and is_made_for_pod:
                spec = msgspec.structs.replace(claim.spec, volume_name="")
                selectors += self._selectors_of_unbound_claim(PersistentVolumeClaim(spec=spec))
            else:
                selectors += self.node_selectors_of_claims(pod.metadata.namespace, [name])
        return tuple(selectors)

    def node_selectors_of_claims(self, namespace: str, claim_names: Iterable[str]) -> tuple[NodeSelector, ...]:
        """Node selectors of the volumes of these claims; a node must match all of them.

        A bound volume that the store does not have yet gives none.
        """
        selectors: list[NodeSelector] = []
        for name in claim_names:
            key = f"{namespace}/{name}"
            claim = self._claims.get(key)
            volume_name = claim.spec.volume_name if claim is not None else ""
            volume = self._volumes.get(volume_name or self._volume_name_by_claim.get(key, ""))
            if volume is not None and _is_bound_to(volume, claim):
                selectors += _combine_alternatives([_terms_of_volume(volume)])
            elif claim is not None and not volume_name:
                selectors += self._selectors_of_unbound_claim(claim)
        return tuple(selectors)

    def _selectors_of_unbound_claim(self, claim: PersistentVolumeClaim) -> tuple[NodeSelector, ...]:
        """The node selector of an unbound claim; none without WaitForFirstConsumer, because the claim is bound before its pod is placed."""
        storage_class = self._storage_classes.get(claim.spec.storage_class_name)
        if storage_class is None or storage_class.volume_binding_mode != "WaitForFirstConsumer":
            return ()
        node = claim.metadata.annotation(SELECTED_NODE_ANNOTATION)
        if node:
            return (NodeSelector([NodeSelectorTerm(match_fields=[MatchExpression("metadata.name", "In", [node])])]),)
        key = msgspec.json.encode(claim.spec)
        if key not in self._selectors_by_claim_spec:
            alternatives = [_terms_of_volume(v) for v in self._available_volumes.values() if _matches_claim(v, claim)]
            if storage_class.provisioner not in _STATIC_PROVISIONERS:
                alternatives.append(_terms_of_class(storage_class))
            self._selectors_by_claim_spec[key] = _combine_alternatives(alternatives)
        return self._selectors_by_claim_spec[key]


def claim_names_of(pod: Pod) -> Iterator[str]:
    """Names of the claims that a pod mounts."""
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"


def _selection_fields(storage_object: Object | None) -> object:
    """The fields that node selectors depend on, so not the resourceVersion, which every write changes."""
    if storage_object is None:
        return None
    meta = storage_object.metadata
    return meta.uid, meta.labels, meta.annotations, meta.deletion_timestamp, msgspec.structs.astuple(storage_object)[1:]


def _claim_key_of(volume: PersistentVolume | None) -> str:
    claim = volume.spec.claim_ref if volume is not None else None
    return f"{claim.namespace}/{claim.name}" if claim is not None else ""


def _is_bound_to(volume: PersistentVolume, claim: PersistentVolumeClaim | None) -> bool:
    """Whether a volume is bound to this claim, not to a deleted claim of the same name; uids and claims may be absent in files."""
    uid = volume.spec.claim_ref.uid if volume.spec.claim_ref is not None else ""
    return claim is None or not uid or not claim.metadata.uid or uid == claim.metadata.uid


def _matches_claim(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether a claim may be bound to an available volume (component-helpers/storage/volume, FindMatchingVolume)."""
    volume_spec, claim_spec = volume.spec, claim.spec
    return (
        volume_spec.storage_class_name == claim_spec.storage_class_name
        and _size_bytes(volume_spec.capacity) >= _size_bytes(claim_spec.resources.requests)
        and volume_spec.volume_mode == claim_spec.volume_mode
        and set(claim_spec.access_modes or ()) <= set(volume_spec.access_modes or ())
        and (claim_spec.selector is None or selects(claim_spec.selector, volume.metadata.labels or {}))
    )


def _size_bytes(quantities: Mapping[str, str] | None) -> int:
    return parse_amount_or_zero("storage", (quantities or {}).get("storage", "0"))


def _terms_of_volume(volume: PersistentVolume) -> Sequence[NodeSelectorTerm] | None:
    """Terms of which a node must match one to reach the volume; None if every node reaches the volume."""
    # A label may name several zones, joined by two underscores.
    label_expressions = [
        MatchExpression(label, "In", [part.strip() for part in value.split("__")])
        for label, beta_label in _LABELS_AND_BETA_LABELS
        if (value := volume.metadata.label(label) or volume.metadata.label(beta_label))
    ]
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return [NodeSelectorTerm(label_expressions)] if label_expressions else None
    return [
        NodeSelectorTerm([*(term.match_expressions or ()), *label_expressions], term.match_fields)
        for term in affinity.required.node_selector_terms or ()
        if term.match_expressions or term.match_fields
    ]


def _terms_of_class(storage_class: StorageClass) -> Sequence[NodeSelectorTerm] | None:
    """Terms of which a node must match one, so that the class provisions volumes there; None if it allows every node."""
    if not storage_class.allowed_topologies:
        return None
    return [
        NodeSelectorTerm([MatchExpression(r.key, "In", r.values) for r in term.match_label_expressions or ()])
        for term in storage_class.allowed_topologies
    ]


def _combine_alternatives(alternatives: Iterable[Sequence[NodeSelectorTerm] | None]) -> tuple[NodeSelector, ...]:
    """One node selector that matches if any alternative does; no selector if an alternative is None, which every node matches.

    Without alternatives the selector has no terms, so it matches no node. Terms on one label are merged, as many volumes have it.
    """
    values_by_label: dict[str, dict[str, None]] = {}  # The inner dicts are ordered sets.
    other_terms: list[NodeSelectorTerm] = []
    for alternative in alternatives:
        if alternative is None:
            return ()
        for term in alternative:
            match term.match_expressions, term.match_fields:
                case [MatchExpression(operator="In") as expression], None:
                    values_by_label.setdefault(expression.key, {}).update(dict.fromkeys(expression.values or ()))
                case _:
                    other_terms.append(term)
    merged_terms = [NodeSelectorTerm([MatchExpression(k, "In", list(v))]) for k, v in values_by_label.items()]
    return (NodeSelector([*merged_terms, *other_terms]),)
