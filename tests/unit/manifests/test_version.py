"""The version comes from git, and falls back where there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def compute_version(folder: Path) -> str:
    command = [sys.executable, "-m", "hatchling", "version"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, timeout=60).stdout.strip()


def test_the_version_is_the_tag_or_the_next_development_version_and_needs_no_git(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    assert compute_version(tmp_path) == "0.0.0"

    def git(*words: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *words], check=True, capture_output=True, cwd=tmp_path, timeout=60)

    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    assert compute_version(tmp_path).startswith("0.0.1.dev1+g")
    git("tag", "v1.2.3")
    assert compute_version(tmp_path) == "1.2.3"
    git("commit", "--allow-empty", "-m", "two")
    assert compute_version(tmp_path).startswith("1.2.4.dev1+g")
