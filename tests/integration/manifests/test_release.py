"""What a release runs, as far as it runs here: the workflows are sound, the chart packs with digests, the bill of materials is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.integration.manifests.kubectl import MANIFESTS

ROOT = MANIFESTS.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def test_workflows_are_sound_in_the_eyes_of_actionlint(actionlint_program: Path) -> None:
    assert WORKFLOWS
    command = [str(actionlint_program), "-no-color", *map(str, WORKFLOWS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=110)
    assert done.returncode == 0, done.stdout


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


def test_the_chart_names_images_by_their_digests(tmp_path: Path) -> None:
    digest = f"sha256:{'a' * 64}"
    (tmp_path / "agent.json").write_text(json.dumps({"containerimage.digest": digest}))
    command = [sys.executable, "manifests/helm/generate.py", "--version=1.2.3", "--registry=r.example/t"]
    subprocess.run([*command, f"--digests={tmp_path}", f"--to={tmp_path}"], check=True, cwd=ROOT, timeout=110)
    images = yaml.safe_load((tmp_path / "netaware" / "values.yaml").read_text())["images"]
    named = {program: (images[program]["repository"], images[program]["digest"]) for program in ("agent", "controller")}
    assert named == {
        "agent": ("r.example/t/netaware-agent", digest),
        "controller": ("r.example/t/netaware-controller", ""),
    }


@pytest.mark.parametrize("program", ["agent", "controller"])
def test_bill_of_materials_names_each_package_once_with_its_hash(tmp_path: Path, program: str) -> None:
    subprocess.run([sys.executable, ".ci/bill.py", "sbom", str(tmp_path)], check=True, cwd=ROOT, timeout=60)
    bill = json.loads((tmp_path / f"netaware-{program}.spdx.json").read_text())
    names = [package["name"] for package in bill["packages"]]
    assert len(names) == len(set(names)) > 10
    assert {"aiohttp", "msgspec"} < set(names)
    hashed = [
        p for p in bill["packages"] if any("pkg:pypi" in r["referenceLocator"] for r in p.get("externalRefs", ()))
    ]
    assert all(len(p["checksums"][0]["checksumValue"]) == 64 for p in hashed)
    assert {p["licenseDeclared"] for p in hashed if p["name"] in {"aiohttp", "msgspec"}} != {"NOASSERTION"}


def test_licences_are_current() -> None:
    done = subprocess.run([sys.executable, ".ci/bill.py", "licences", "--check"], check=False, cwd=ROOT, timeout=60)
    assert done.returncode == 0
