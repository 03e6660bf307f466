"""Finds Chromium, or downloads the distribution's packages into the user's cache; nothing is installed.

Its libraries are unpacked beside it and found by LD_LIBRARY_PATH.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.debian import find_or_unpack_packages

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A font with the signs that the page uses; without any font Chromium draws nothing at all.
_PACKAGES = ("chromium", "fonts-dejavu-core", "fontconfig-config")
_INSIDE = "usr/lib/chromium/chromium"


@dataclass(frozen=True)
class Chromium:
    """The path of Chromium, and variables that it needs; usually none."""

    path: Path
    env: Mapping[str, str] = field(default_factory=dict)


def find_or_fetch() -> Chromium:
    """Return Chromium from PATH, from the cache, or from the distribution's mirror, in this order.

    Raises:
        UnsupportedError: it cannot be had here; says why.
    """
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return Chromium(Path(found))
    tree = find_or_unpack_packages("chromium", _PACKAGES, programs=[_INSIDE])
    return Chromium(
        tree.root / _INSIDE, {**tree.library_environment, "FONTCONFIG_FILE": str(_font_settings(tree.root))}
    )


def _font_settings(root: Path) -> Path:
    """A fontconfig file that knows the unpacked fonts and the system's, written where it does not name them as they are now."""
    settings = root / "fonts.conf"
    folders = (root / "usr/share/fonts", Path("/usr/share/fonts"))
    listed = "".join(f"<dir>{folder}</dir>" for folder in folders)
    cache = f"<cachedir>{root / 'font-cache'}</cachedir>"
    text = f'<?xml version="1.0"?>\n<fontconfig>{listed}{cache}</fontconfig>\n'
    if not settings.exists() or settings.read_text() != text:
        settings.write_text(text)
    return settings
