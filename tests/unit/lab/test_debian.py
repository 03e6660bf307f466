"""Packages that are unpacked into the cache, with stand-ins for apt, dpkg and ldd."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.apt import Source
from lab.debian import Missing, Unpacked, fetch_program

MIRROR = Source("http://mirror.example/debian", ("trixie",), ("main",))
APT = """#!/bin/sh
echo "$*" >> "$SAID"
case "$*" in
*--simulate*) echo "Inst one (1)"; echo "Inst one-needs (1)" ;;
*download*) touch one.deb ;;
esac
"""
DPKG = """#!/bin/sh
mkdir -p "$3/usr/lib/chromium" "$3/usr/bin"
touch "$3/usr/lib/chromium/chromium" "$3/usr/bin/one"
"""


@pytest.fixture
def apt_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The commands of apt, as they come."""
    for name, text in (("apt-get", APT), ("dpkg", DPKG), ("ldd", '#!/bin/sh\necho "$LDD"\n')):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(tmp_path / "bin"), os.environ["PATH"])))
    monkeypatch.setenv("SAID", str(tmp_path / "apt.log"))
    return tmp_path / "apt.log"


def one(root: Path) -> Path | None:
    program = root / "usr/bin/one"
    return program if Unpacked(root).runs(program) else None


def test_a_package_is_fetched_with_its_dependencies(apt_log: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache" / "one"
    assert fetch_program("One", root, ("one",), [MIRROR], one) == root / "usr/bin/one"
    assert apt_log.read_text().splitlines()[-1].endswith("download one one-needs")
    assert list(root.parent.iterdir()) == [root]


@pytest.mark.usefixtures("apt_log")
def test_a_program_that_lacks_a_library_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LDD", "libone.so.1 => not found")
    found = fetch_program("One", tmp_path / "cache" / "one", ("one",), [MIRROR], one)
    assert found == Missing("One was fetched but does not run here: a library it needs is missing")
    assert not (tmp_path / "cache" / "one").exists()
