"""Converts AppGroups and NetworkTopologies from the field names of KEP-260 and of talks about it to those of the CRDs. Pure.

Other objects are returned unchanged, and other errors are left to the API server.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES
from controller.convert.documents import Document, objects_in
from netperf.contract import RESULTS_NAME

API_GROUPS = frozenset(
    {APPGROUPS.group, NETWORK_TOPOLOGIES.group, "diktyo.k8s.io", "scheduling.sigs.k8s.io", "scheduling.sigs.x-k8s.io"}
)

Note = Callable[[str, str], None]
"""Records a change: path of the field, and text."""


class Change(msgspec.Struct, frozen=True):
    """A change of a field, or an item that was left out.

    Attributes:
        object: kind and name, for example ``AppGroup a1``, or ``document 1``.
        field: path in the converted object.
        text: the change and its reason.
    """

    object: str
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.object}: {self.field}: {self.text}"


def convert(documents: Iterable[object]) -> tuple[list[Document], list[Change]]:
    """Convert the objects of documents from a YAML reader (see `objects_in`); returns the objects and the changes."""
    objects: list[Document] = []
    changes: list[Change] = []
    for number, document in enumerate(documents, start=1):
        left_out: list[str] = []
        objects += [_convert_one(item, changes) for item in objects_in(document, left_out)]
        changes += [Change(f"document {number}", "items", text) for text in left_out]
    return objects, changes


def _convert_one(document: Document, changes: list[Change]) -> Document:
    resource = next((kind for kind in (APPGROUPS, NETWORK_TOPOLOGIES) if kind.kind == document.get("kind")), None)
    version = str(document.get("apiVersion"))
    if resource is None or version.rpartition("/")[0] not in API_GROUPS:
        return document
    converted = copy.deepcopy(document)
    name = f"{resource.kind} {_mapping(converted.get('metadata')).get('name')}"

    def note(field: str, text: str) -> None:
        changes.append(Change(name, field, text))

    if version != resource.api_version:
        converted["apiVersion"] = resource.api_version
        note("apiVersion", f"was {version!r}, is {resource.api_version}")
    spec = _mapping(converted.get("spec"))
    if resource is APPGROUPS:
        _convert_workloads(spec, note)
    else:
        _convert_topology(spec, note)
    return converted


def _mapping(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _items(parent: Document, key: str, path: str) -> list[tuple[str, Document]]:
    """The objects of a list and their paths."""
    value = parent.get(key)
    items = enumerate(value) if isinstance(value, list) else ()
    return [(f"{path}.{key}[{i}]", item) for i, item in items if isinstance(item, dict)]


def _convert_workloads(spec: Document, note: Note) -> None:
    """Move dependencies and limits out of the references, where talks put them, and add selectors, which the KEP does not have."""
    selectors: dict[Any, Any] = {}
    references: list[tuple[str, Document]] = []
    for path, item in _items(spec, "workloads", "spec"):
        workload = _mapping(item.get("workload"))
        _move_out(workload, item, "dependencies", path, note)
        selectors[str(workload.get("name"))] = workload.get("selector")
        references.append((path, workload))
        for dependency_path, dependency in _items(item, "dependencies", path):
            target = _mapping(dependency.get("workload"))
            for limit in ("minBandwidth", "maxNetworkCost"):
                _move_out(target, dependency, limit, dependency_path, note)
            references.append((dependency_path, target))
    for path, reference in references:
        name = reference.get("name")
        if name and not reference.get("selector"):
            reference["selector"] = selectors.get(str(name)) or name
            text = f"was missing, is {reference['selector']!r}; pods' labels must have the same value"
            note(f"{path}.workload.selector", text)


def _move_out(reference: Document, item: Document, name: str, path: str, note: Note) -> None:
    if name in reference and name not in item:
        item[name] = reference.pop(name)
        note(f"{path}.{name}", "moved out of the workload's reference")


def _convert_topology(spec: Document, note: Note) -> None:
    _rename(spec, "configMapName", "configmapName", "spec", note)
    name = spec.get("configmapName") or RESULTS_NAME
    legal = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", str(name)).lower()
    if spec.get("configmapName") != legal:
        spec["configmapName"] = legal
        note("spec.configmapName", f"is {legal!r}, a legal name of an object")
    for weight_path, weight in _items(spec, "weights", "spec"):
        _rename(weight, "costList", "topologyList", weight_path, note)
        for level_path, level in _items(weight, "topologyList", weight_path):
            _rename(level, "originCosts", "originList", level_path, note)
            for path, origin in _items(level, "originList", level_path):
                _rename(origin, "costs", "costList", path, note)


def _rename(parent: Document, old: str, new: str, path: str, note: Note) -> None:
    if old in parent and new not in parent:
        parent[new] = parent.pop(old)
        note(f"{path}.{new}", f"was spelled {old}")
