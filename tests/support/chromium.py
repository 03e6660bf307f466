"""Finds Chromium, or unpacks the distribution's packages in the user's cache, with libraries for LD_LIBRARY_PATH."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.debian import find_or_unpack_packages

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without a font Chromium draws no text.
_PACKAGES = ("chromium", "fonts-dejavu-core", "fontconfig-config")
_PROGRAM = "usr/lib/chromium/chromium"


@dataclass(frozen=True)
class Chromium:
    """The path of Chromium, and environment variables that it needs."""

    path: Path
    env: Mapping[str, str] = field(default_factory=dict)


def find_or_fetch_chromium() -> Chromium:
    """Chromium from PATH, from the cache, or from the distribution's mirror; raises UnsupportedError if there is none."""
    path = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if path is not None:
        return Chromium(Path(path))
    tree = find_or_unpack_packages("chromium", _PACKAGES, programs=[_PROGRAM])
    return Chromium(
        tree.root / _PROGRAM, {**tree.library_environment, "FONTCONFIG_FILE": str(_font_settings(tree.root))}
    )


def _font_settings(root: Path) -> Path:
    """Write a fontconfig file for the unpacked fonts and those of the system; returns its path."""
    settings = root / "fonts.conf"
    folders = (root / "usr/share/fonts", Path("/usr/share/fonts"))
    listed = "".join(f"<dir>{folder}</dir>" for folder in folders)
    cache = f"<cachedir>{root / 'font-cache'}</cachedir>"
    configuration = f'<?xml version="1.0"?>\n<fontconfig>{listed}{cache}</fontconfig>\n'
    # Another worker's Chromium may read the file now.
    if not settings.exists() or settings.read_text() != configuration:
        settings.write_text(configuration)
    return settings
