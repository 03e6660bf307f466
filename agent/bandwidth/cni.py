"""Reads the node's CNI configuration, and the runtime's cache of CNI results per pod.

libcni caches requests and results under ``/var/lib/cni/results``, one file for each container, network and
device (libcni/api.go, ``cachedInfo``). The cache is the only source of the plugin's container id and network in two cases: CRI-O
without a pause container, and Multus, which calls networks that the configuration does not name.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import msgspec

from kubekit.wire import DECODE_ERRORS

CONFIG_DIR, RESULTS_DIR = Path("/etc/cni/net.d"), Path("/var/lib/cni/results")
"""Nodes with other directories mount them here."""
_MAX_BYTES = 262_144


class Network(msgspec.Struct, frozen=True):
    """The node's CNI network: its name, part of the plugin's device names, and the types of its plugins in order."""

    name: str = ""
    plugins: tuple[str, ...] = ()


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one pod, as a runtime set it up.

    Attributes:
        container: the CNI plugins' container id.
        network: name of its network.
        plugins: types of the plugins that were called.
        requested: bandwidth keys of the runtime's request, with values in bits (per second).
    """

    container: str
    network: str
    plugins: tuple[str, ...] = ()
    requested: dict[str, int] = {}


def read_network(directory: Path = CONFIG_DIR) -> Network:
    """The directory's first configuration, as container runtimes choose it; empty without one."""
    try:
        files = sorted(entry for entry in directory.iterdir() if entry.suffix in {".conflist", ".conf", ".json"})
    except OSError:
        return Network()
    for file in files:
        try:
            document = json.loads(file.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(document, dict) and isinstance(document.get("name"), str):
            return Network(document["name"], _plugins(document))
    return Network()


def _plugins(document: object) -> tuple[str, ...]:
    if not isinstance(document, dict):
        return ()
    listed = document.get("plugins", [document])
    types = [plugin.get("type") for plugin in listed if isinstance(plugin, dict)] if isinstance(listed, list) else []
    return tuple(type_ for type_ in types if isinstance(type_, str))


class _Capabilities(msgspec.Struct):
    bandwidth: dict[str, int] | None = None


class _Cached(msgspec.Struct, rename="camel"):
    kind: str
    container_id: str
    network_name: str = ""
    if_name: str = ""
    config: str = ""
    cni_args: list[tuple[str, str]] | None = None
    capability_args: _Capabilities | None = None


_decode_cached = msgspec.json.Decoder(_Cached).decode


class ResultCache:
    """Reads changed files of the cache.

    Args:
        directory: may be missing.
    """

    def __init__(self, directory: Path = RESULTS_DIR) -> None:
        self._directory = directory
        self._known: dict[str, tuple[int, tuple[str, str, Attachment] | None]] = {}

    def read(self, interface: str) -> dict[str, Attachment]:
        """The attachment of each pod's device, by uid; the bandwidth plugin's if there are several."""
        try:
            with os.scandir(self._directory) as entries:
                stamps = {entry.name: entry.stat().st_mtime_ns for entry in entries if entry.is_file()}
        except OSError:
            return {}
        known = {}
        for name, stamp in stamps.items():
            before = self._known.get(name)
            known[name] = before if before is not None and before[0] == stamp else (stamp, self._parse(name))
        self._known = known
        by_uid: dict[str, tuple[tuple[bool, bool, int], Attachment]] = {}
        for stamp, parsed in known.values():
            if parsed is None or parsed[1] != interface:
                continue
            uid, _, attachment = parsed
            # Multus caches results too; the newest belongs to the pod's current sandbox.
            rank = ("bandwidth" in attachment.plugins, "multus" not in attachment.plugins, stamp)
            if uid not in by_uid or rank > by_uid[uid][0]:
                by_uid[uid] = rank, attachment
        return {uid: attachment for uid, (_, attachment) in by_uid.items()}

    def _parse(self, name: str) -> tuple[str, str, Attachment] | None:
        try:
            with (self._directory / name).open("rb") as file:
                return parse_cached(file.read(_MAX_BYTES))
        except OSError:
            return None


def parse_cached(data: bytes) -> tuple[str, str, Attachment] | None:
    """Pod uid, device in the pod, and its attachment; None if the file is not a cached result of a pod."""
    try:
        cached = _decode_cached(data)
    except DECODE_ERRORS:
        return None
    uid = next((value for name, value in cached.cni_args or () if name == "K8S_POD_UID"), "")
    if cached.kind != "cniCacheV1" or not uid:
        return None
    try:
        plugins = _plugins(json.loads(base64.b64decode(cached.config)))
    except (ValueError, RecursionError):
        plugins = ()
    attachment = Attachment(
        container=cached.container_id,
        network=cached.network_name,
        plugins=plugins,
        requested=(cached.capability_args.bandwidth if cached.capability_args is not None else None) or {},
    )
    return uid, cached.if_name, attachment
