"""The name of the node's CNI network, which the bandwidth plugin's device names are made of."""

from __future__ import annotations

import json
from pathlib import Path


def find_network(directory: Path) -> str:
    """``name`` in the first configuration of the directory, as container runtimes choose it; empty when there is none."""
    try:
        files = sorted(entry for entry in directory.iterdir() if entry.suffix in {".conflist", ".conf", ".json"})
    except OSError:
        return ""
    for file in files:
        try:
            document = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(document, dict) and isinstance(document.get("name"), str):
            return str(document["name"])
    return ""
