"""What a lab needs (programs, packages, images) is built or fetched once, and again only if it changed or does not run."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.build import find_or_build_binaries
from lab.debian import find_or_unpack_packages
from lab.errors import BuildError, UnsupportedError
from lab.image_build import ImageRecipe, fingerprint_recipe
from lab.realnode.images import ImageStore

DIGEST = "0" * 64
# Stand-ins for Debian's tools: a download creates a package, whose only content is its root folder.
APT_GET = """#!/bin/sh
case "$*" in *download*) echo "$@" >> "$DOWNLOADS"; sleep 0.1; touch tool.deb;; esac
"""
DPKG = """#!/bin/sh
mkdir -p "$3"
"""


def write_script(file: Path, script: str) -> None:
    file.write_text(script)
    file.chmod(0o755)


def test_a_wrong_program_folder_is_reported_with_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "absent"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="KUBEBUILDER_ASSETS"):
        find_or_build_binaries()


def test_packages_with_broken_programs_are_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "netaware" / "debian" / "tools"
    folder.mkdir(parents=True)
    (folder / ".complete").write_text("nft")
    monkeypatch.setenv("PATH", "")
    assert find_or_unpack_packages("tools", ["nft"]).root == folder
    with pytest.raises(UnsupportedError, match="apt-get"):  # It tries to fetch, and the empty PATH has no apt-get.
        find_or_unpack_packages("tools", ["nft"], programs=["usr/sbin/nft"])


def test_two_processes_fetch_the_same_packages_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_script(tmp_path / "apt-get", APT_GET)
    write_script(tmp_path / "dpkg", DPKG)
    downloads = tmp_path / "downloads"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DOWNLOADS", str(downloads))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor() as executor:
        futures = [executor.submit(find_or_unpack_packages, "tools", ["nft"]) for _ in range(2)]
    assert all(future.result().root.is_dir() for future in futures)
    assert len(downloads.read_text().splitlines()) == 1


def test_the_fingerprint_changes_only_with_files_that_the_dockerfile_copies(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a AS b\nCOPY module package/ ./\nFROM c\nCOPY --from=b /x /x\n")
    (tmp_path / "package" / "__pycache__").mkdir(parents=True)
    (tmp_path / "module").write_text("1")
    (tmp_path / "package" / "code.py").write_text("2")

    recipe = ImageRecipe("image", "Dockerfile", tmp_path)
    assert recipe.sources == ("module", "package")
    fingerprint = fingerprint_recipe(recipe)
    (tmp_path / "package" / "__pycache__" / "code.pyc").write_text("compiled")
    (tmp_path / "not-copied").write_text("3")
    assert fingerprint_recipe(recipe) == fingerprint
    (tmp_path / "package" / "code.py").write_text("changed")
    assert fingerprint_recipe(recipe) != fingerprint


def test_an_image_is_added_again_after_its_former_build_was_removed(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store")
    for build in ("former", "latest"):
        blob = tmp_path / build / "blobs" / "sha256" / DIGEST
        blob.parent.mkdir(parents=True)
        blob.write_text(build)
        (tmp_path / build / "index.json").write_text(f'{{"manifests": [{{"digest": "sha256:{DIGEST}"}}]}}')
        store.add_oci_layout("image", tmp_path / build)
        assert store.blob_path(f"sha256:{DIGEST}").read_text() == build
        shutil.rmtree(tmp_path / build)
