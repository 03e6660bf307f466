"""Release workflows name existing targets and tools, and the bill of materials is complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lab.build import Module
from tests.integration.manifests.kubectl import MANIFESTS
from tests.support.tools import builds

ROOT = MANIFESTS.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def test_workflows_name_actions_of_others_by_digest() -> None:
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]
    used = {step["uses"] for job in jobs for step in (job, *job.get("steps", ())) if "uses" in step}
    assert [name for name in used if not re.search(r"^\./|@[0-9a-f]{40}$", name)] == []


def test_workflows_run_make_targets_that_exist() -> None:
    targets = {
        line.partition(":")[0] for name in ("Makefile", "release.mk") for line in (ROOT / name).read_text().splitlines()
    }
    used = [
        word
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job.get("steps", ())
        if step.get("run", "").startswith("make ")
        for word in step["run"].split()[1:]
        if "=" not in word and not word.startswith(("$", "{", "}", "matrix"))
    ]
    assert len(used) > 8
    assert set(used) <= targets


def test_tools_of_a_release_are_defined() -> None:
    named = set(re.findall(r"\$\(TOOL\) (\w+)", (ROOT / "release.mk").read_text()))
    assert named
    assert {name for name in named if not isinstance(getattr(builds, name, None), Module)} == set()


@pytest.mark.parametrize("program", ["agent", "controller"])
def test_bill_of_materials_names_each_package_once_with_its_hash(tmp_path: Path, program: str) -> None:
    subprocess.run([sys.executable, ".ci/image_packages.py", "sbom", str(tmp_path)], check=True, cwd=ROOT, timeout=60)
    document = json.loads((tmp_path / f"netaware-{program}.spdx.json").read_text())
    names = [package["name"] for package in document["packages"]]
    assert len(names) == len(set(names)) > 10
    assert {"aiohttp", "msgspec"} < set(names)
    python_packages = [
        p for p in document["packages"] if any("pkg:pypi" in r["referenceLocator"] for r in p.get("externalRefs", ()))
    ]
    assert all(len(p["checksums"][0]["checksumValue"]) == 64 for p in python_packages)
    assert {p["licenseDeclared"] for p in python_packages if p["name"] in {"aiohttp", "msgspec"}} != {"NOASSERTION"}


def test_documents_name_the_registry_of_the_release() -> None:
    (pushed,) = re.findall(r'push \S+ "oci://\$\(REGISTRY\)(\S*)"', (ROOT / "release.mk").read_text())
    named = re.findall(r"oci://REGISTRY(\S+)", (ROOT / "docs" / "upgrade.md").read_text())
    assert named == [f"{pushed}/netaware"]
