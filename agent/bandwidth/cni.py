"""Reads the node's CNI configuration, and the runtime's cache of CNI results per pod.

libcni caches requests and results under ``/var/lib/cni/results``, one file for each container, network and device (libcni/api.go,
``cachedInfo``). In two cases only this cache names the container id and network that the plugin got: CRI-O without a pause container,
and Multus, which uses networks that the configuration does not name.
"""

from __future__ import annotations

import base64
import json
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from kubekit.wire import DECODE_ERRORS

CONFIG_DIR, RESULTS_DIR = Path("/etc/cni/net.d"), Path("/var/lib/cni/results")
"""Nodes with other directories mount them at these paths."""
POD_INTERFACE = "eth0"
"""Name of a pod's device in its own network namespace."""
_MAX_FILE_BYTES = 262_144
"""Larger cached results are ignored."""


class Network(msgspec.Struct, frozen=True):
    """The node's CNI network: its name, which is part of the names of ifbs, and the types of its plugins in order."""

    name: str = ""
    plugins: tuple[str, ...] = ()


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """The eth0 of one pod, as a runtime attached it to a network.

    Attributes:
        pod_uid: the argument K8S_POD_UID.
        container_id: the variable CNI_CONTAINERID.
        network: name of the network.
        plugins: types of the plugins that were called.
        requested_bandwidth: the runtime's request: ``ingressRate`` and ``egressRate`` in bits per second, ``…Burst`` in bits.
    """

    pod_uid: str
    container_id: str
    network: str
    plugins: tuple[str, ...] = ()
    requested_bandwidth: dict[str, int] = {}


def read_network(directory: Path = CONFIG_DIR) -> Network:
    """Read the directory's first valid configuration by name, as container runtimes choose it; empty if there is none."""
    try:
        files = sorted(entry for entry in directory.iterdir() if entry.suffix in {".conflist", ".conf", ".json"})
    except OSError:
        return Network()
    for file in files:
        try:
            document = json.loads(file.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        plugins = _read_plugin_types(document)
        if plugins and isinstance(document.get("name"), str):
            return Network(document["name"], plugins)
    return Network()


def _read_plugin_types(document: object) -> tuple[str, ...]:
    """Read the types of a configuration's plugins; a ``.conf`` file is one plugin."""
    if not isinstance(document, dict):
        return ()
    plugins = document.get("plugins", [document])
    types = [plugin.get("type") for plugin in plugins if isinstance(plugin, dict)] if isinstance(plugins, list) else []
    return tuple(type_ for type_ in types if isinstance(type_, str))


class _Capabilities(msgspec.Struct):
    bandwidth: dict[str, int] | None = None


class _CachedInfo(msgspec.Struct, rename="camel"):
    kind: str
    container_id: str
    network_name: str = ""
    if_name: str = ""
    config: str = ""
    cni_args: list[tuple[str, str]] | None = None
    capability_args: _Capabilities | None = None


_decode_cached_info = msgspec.json.Decoder(_CachedInfo).decode


class ResultCache:
    """Reads the runtime's cache of CNI results. Unchanged files are not read again; the directory may be missing."""

    def __init__(self, directory: Path = RESULTS_DIR) -> None:
        self._directory = directory
        self._attachment_by_file: dict[tuple[str, int], Attachment | None] = {}  # by name and modification time

    def read_attachments(self) -> dict[str, Attachment]:
        """Read the attachment of each pod, by pod uid.

        If a pod has several, the one with the bandwidth plugin counts, else the newest one that is not of Multus itself.
        """
        previous, self._attachment_by_file = self._attachment_by_file, {}
        with suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                # A file that cannot be read or decoded is tried again: the runtime may be writing it, and change it within one clock tick.
                with suppress(OSError, *DECODE_ERRORS):
                    file = (entry.name, entry.stat().st_mtime_ns)
                    if file in previous:
                        self._attachment_by_file[file] = previous[file]
                    elif entry.is_file() and entry.stat().st_size <= _MAX_FILE_BYTES:
                        self._attachment_by_file[file] = parse_cached_result(Path(entry).read_bytes())
        items = self._attachment_by_file.items()
        attachments = [(a, mtime_ns) for (_, mtime_ns), a in items if a is not None]
        # The best of a pod comes last, and replaces the others. The newest belongs to the pod's current sandbox.
        attachments.sort(key=lambda item: ("bandwidth" in item[0].plugins, "multus" not in item[0].plugins, item[1]))
        return {attachment.pod_uid: attachment for attachment, _ in attachments}


def parse_cached_result(data: bytes) -> Attachment | None:
    """Parse a file of the cache; None if it is not the result of a pod's eth0. Raises `DECODE_ERRORS`."""
    cached = _decode_cached_info(data)
    uid = next((value for name, value in cached.cni_args or () if name == "K8S_POD_UID"), "")
    if cached.kind != "cniCacheV1" or cached.if_name != POD_INTERFACE or not uid:
        return None
    try:
        plugins = _read_plugin_types(json.loads(base64.b64decode(cached.config)))
    except (ValueError, RecursionError):
        plugins = ()
    return Attachment(
        pod_uid=uid,
        container_id=cached.container_id,
        network=cached.network_name,
        plugins=plugins,
        requested_bandwidth=(cached.capability_args.bandwidth if cached.capability_args is not None else None) or {},
    )
