"""Reads YAML whose indentation got lost on the way, as in slides and web pages that were turned into text.

The example objects of the network-aware plugins are mostly met in that form. Without indentation they are still clear to a
reader, because each field belongs in one place only; the same knowledge rebuilds them here. A reader that takes the text for
YAML would silently keep the last of many fields of one name, so repeated fields are refused there.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from controller.convert.spellings import ConvertError, Document

_LINE = re.compile(r"(?P<dash>(?:-\s+)?)(?P<key>[A-Za-z][\w.\-]*)\s*:(?:\s+(?P<value>.*))?\Z")
_REFERENCE = frozenset({"kind", "apiVersion", "namespace", "name", "selector"})
_PARENTS = {"name": "spec", "topologyKey": "name", "origin": "topologyKey", "destination": "origin"}
_NEEDS = frozenset({"minBandwidth", "maxNetworkCost"})


def read_documents(text: str) -> list[object]:
    """Read YAML or JSON documents; AppGroups and NetworkTopologies also without their indentation.

    Raises:
        ConvertError: a document is neither; says where.
    """
    documents: list[object] = []
    for number, chunk in enumerate(re.split(r"(?m)^---.*$", text), start=1):
        try:
            documents += [d for d in yaml.load_all(chunk, Loader=_StrictLoader) if d is not None]
        except yaml.YAMLError as error:
            rebuilt = _rebuild(chunk)
            if rebuilt is None:
                msg = f"document {number} is not YAML: {error}"
                raise ConvertError(msg) from error
            documents.append(rebuilt)
    return documents


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, but a field that is there twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = [self.construct_object(key, deep=True) for key, _ in node.value]
        repeated = sorted({str(key) for key in seen if seen.count(key) > 1})
        if repeated:
            problem = f"repeated fields {', '.join(repeated)}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_mapping(node, deep=deep)


def _rebuild(chunk: str) -> Document | None:
    fields = _fields(chunk)
    kinds = [value for _, key, value in fields if key == "kind"]
    if not kinds or kinds[0] not in {"AppGroup", "NetworkTopology"}:
        return None
    head, body = _split_at_spec(fields)
    document: Document = {"metadata": {}}
    for _, key, value in head:
        if key in {"apiVersion", "kind"}:
            document[key] = value
        elif key in {"name", "namespace"}:
            document["metadata"][key] = value
    document["spec"] = _group_spec(body) if kinds[0] == "AppGroup" else _topology_spec(body)
    return document


Field = tuple[bool, str, Any]
"""Whether a dash begins the line, the key, the value."""


def _fields(chunk: str) -> list[Field]:
    found: list[Field] = []
    for line in chunk.splitlines():
        match = _LINE.match(re.sub(r"(^|\s)#.*", "", line).strip())
        if match is not None:
            found.append((bool(match["dash"]), match["key"], _scalar(match["value"] or "")))
    return found


def _scalar(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _split_at_spec(fields: list[Field]) -> tuple[list[Field], list[Field]]:
    at = next((i for i, (_, key, value) in enumerate(fields) if key == "spec" and value is None), len(fields))
    return fields[:at], fields[at + 1 :]


def _group_spec(fields: list[Field]) -> Document:
    """Entries are dependencies where they have a need of their own and their workload has announced dependencies."""
    spec: Document = {"workloads": []}
    entries: list[tuple[Document, bool]] = []
    for dash, key, value in fields:
        if dash and key == "workload":
            entries.append(({"workload": {}}, False))
        elif not entries:
            if value is not None:
                spec[key] = value
        elif key == "dependencies":
            entries[-1] = (entries[-1][0], True)
        elif key in _REFERENCE:
            entries[-1][0]["workload"][key] = value
        else:
            entries[-1][0][key] = value
    takes_dependencies = False
    for entry, announces in entries:
        if takes_dependencies and not announces and _NEEDS & entry.keys():
            spec["workloads"][-1]["dependencies"].append(entry)
        else:
            takes_dependencies = announces
            spec["workloads"].append({**entry, "dependencies": []} if announces else entry)
    return spec


def _topology_spec(fields: list[Field]) -> Document:
    """Every list below a weight is announced by a key of its own, whose spelling differs; it is kept for the record."""
    spec: Document = {"weights": []}
    open_items: dict[str, Document] = {"spec": spec}
    spelled = {"spec": "weights", "name": "topologyList", "topologyKey": "originList", "origin": "costList"}
    last = "spec"
    for dash, key, value in fields:
        if dash and key in _PARENTS:
            parent = _PARENTS[key]
            open_items[key] = {key: value}
            open_items.get(parent, spec).setdefault(spelled[parent], []).append(open_items[key])
            last = key
        elif value is None and last in spelled:
            spelled[last] = key
        elif value is not None:
            open_items[last][key] = value
    return spec
