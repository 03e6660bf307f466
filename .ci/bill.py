"""What the images carry: an SPDX 2.3 document for each program, and the table of licences in docs/licences.md.

    python .ci/bill.py sbom DIR        writes DIR/netaware-agent.spdx.json and DIR/netaware-controller.spdx.json
    python .ci/bill.py licences        writes docs/licences.md
    python .ci/bill.py licences --check   changes nothing and ends with 1 when it is not current

Versions and hashes are the lock file's, licences what each package says of itself.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "licences.md"
PROGRAMS = ("agent", "controller")
# Its copyright file is /usr/share/doc/netperf/copyright in the image.
DEBIAN = {"agent": ("netperf", "2.7.0", "NOASSERTION")}
HEAD = """# Licences of what the images carry

Written by `python .ci/bill.py licences`. The project itself is under Apache-2.0. Beside these packages an image has its base,
`python:3.13-slim-trixie`, whose files name their licences in `/usr/share/doc` and in Python's own `LICENSE.txt`.

| package | version | licence, as the package states it | in |
|---|---|---|---|
"""
# Long texts and old spellings in the metadata, for what SPDX calls them.
SPELLINGS = {
    "apache 2.0": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "mit license": "MIT",
    "mit": "MIT",
    "bsd license": "BSD-3-Clause",
    "bsd": "BSD-3-Clause",
    "bsd-3-clause license": "BSD-3-Clause",
    "public domain": "LicenseRef-Public-Domain",
}


def locked() -> dict[str, Any]:
    """Packages of the lock file by name."""
    return {package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}


def closure(packages: dict[str, Any], program: str) -> list[str]:
    """Every package that the extra of a program brings, but for markers that never hold in an image."""
    own = packages["netaware"]
    waiting = [*own["dependencies"], *own["optional-dependencies"][program]]
    found: set[str] = set()
    while waiting:
        entry = waiting.pop()
        if entry["name"] in found or _never(entry.get("marker", "")):
            continue
        found.add(entry["name"])
        package = packages[entry["name"]]
        waiting += package.get("dependencies", [])
        for extra in entry.get("extra", ()):
            waiting += package.get("optional-dependencies", {}).get(extra, [])
    return sorted(found)


def _never(marker: str) -> bool:
    """Images are Python 3.13 on Linux; the lock file writes nothing more complicated than these."""
    return bool(re.search(r"python_full_version < '3\.1[123]|sys_platform == '(win32|darwin|cygwin)'", marker))


def licence(name: str) -> str:
    """The SPDX expression of a package that is installed here; NOASSERTION when it states none."""
    try:
        stated = metadata(name)
    except PackageNotFoundError:
        return "NOASSERTION"
    expression = stated.get("License-Expression")
    if expression:
        return str(expression)
    text = str(stated.get("License") or "").strip()
    classifiers = [
        str(value).rpartition(" :: ")[2] for value in stated.get_all("Classifier") or () if "License ::" in str(value)
    ]
    for candidate in (text, *classifiers):
        if candidate.lower() in SPELLINGS:
            return SPELLINGS[candidate.lower()]
    return text if text and "\n" not in text and len(text) < 60 else (classifiers or ["NOASSERTION"])[0]


def rows(packages: dict[str, Any]) -> Iterator[str]:
    """Lines of the table."""
    carried = {program: closure(packages, program) for program in PROGRAMS}
    for name in sorted({name for names in carried.values() for name in names}):
        where = ", ".join(program for program in PROGRAMS if name in carried[program])
        yield f"| {name} | {packages[name]['version']} | {licence(name)} | {where} |"
    for program, (name, version, _) in DEBIAN.items():
        yield f"| {name} (Debian) | {version} | its `/usr/share/doc/{name}/copyright` | {program} |"


def document(packages: dict[str, Any], program: str) -> dict[str, Any]:
    """The SPDX document of one program."""
    version = importlib.metadata.version("netaware")
    names = closure(packages, program)
    seal = hashlib.sha256((ROOT / "uv.lock").read_bytes()).hexdigest()[:16]
    described = [_package(f"netaware-{program}", version, "Apache-2.0", "")]
    for name in names:
        source = packages[name].get("sdist") or packages[name]["wheels"][0]
        described.append(_package(name, packages[name]["version"], licence(name), source["hash"]))
    if program in DEBIAN:
        name, number, what = DEBIAN[program]
        described.append(_package(name, number, what, "", kind="deb/debian"))
    root = described[0]["SPDXID"]
    relations = [
        {"spdxElementId": root, "relationshipType": "DEPENDS_ON", "relatedSpdxElement": one["SPDXID"]}
        for one in described[1:]
    ]
    about = {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": root}
    references = sorted({p["licenseDeclared"] for p in described if p["licenseDeclared"].startswith("LicenseRef-")})
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"netaware-{program}-{version}",
        "documentNamespace": f"https://netaware.io/spdx/netaware-{program}-{version}-{seal}",
        "creationInfo": {"created": _moment(), "creators": ["Tool: netaware-bill"]},
        "packages": described,
        "relationships": [about, *relations],
        "hasExtractedLicensingInfos": [
            {"licenseId": one, "extractedText": "see the package", "name": one.removeprefix("LicenseRef-")}
            for one in references
        ],
    }


def _moment() -> str:
    """SOURCE_DATE_EPOCH, so that the same source gives the same document, or now."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _package(name: str, version: str, stated: str, digest: str, kind: str = "pypi") -> dict[str, Any]:
    safe = re.sub(r"[^A-Za-z0-9.-]", "-", name)
    found: dict[str, Any] = {
        "SPDXID": f"SPDXRef-{kind.partition('/')[0]}-{safe}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": stated if re.fullmatch(r"[A-Za-z0-9.()+ -]+", stated) else "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }
    if not name.startswith("netaware-"):
        purl = {
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": f"pkg:{kind}/{name}@{version}",
        }
        found["externalRefs"] = [purl]
    if digest:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": digest.removeprefix("sha256:")}]
    return found


def main() -> int:
    """Run a command."""
    packages = locked()
    match sys.argv[1:]:
        case ["sbom", folder]:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for program in PROGRAMS:
                path = Path(folder) / f"netaware-{program}.spdx.json"
                path.write_text(json.dumps(document(packages, program), indent=2) + "\n")
            return 0
        case ["licences", *flags]:
            text = HEAD + "\n".join(rows(packages)) + "\n"
            if "--check" in flags:
                current = TARGET.exists() and TARGET.read_text() == text
                if not current:
                    print(f"{TARGET.relative_to(ROOT)} is not current: run .ci/bill.py licences", file=sys.stderr)
                return 0 if current else 1
            TARGET.write_text(text)
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
