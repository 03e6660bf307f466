"""The references in docs/ say what the programs say: they are generated, and what is checked in is current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec

from controller.config import ControllerConfiguration

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def test_references_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def test_every_section_of_the_controllers_file_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    for field in msgspec.structs.fields(ControllerConfiguration):
        assert f"`{field.encode_name}" in text


def test_links_between_documents_lead_somewhere() -> None:
    for path in [*DOCS.glob("*.md"), ROOT / "README.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text()):
            file, _, anchor = target.partition("#")
            where = (path.parent / file).resolve() if file else path
            assert where.exists(), f"{path.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", where.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{path.name}: {target}"


def test_paths_named_in_documents_exist() -> None:
    for path in DOCS.glob("*.md"):
        for named in re.findall(r"`((?:manifests|docs|tests|lab)/[A-Za-z0-9._/-]+)`", path.read_text()):
            assert (ROOT / named).exists(), f"{path.name} names {named}"


def test_metrics_named_in_documents_exist() -> None:
    known = set(re.findall(r"`(netaware_\w+)`", (DOCS / "metrics.md").read_text()))
    assert len(known) > 40
    for path in DOCS.glob("*.md"):
        named = set(re.findall(r"`(netaware_\w+)`", path.read_text()))
        assert named <= known, f"{path.name} names {sorted(named - known)}"
