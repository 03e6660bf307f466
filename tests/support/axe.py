"""Finds axe-core, the checker of accessibility that the page is held against, or fetches the pinned version with npm into the user's cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from lab.debian import Missing
from lab.paths import cache_dir

FETCH_TIMEOUT_S = 300.0
PINNED = Path(__file__).parent / "axe"
"""Its lock file has the checksum of what is fetched; npm refuses anything else."""
_INSIDE = Path("node_modules/axe-core/axe.min.js")


def find_or_fetch_axe() -> Path | Missing:
    """The script, from the cache or by npm."""
    lock = PINNED / "package-lock.json"
    root = cache_dir() / f"axe-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if (root / _INSIDE).exists():
        return root / _INSIDE
    npm = shutil.which("npm")
    if npm is None:
        return Missing("npm is not on PATH, which fetches axe-core: install the package npm")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="fetching-") as scratch:
        home = Path(scratch) / "axe"
        shutil.copytree(PINNED, home)
        argv = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            subprocess.run(argv, cwd=home, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S)
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
            return Missing(f"axe-core could not be fetched: npm {': '.join(said) or f'ended with {error.returncode}'}")
        except (OSError, subprocess.SubprocessError) as error:
            return Missing(f"axe-core could not be fetched: {error}")
        # Another run may have been faster; then its copy is there.
        with suppress(OSError):
            home.rename(root)
    found = root / _INSIDE
    return found if found.exists() else Missing(f"axe-core was unpacked into {root} and is gone again")
