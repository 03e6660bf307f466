"""Reads a cluster from a file, as ``kubectl get -o json`` or ``-o yaml`` prints it.

Such files may be edited: null fields read as empty, quantities may be numbers, and invalid objects are left out with a note.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from controller.cluster.pods import Pod
from controller.cluster.services import Service
from controller.cluster.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from controller.convert.documents import split_document
from controller.convert.spellings import convert_documents
from kubekit.errors import ConfigError, KubekitError
from kubekit.wire import DECODE_ERRORS, Node, Object

MAX_PARSER_ERROR_LENGTH = 300
DEFAULT_ALLOCATABLE_PODS = "110"
"""The kubelet's default, for nodes without the field."""
_QUANTITY_MAPS = frozenset({"requests", "limits", "allocatable", "capacity", "overhead"})
_NAMESPACED_KINDS = frozenset({"Pod", "Service", "AppGroup", "NetworkTopology", "PersistentVolumeClaim"})


class ClusterFile(msgspec.Struct, frozen=True):
    """The objects of a file, by kind and in the file's order. ``problems`` has a line for each object that was left out, with the reason."""

    nodes: list[Node] = []
    pods: list[Pod] = []
    services: list[Service] = []
    volumes: list[PersistentVolume] = []
    claims: list[PersistentVolumeClaim] = []
    storage_classes: list[StorageClass] = []
    groups: list[AppGroup] = []
    namespaces: list[Object] = []
    topologies: list[NetworkTopology] = []
    problems: list[str] = []


_FIELD_BY_KIND: dict[str, tuple[str, type[Object]]] = {
    "Node": ("nodes", Node),
    "Pod": ("pods", Pod),
    "Service": ("services", Service),
    "PersistentVolume": ("volumes", PersistentVolume),
    "PersistentVolumeClaim": ("claims", PersistentVolumeClaim),
    "StorageClass": ("storage_classes", StorageClass),
    "AppGroup": ("groups", AppGroup),
    "Namespace": ("namespaces", Object),
    "NetworkTopology": ("topologies", NetworkTopology),
}
"""Kind -> field of `ClusterFile`, type of the object."""
_API_VERSION_BY_KIND = {crd.kind: f"{crd.group}/{crd.version}" for crd in (APPGROUPS, NETWORK_TOPOLOGIES)}


def read_cluster(path: str) -> ClusterFile:
    """Read the objects of the kinds of `ClusterFile` from the file ``--offline``; for errors see `read_documents`."""
    cluster = ClusterFile()
    seen_keys: set[tuple[str, str]] = set()
    for document in read_documents([path], "--offline"):
        for item in split_document(document, cluster.problems):
            _add_object(item, cluster, seen_keys)
    return cluster


def read_documents(paths: Iterable[str], flag: str) -> list[Any]:
    """The documents of files, JSON or YAML; ``-`` is standard input.

    Raises:
        ConfigError: a file cannot be read, or is neither JSON nor YAML; names ``flag``, which gave the path.
    """
    return [document for path in paths for document in _read_file(path, flag)]


def _read_file(path: str, flag: str) -> list[Any]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(flag, f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(flag, f"{path} is not UTF-8: {error}") from error
    try:
        return [msgspec.json.decode(text)]
    except DECODE_ERRORS:
        pass
    try:
        return list(yaml.load_all(text, Loader=_PlainLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        detail = " ".join(str(error).split())[:MAX_PARSER_ERROR_LENGTH]
        raise ConfigError(flag, f"{path} is neither JSON nor YAML: {detail}") from error


class _PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Keeps timestamps as strings, as JSON and kubectl do."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _add_object(item: dict[str, Any], cluster: ClusterFile, seen_keys: set[tuple[str, str]]) -> None:
    """Add an object to ``cluster``, and its kind and key to ``seen_keys``, which finds repeated objects.

    An invalid, nameless or repeated object becomes a problem; other kinds than those of `ClusterFile` are ignored.
    """
    kind = str(item.get("kind") or "")
    if kind not in _FIELD_BY_KIND:
        return
    field, type_ = _FIELD_BY_KIND[kind]
    name = "?"  # Until it is known, for the message of an error.
    try:
        normalized = normalize(_with_current_spelling(item) if kind in _API_VERSION_BY_KIND else item)
        metadata = normalized.setdefault("metadata", {})
        name = str(metadata.get("name") or "?")
        if kind in _NAMESPACED_KINDS:
            metadata.setdefault("namespace", "default")
        decoded = msgspec.convert(normalized, type_, strict=False)
    except (msgspec.ValidationError, KubekitError, AttributeError) as error:
        cluster.problems.append(f"left out: {kind} {name}: {error}")
        return
    key = decoded.metadata.key
    if not decoded.metadata.name:
        cluster.problems.append(f"left out: a {kind} without a name")
    elif (kind, key) in seen_keys:
        cluster.problems.append(f"left out: a second {kind} {key}")
    else:
        seen_keys.add((kind, key))
        added = _with_default_allocatable(decoded) if isinstance(decoded, Node) else decoded
        getattr(cluster, field).append(added)


def _with_current_spelling(item: dict[str, Any]) -> dict[str, Any]:
    """The object with the API group and field names that the API server accepts."""
    if str(item.get("apiVersion") or "") in {_API_VERSION_BY_KIND[item["kind"]], ""}:
        return item
    return convert_documents([item])[0][0]


def normalize(value: Any, key: str = "") -> Any:
    """A value of the field ``key`` without nulls, and with quantities as strings."""
    if isinstance(value, dict):
        are_quantities = key in _QUANTITY_MAPS
        return {
            str(name): str(inner) if are_quantities and isinstance(inner, int | float) else normalize(inner, str(name))
            for name, inner in value.items()
            if inner is not None
        }
    if isinstance(value, list):
        return [normalize(inner) for inner in value if inner is not None]
    return value


def _with_default_allocatable(node: Node) -> Node:
    """Fill in a missing allocatable from the capacity, and missing ``pods`` from the capacity or the kubelet's default."""
    status = node.status
    allocatable = status.allocatable or status.capacity or {}
    if allocatable and "pods" not in allocatable:
        allocatable = {**allocatable, "pods": (status.capacity or {}).get("pods", DEFAULT_ALLOCATABLE_PODS)}
    return msgspec.structs.replace(node, status=msgspec.structs.replace(status, allocatable=allocatable))
