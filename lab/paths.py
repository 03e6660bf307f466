"""Paths of the lab: built programs in the user's cache, running labs in the user's state directory.

Both follow the XDG base directory rules, so that tests and users can move them with XDG_CACHE_HOME and XDG_STATE_HOME.
"""

from __future__ import annotations

import os
from pathlib import Path

LOGS = "logs"
"""Folder of the programs' logs below a lab's state directory."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that others read meanwhile as it was, or as it is to be; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    draft.rename(path)


def _base(variable: str, fallback: str) -> Path:
    given = os.environ.get(variable, "")
    # The XDG rules say that a relative path is to be ignored.
    return Path(given) if Path(given).is_absolute() else Path.home() / fallback


def cache_dir() -> Path:
    """Directory of built and downloaded programs; safe to delete at any time."""
    return _base("XDG_CACHE_HOME", ".cache") / "netaware"


def labs_dir() -> Path:
    """Directory that holds one state directory per lab."""
    return _base("XDG_STATE_HOME", ".local/state") / "netaware" / "labs"
