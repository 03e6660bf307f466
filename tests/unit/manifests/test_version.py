"""The version of the package comes from git, and is 0.0.0 without git."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def compute_version(folder: Path) -> str:
    command = [sys.executable, "-m", "hatchling", "version"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, timeout=60).stdout.strip()


def run_git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, cwd=folder, timeout=60)


def test_the_version_is_the_tag_or_the_next_development_version_and_needs_no_git(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    assert compute_version(tmp_path) == "0.0.0"
    run_git(tmp_path, "init")
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "-m", "first")
    assert compute_version(tmp_path).startswith("0.0.1.dev1+g")
    run_git(tmp_path, "tag", "v1.2.3")
    assert compute_version(tmp_path) == "1.2.3"
    run_git(tmp_path, "commit", "--allow-empty", "-m", "second")
    assert compute_version(tmp_path).startswith("1.2.4.dev1+g")
