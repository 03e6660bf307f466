"""Converts AppGroups and NetworkTopologies from the API groups and field names of KEP-260 and of talks about it to those of the CRDs.

Also adds missing selectors, and names of ConfigMaps that the API server accepts. Other objects and groups stay as they are, and the API
server reports other errors. Pure.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES
from controller.convert.documents import Document, split_document
from netperf.contract import RESULTS_NAME

API_GROUPS = frozenset(
    {APPGROUPS.group, NETWORK_TOPOLOGIES.group, "diktyo.k8s.io", "scheduling.sigs.k8s.io", "scheduling.sigs.x-k8s.io"}
)
"""Groups whose objects are converted."""
RecordChange = Callable[[str, str], None]
"""Records the path of a changed field, and the change in words."""


class Change(msgspec.Struct, frozen=True):
    """A changed field, or an item that was left out.

    Attributes:
        object: kind and name, for example ``AppGroup a1``; ``document 1`` for an item that was left out.
        field: path in the converted object; ``items`` for an item that was left out.
    """

    object: str
    field: str
    description: str

    def __str__(self) -> str:
        return f"{self.object}: {self.field}: {self.description}"


def convert_documents(documents: Iterable[object]) -> tuple[list[Document], list[Change]]:
    """Convert the objects of documents from a YAML reader (see `split_document`); returns the objects and the changes."""
    objects: list[Document] = []
    changes: list[Change] = []
    for number, document in enumerate(documents, start=1):
        problems: list[str] = []
        objects += [_convert_object(item, changes) for item in split_document(document, problems)]
        changes += [Change(f"document {number}", "items", problem) for problem in problems]
    return objects, changes


def _convert_object(document: Document, changes: list[Change]) -> Document:
    resource = next((crd for crd in (APPGROUPS, NETWORK_TOPOLOGIES) if crd.kind == document.get("kind")), None)
    version = str(document.get("apiVersion"))
    if resource is None or version.rpartition("/")[0] not in API_GROUPS:
        return document
    converted = copy.deepcopy(document)
    name = f"{resource.kind} {_dict_or_empty(converted.get('metadata')).get('name')}"

    def record(field: str, description: str) -> None:
        changes.append(Change(name, field, description))

    if version != resource.api_version:
        converted["apiVersion"] = resource.api_version
        record("apiVersion", f"was {version!r}, is {resource.api_version}")
    spec = _dict_or_empty(converted.get("spec"))
    if resource is APPGROUPS:
        _convert_workloads(spec, record)
    else:
        _convert_topology(spec, record)
    return converted


def _dict_or_empty(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _items_with_paths(parent: Document, key: str, path: str) -> list[tuple[str, Document]]:
    """The path of each object in a list, and the object."""
    value = parent.get(key)
    items = enumerate(value) if isinstance(value, list) else ()
    return [(f"{path}.{key}[{index}]", item) for index, item in items if isinstance(item, dict)]


def _convert_workloads(spec: Document, record: RecordChange) -> None:
    """Move dependencies and limits out of references, where talks have them, and add selectors, which KEP-260 does not have."""
    selectors: dict[Any, Any] = {}
    references: list[tuple[str, Document]] = []
    for path, item in _items_with_paths(spec, "workloads", "spec"):
        workload = _dict_or_empty(item.get("workload"))
        _move_out(workload, item, "dependencies", path, record)
        selectors[str(workload.get("name"))] = workload.get("selector")
        references.append((path, workload))
        for dependency_path, dependency in _items_with_paths(item, "dependencies", path):
            target = _dict_or_empty(dependency.get("workload"))
            for limit in ("minBandwidth", "maxNetworkCost"):
                _move_out(target, dependency, limit, dependency_path, record)
            references.append((dependency_path, target))
    for path, reference in references:
        name = reference.get("name")
        if name and not reference.get("selector"):
            reference["selector"] = selectors.get(str(name)) or name
            description = f"was missing, is {reference['selector']!r}; pods' labels must have the same value"
            record(f"{path}.workload.selector", description)


def _move_out(reference: Document, item: Document, name: str, path: str, record: RecordChange) -> None:
    if name in reference and name not in item:
        item[name] = reference.pop(name)
        record(f"{path}.{name}", "moved out of the workload's reference")


def _convert_topology(spec: Document, record: RecordChange) -> None:
    """Rename fields, and write the ConfigMap's name in lower case, by default `RESULTS_NAME`."""
    _rename(spec, "configMapName", "configmapName", "spec", record)
    name = spec.get("configmapName") or RESULTS_NAME
    legal = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", str(name)).lower()
    if spec.get("configmapName") != legal:
        spec["configmapName"] = legal
        record("spec.configmapName", f"is {legal!r}, a legal name of an object")
    for weight_path, weight in _items_with_paths(spec, "weights", "spec"):
        _rename(weight, "costList", "topologyList", weight_path, record)
        for level_path, level in _items_with_paths(weight, "topologyList", weight_path):
            _rename(level, "originCosts", "originList", level_path, record)
            for path, origin in _items_with_paths(level, "originList", level_path):
                _rename(origin, "costs", "costList", path, record)


def _rename(parent: Document, old: str, new: str, path: str, record: RecordChange) -> None:
    if old in parent and new not in parent:
        parent[new] = parent.pop(old)
        record(f"{path}.{new}", f"was spelled {old}")
