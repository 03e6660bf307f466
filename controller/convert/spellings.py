"""Converts older spellings of AppGroup and NetworkTopology into what the API server accepts.

Slides, proposals and examples of the network-aware plugins disagree about API groups, field names and nesting. Conversion is pure
and reports all changes. Correct documents, and those of other kinds, are returned unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from controller.appgroups.order import ALGORITHMS
from controller.cluster.graph import GREATEST_COST
from controller.cluster.resources import APPGROUPS, NETPERF_COSTS, NETWORK_TOPOLOGIES
from controller.convert.documents import Document, objects_in
from kubekit import quantity
from kubekit.errors import KubekitError, QuantityError
from netperf.contract import RESULTS_NAME

KNOWN_GROUPS = frozenset(
    {
        "appgroup.diktyo.k8s.io",
        "appgroup.diktyo.x-k8s.io",
        "diktyo.k8s.io",
        "diktyo.x-k8s.io",
        "networktopology.diktyo.k8s.io",
        "networktopology.diktyo.x-k8s.io",
        "scheduling.sigs.k8s.io",
        "scheduling.sigs.x-k8s.io",
        "scheduling.x-k8s.io",
    }
)
_REFERENCE = ("kind", "name", "selector", "apiVersion", "namespace")
_POLICY_FIELDS = frozenset({"configmapName", "weights", "costPolicy"})


class ConvertError(KubekitError):
    """A document cannot be converted; the text names it and the field."""


class Change(msgspec.Struct, frozen=True):
    """One thing that was changed.

    Attributes:
        object: ``AppGroup default/a1``.
        field: path in the object as it is now.
        text: what was done and why.
    """

    object: str
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.object}: {self.field}: {self.text}"


def convert(documents: Iterable[object]) -> tuple[list[Document], list[Change]]:
    """Convert documents as a YAML reader gives them; lists of objects are taken apart (see `objects_in`).

    Raises:
        ConvertError: a document is not an object, or lacks a required field.
    """
    objects: list[Document] = []
    changes: list[Change] = []
    for number, document in enumerate(documents, start=1):
        if document is None:
            continue
        if not isinstance(document, dict | list):
            msg = f"document {number} is no object but {type(document).__name__}"
            raise ConvertError(msg)
        left_out: list[str] = []
        objects += [_convert_one(item, changes) for item in objects_in(document, left_out)]
        changes += [Change(f"document {number}", "items", text) for text in left_out]
    return objects, changes


def _convert_one(document: Document, changes: list[Change]) -> Document:
    kind, group = str(document.get("kind") or ""), str(document.get("apiVersion", "")).rpartition("/")[0]
    if kind not in {"AppGroup", "NetworkTopology"} or (group and group not in KNOWN_GROUPS):
        return document
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        msg = f"{kind}: metadata.name is missing"
        raise ConvertError(msg)
    spec = document.get("spec")
    if not isinstance(spec, dict):
        msg = f"{kind} {metadata['name']}: spec is missing"
        raise ConvertError(msg)
    namespace = metadata.get("namespace")
    label = f"{kind} {namespace}/{metadata['name']}" if namespace else f"{kind} {metadata['name']}"
    note = _Notes(label, changes)
    resource = APPGROUPS if kind == "AppGroup" else NETWORK_TOPOLOGIES
    if document.get("apiVersion") != resource.api_version:
        note("apiVersion", f"was {document.get('apiVersion')!r}, is {resource.api_version}")
    for field in sorted(document.keys() - {"apiVersion", "kind", "metadata", "spec"}):
        note(field, "removed: the controller writes it" if field == "status" else "removed: no such field")
    turn: Callable[[Document, _Notes], Document] = _app_group if kind == "AppGroup" else _network_topology
    return {
        "apiVersion": resource.api_version,
        "kind": kind,
        "metadata": _metadata(metadata, note),
        "spec": turn(spec, note),
    }


class _Notes:
    """Collects changes of one object."""

    def __init__(self, label: str, changes: list[Change]) -> None:
        self.label, self._changes = label, changes

    def __call__(self, field: str, text: str) -> None:
        self._changes.append(Change(self.label, field, text))


def _metadata(metadata: Document, note: _Notes) -> Document:
    kept = {k: v for k, v in metadata.items() if k != "creationTimestamp"}
    kept["name"] = _object_name(str(metadata["name"]))
    if kept["name"] != metadata["name"]:
        note("metadata.name", f"was {metadata['name']!r}, which is no object name; pods' labels must follow")
    return kept


def _object_name(text: str) -> str:
    """``netperfMetrics`` is ``netperf-metrics``: lower case, words joined by dashes."""
    if re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", text):
        return text
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", text)
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.") or "unnamed"


def _objects_in(value: object) -> list[Document]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _drop_unknown(found: Document, known: Iterable[str], field: str, note: _Notes) -> Document:
    for name in sorted(map(str, found.keys() - set(known))):
        note(f"{field}.{name}", "removed: no such field")
    return {k: v for k, v in found.items() if k in set(known)}


def _app_group(spec: Document, note: _Notes) -> Document:
    spec = _drop_unknown(spec, ("numMembers", "topologySortingAlgorithm", "workloads"), "spec", note)
    raw = _objects_in(spec.get("workloads"))
    items = [_workload(item, f"spec.workloads[{i}]", note) for i, item in enumerate(raw)]
    selectors = {item["workload"]["name"]: item["workload"]["selector"] for item in items}
    merged: dict[str, Document] = {}
    for i, item in enumerate(items):
        selector, field = item["workload"]["selector"], f"spec.workloads[{i}]"
        item["dependencies"] = _dependencies(item.get("dependencies") or [], selector, selectors, field, note)
        if selector in merged:
            note(field, f"merged into the earlier workload with selector {selector!r}, since selectors are unique")
            merged[selector]["dependencies"] += item["dependencies"]
        else:
            merged[selector] = item
    for item in merged.values():
        if not item["dependencies"]:
            del item["dependencies"]
    return {
        "numMembers": _members(spec.get("numMembers"), len(merged), note),
        "topologySortingAlgorithm": _algorithm(spec.get("topologySortingAlgorithm"), note),
        "workloads": list(merged.values()),
    }


def _members(value: object, workloads: int, note: _Notes) -> int:
    count = _integer(value)
    if count is not None and 1 <= count < 2**31:
        if count != value:
            note("spec.numMembers", f"was the text {value!r}, is a number")
        return count
    note("spec.numMembers", f"was {value!r}, is the number of workloads")
    return max(1, workloads)


def _algorithm(value: object, note: _Notes) -> str:
    if value in ALGORITHMS:
        return str(value)
    text = re.sub(r"[^a-z]", "", str(value or "").lower()).replace("reverve", "reverse")
    by_key = {re.sub("sort$", "", name.lower()): name for name in ALGORITHMS}
    found = by_key.get(re.sub("sort$", "", text), "KahnSort")
    note("spec.topologySortingAlgorithm", f"was {value!r}, is {found}")
    return found


def _workload(item: Document, field: str, note: _Notes) -> Document:
    """A workload with its reference complete, and what some spell inside the reference moved out of it."""
    reference, rest = _split_reference(item, field, note)
    moved = reference.pop("dependencies", None)
    if moved is not None:
        note(f"{field}.dependencies", "moved out of the workload's reference")
        rest.setdefault("dependencies", moved)
    rest = _drop_unknown(rest, ("dependencies",), field, note)
    workload = _complete(_drop_unknown(reference, _REFERENCE, f"{field}.workload", note), f"{field}.workload", note)
    if not workload.get("selector"):
        workload["selector"] = _label_value(str(workload["name"]))
        note(f"{field}.workload.selector", f"was missing, is {workload['selector']!r}; pods' labels must say the same")
    return {"workload": workload, **rest}


def _split_reference(item: Document, field: str, note: _Notes) -> tuple[Document, Document]:
    """The reference and everything beside it; a reference may be a text, or lie flat beside its key."""
    rest = {k: v for k, v in item.items() if k not in {"workload", *_REFERENCE}}
    beside = {k: v for k, v in item.items() if k in _REFERENCE}
    inner = item.get("workload")
    if isinstance(inner, Mapping):
        return {**beside, **inner}, rest
    if inner is not None or beside:
        note(f"{field}.workload", "was flat, is an object")
    if isinstance(inner, str):
        beside.setdefault("selector", inner)
        beside.setdefault("name", inner)
    return beside, rest


def _complete(reference: Document, field: str, note: _Notes) -> Document:
    for name in sorted(reference):
        if not isinstance(reference[name], str):
            note(f"{field}.{name}", f"was {reference[name]!r}, is a text")
            reference[name] = "" if isinstance(reference[name], dict | list | None) else str(reference[name])
    reference = {k: v for k, v in reference.items() if v}
    if not reference.get("name"):
        if not reference.get("selector"):
            msg = f"{note.label}: {field} has neither name nor selector"
            raise ConvertError(msg)
        reference["name"] = str(reference["selector"])
        note(f"{field}.name", "was missing, is the selector")
    if not reference.get("kind"):
        reference["kind"] = "Deployment"
        note(f"{field}.kind", "was missing, is Deployment")
    return reference


def _label_value(name: str) -> str:
    return re.sub(r"[^-A-Za-z0-9_.]", "-", name)[:63].strip("-_.") or "workload"


def _dependencies(raw: object, own: str, selectors: Mapping[str, str], field: str, note: _Notes) -> list[Document]:
    found: list[Document] = []
    for i, item in enumerate(raw if isinstance(raw, list) else []):
        where = f"{field}.dependencies[{i}]"
        if not isinstance(item, dict):
            note(where, "removed: no object")
            continue
        dependency = _dependency(item, selectors, where, note)
        if dependency["workload"]["selector"] == own:
            note(where, "removed: a workload cannot depend on itself")
        else:
            found.append(dependency)
    return found


def _dependency(item: Document, selectors: Mapping[str, str], field: str, note: _Notes) -> Document:
    reference, rest = _split_reference(item, field, note)
    for name in ("minBandwidth", "maxNetworkCost"):
        if name in reference:
            note(f"{field}.{name}", "moved out of the workload's reference")
            rest.setdefault(name, reference.pop(name))
    rest = _drop_unknown(rest, ("minBandwidth", "maxNetworkCost"), field, note)
    workload = _complete(_drop_unknown(reference, _REFERENCE, f"{field}.workload", note), f"{field}.workload", note)
    if not workload.get("selector"):
        name = str(workload["name"])
        workload["selector"] = selectors.get(name, _label_value(name))
        note(f"{field}.workload.selector", f"was missing, is {workload['selector']!r}")
    dependency: Document = {"workload": workload}
    rate = _rate(rest.get("minBandwidth"), f"{field}.minBandwidth", note)
    if rate is not None:
        dependency["minBandwidth"] = rate
    if "maxNetworkCost" in rest:
        dependency["maxNetworkCost"] = _bearable(rest["maxNetworkCost"], f"{field}.maxNetworkCost", note)
    return dependency


def _bearable(value: object, field: str, note: _Notes) -> int:
    cost = _integer(value)
    bounded = min(max(cost or 0, 0), GREATEST_COST)
    if bounded != value or isinstance(value, bool):
        note(field, f"was {value!r}, is {bounded}: a number from 0 to {GREATEST_COST}")
    return bounded


def _rate(value: object, field: str, note: _Notes) -> str | int | None:
    if value is None:
        return None
    candidates = [value, re.sub(r"\s|/s$|bps$|bit$|bits$|b$", "", str(value))]
    for candidate in candidates:
        if isinstance(candidate, str | int) and not isinstance(candidate, bool):
            try:
                usable = quantity.parse(candidate) >= 0
            except QuantityError:
                continue
            if usable:
                if candidate is not value:
                    note(field, f"was {value!r}, is {candidate!r}")
                return candidate
    note(field, f"removed: {value!r} is no quantity of bits per second")
    return None


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _network_topology(spec: Document, note: _Notes) -> Document:
    spec = _renamed(spec, "configMapName", "configmapName", "spec", note)
    spec = _drop_unknown(spec, _POLICY_FIELDS, "spec", note)
    name = str(spec.get("configmapName") or "")
    legal = _object_name(name) if name else RESULTS_NAME
    if legal != name:
        note("spec.configmapName", f"was {name!r}, which is no object name" if name else "was missing")
    weights: dict[str, Document] = {}
    for i, raw in enumerate(_objects_in(spec.get("weights"))):
        field = f"spec.weights[{i}]"
        weight = _weight(raw, field, note)
        if weight["name"] in weights:
            note(field, f"removed: there is an earlier weight {weight['name']!r}")
        else:
            weights[weight["name"]] = weight
    policy = {"costPolicy": spec["costPolicy"]} if "costPolicy" in spec else {}
    return {"configmapName": legal, "weights": list(weights.values()), **policy}


def _renamed(found: Document, old: str, new: str, field: str, note: _Notes) -> Document:
    if old not in found:
        return found
    note(f"{field}.{new}", f"was spelled {old}" if new not in found else f"{old} removed: {new} is there too")
    return {(new if k == old else k): v for k, v in found.items() if k != old or new not in found}


def _weight(raw: Document, field: str, note: _Notes) -> Document:
    raw = _drop_unknown(_renamed(raw, "costList", "topologyList", field, note), ("name", "topologyList"), field, note)
    if not raw.get("name"):
        note(f"{field}.name", "was missing, is UserDefined")
    levels = [
        _level(level, f"{field}.topologyList[{i}]", note)
        for i, level in enumerate(_objects_in(raw.get("topologyList")))
    ]
    name = str(raw.get("name") or "UserDefined")
    if name == NETPERF_COSTS:
        ordered = _sorted_as_upstream_needs(levels)
        if ordered != levels:
            note(f"{field}.topologyList", "sorted bytewise, as the upstream plugin searches it")
        levels = ordered
    return {"name": name, "topologyList": levels}


def _sorted_as_upstream_needs(levels: list[Document]) -> list[Document]:
    inner = [{**level, "originList": sorted(level["originList"], key=lambda o: str(o["origin"]))} for level in levels]
    return sorted(inner, key=lambda level: str(level["topologyKey"]))


def _level(raw: Document, field: str, note: _Notes) -> Document:
    raw = _renamed(raw, "originCosts", "originList", field, note)
    raw = _drop_unknown(raw, ("topologyKey", "originList"), field, note)
    if not raw.get("topologyKey"):
        msg = f"{note.label}: {field}.topologyKey is missing: write topology.kubernetes.io/region or .../zone"
        raise ConvertError(msg)
    origins = [
        _origin(origin, f"{field}.originList[{i}]", note) for i, origin in enumerate(_objects_in(raw.get("originList")))
    ]
    return {"topologyKey": str(raw["topologyKey"]), "originList": origins}


def _origin(raw: Document, field: str, note: _Notes) -> Document:
    raw = _drop_unknown(_renamed(raw, "costs", "costList", field, note), ("origin", "costList"), field, note)
    if raw.get("origin") is None:
        msg = f"{note.label}: {field}.origin is missing"
        raise ConvertError(msg)
    entries = [
        _entry(entry, f"{field}.costList[{i}]", note) for i, entry in enumerate(_objects_in(raw.get("costList")))
    ]
    return {"origin": str(raw["origin"]), "costList": [entry for entry in entries if entry is not None]}


def _entry(raw: Document, field: str, note: _Notes) -> Document | None:
    known = ("destination", "networkCost", "bandwidthCapacity", "bandwidthAllocated")
    raw = _drop_unknown(raw, known, field, note)
    cost = _integer(raw.get("networkCost"))
    if raw.get("destination") is None or cost is None or not 0 <= cost < 2**63:
        # No default: 0 would be the best cost and any other arbitrary, so the cost stays unknown.
        note(field, "removed: it needs a destination and a networkCost of 0 or more")
        return None
    if cost != raw["networkCost"] or not isinstance(raw["networkCost"], int):
        note(f"{field}.networkCost", f"was {raw['networkCost']!r}, is {cost}")
    entry: Document = {"destination": str(raw["destination"]), "networkCost": cost}
    for name in known[2:]:
        rate = _rate(raw.get(name), f"{field}.{name}", note)
        if rate is not None:
            entry[name] = rate
    return entry
