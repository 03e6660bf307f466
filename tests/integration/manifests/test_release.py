"""Release workflows name existing targets and tools, and the bill of materials is complete."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from lab.build import Module
from tests.integration.manifests.kubectl import MANIFESTS
from tests.support.tools import builds

ROOT = MANIFESTS.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def list_jobs() -> list[dict[str, Any]]:
    return [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]


def test_workflows_pin_third_party_actions_to_commits() -> None:
    used = {step["uses"] for job in list_jobs() for step in (job, *job.get("steps", ())) if "uses" in step}
    assert [name for name in used if not re.search(r"^\./|@[0-9a-f]{40}$", name)] == []


def test_workflows_run_make_targets_that_exist() -> None:
    makefiles = "".join((ROOT / name).read_text() for name in ("Makefile", "release.mk"))
    targets = set(re.findall(r"^([a-z-]+):(?!=)", makefiles, re.MULTILINE))
    commands = [step.get("run", "") for job in list_jobs() for step in job.get("steps", ())]
    used = {
        word
        for command in commands
        if command.startswith("make ")
        # An expression of GitHub, ``${{ matrix.x }}``, has blanks.
        for word in shlex.split(command.replace("${{ ", "").replace(" }}", ""))[1:]
        if "=" not in word
    }
    assert used, "no target was found, so nothing was checked"
    assert used <= targets


def test_tools_of_a_release_are_defined() -> None:
    """The macro TOOL of release.mk takes the name of a module in tests.support.tools.builds."""
    tool_names = set(re.findall(r"\$\(TOOL\) (\w+)", (ROOT / "release.mk").read_text()))
    assert tool_names
    assert {name for name in tool_names if not isinstance(getattr(builds, name, None), Module)} == set()


def test_bills_of_materials_name_each_package_once_with_its_hash_and_licence(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ".ci/image_packages.py", "sbom", str(tmp_path)], check=True, cwd=ROOT, timeout=60)
    for program in ("agent", "controller"):
        packages = json.loads((tmp_path / f"netaware-{program}.spdx.json").read_text())["packages"]
        names = [package["name"] for package in packages]
        assert len(names) == len(set(names))
        python_packages = {
            package["name"]: package
            for package in packages
            if any("pkg:pypi" in reference["referenceLocator"] for reference in package.get("externalRefs", ()))
        }
        assert all(len(package["checksums"][0]["checksumValue"]) == 64 for package in python_packages.values())
        for name in ("aiohttp", "msgspec"):
            assert python_packages[name]["licenseDeclared"] != "NOASSERTION"


def test_documents_name_the_registry_of_the_release() -> None:
    (pushed_path,) = re.findall(r'push \S+ "oci://\$\(REGISTRY\)(\S*)"', (ROOT / "release.mk").read_text())
    documented_paths = re.findall(r"oci://REGISTRY(\S+)", (ROOT / "docs" / "upgrade.md").read_text())
    assert documented_paths == [f"{pushed_path}/netaware"]
