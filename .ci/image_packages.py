"""Lists the packages in the images: an SPDX 2.3 document for each program, and the table of licences in docs/licences.md.

    python .ci/image_packages.py sbom DIR           writes DIR/netaware-agent.spdx.json and DIR/netaware-controller.spdx.json
    python .ci/image_packages.py licences           writes docs/licences.md
    python .ci/image_packages.py licences --check   writes nothing; exit code 1 if docs/licences.md is not current

Versions and hashes come from the lock file, licences from the metadata of the installed packages.
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
TABLE_FILE = ROOT / "docs" / "licences.md"
PROGRAMS = ("agent", "controller")
MAX_NAME_LENGTH = 60
# Program -> Debian package in its image: name, version and licence (in /usr/share/doc/netperf/copyright of the image).
DEBIAN_PACKAGES = {"agent": ("netperf", "2.7.0", "NOASSERTION")}
TABLE_HEAD = """# Licences of packages in the images

Written by `python .ci/image_packages.py licences`. The project itself is under Apache-2.0. Licences of the base image,
`python:3.13-slim-trixie`, are in its `/usr/share/doc` and in Python's `LICENSE.txt`.

| package | version | licence, as the package states it | in |
|---|---|---|---|
"""
# Licence in a package's metadata, in lower case -> SPDX identifier.
SPDX_IDS = {
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


def read_lock_file() -> dict[str, Any]:
    """Return name -> package of the lock file."""
    return {package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}


def list_dependencies(packages: dict[str, Any], program: str) -> list[str]:
    """Return the sorted names of all packages that the extra of a program installs in its image."""
    project = packages["netaware"]
    unvisited = [*project["dependencies"], *project["optional-dependencies"][program]]
    names: set[str] = set()
    while unvisited:
        entry = unvisited.pop()
        if entry["name"] in names or _is_excluded(entry.get("marker", "")):
            continue
        names.add(entry["name"])
        package = packages[entry["name"]]
        unvisited += package.get("dependencies", [])
        for extra in entry.get("extra", ()):
            unvisited += package.get("optional-dependencies", {}).get(extra, [])
    return sorted(names)


def _is_excluded(marker: str) -> bool:
    """Whether a marker of the lock file excludes the images' Python 3.13 on Linux."""
    return bool(re.search(r"python_full_version < '3\.1[123]|sys_platform == '(win32|darwin|cygwin)'", marker))


def find_licence(name: str) -> str:
    """Return the licence of an installed package, as an SPDX expression if possible; NOASSERTION if unknown."""
    try:
        headers = metadata(name)
    except PackageNotFoundError:
        return "NOASSERTION"
    if expression := headers.get("License-Expression"):
        return str(expression)
    text = str(headers.get("License") or "").strip()
    classifiers = map(str, headers.get_all("Classifier") or ())
    licences = [name.rpartition(" :: ")[2] for name in classifiers if "License ::" in name]
    for candidate in (text, *licences):
        if candidate.lower() in SPDX_IDS:
            return SPDX_IDS[candidate.lower()]
    # Some packages have the whole licence in the field.
    is_name = 0 < len(text) < MAX_NAME_LENGTH and "\n" not in text
    return text if is_name else (licences or ["NOASSERTION"])[0]


def build_table_rows(packages: dict[str, Any]) -> Iterator[str]:
    """Yield the rows of the table of licences."""
    names_by_program = {program: list_dependencies(packages, program) for program in PROGRAMS}
    for name in sorted({name for names in names_by_program.values() for name in names}):
        programs = ", ".join(program for program in PROGRAMS if name in names_by_program[program])
        yield f"| {name} | {packages[name]['version']} | {find_licence(name)} | {programs} |"
    for program, (name, version, _) in DEBIAN_PACKAGES.items():
        yield f"| {name} (Debian) | {version} | its `/usr/share/doc/{name}/copyright` | {program} |"


def build_spdx(packages: dict[str, Any], program: str) -> dict[str, Any]:
    """Return the SPDX document of a program."""
    version = importlib.metadata.version("netaware")
    names = list_dependencies(packages, program)
    lock_hash = hashlib.sha256((ROOT / "uv.lock").read_bytes()).hexdigest()[:16]
    spdx_packages = [_build_package(f"netaware-{program}", version, "Apache-2.0", "")]
    for name in names:
        source = packages[name].get("sdist") or packages[name]["wheels"][0]
        spdx_packages.append(_build_package(name, packages[name]["version"], find_licence(name), source["hash"]))
    if program in DEBIAN_PACKAGES:
        spdx_packages.append(_build_package(*DEBIAN_PACKAGES[program], "", kind="deb/debian"))
    program_id, *package_ids = (package["SPDXID"] for package in spdx_packages)
    relationships = [("SPDXRef-DOCUMENT", "DESCRIBES", program_id)]
    relationships += [(program_id, "DEPENDS_ON", package_id) for package_id in package_ids]
    references = sorted({p["licenseDeclared"] for p in spdx_packages if p["licenseDeclared"].startswith("LicenseRef-")})
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"netaware-{program}-{version}",
        "documentNamespace": f"https://netaware.io/spdx/netaware-{program}-{version}-{lock_hash}",
        "creationInfo": {"created": _read_creation_time(), "creators": ["Tool: netaware-image-packages"]},
        "packages": spdx_packages,
        "relationships": [
            {"spdxElementId": element, "relationshipType": type_, "relatedSpdxElement": related}
            for element, type_, related in relationships
        ],
        "hasExtractedLicensingInfos": [
            {"licenseId": reference, "extractedText": "see the package", "name": reference.removeprefix("LicenseRef-")}
            for reference in references
        ],
    }


def _read_creation_time() -> str:
    """Return the time of SOURCE_DATE_EPOCH, so that the same source gives the same document; without it, now."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _build_package(name: str, version: str, licence: str, digest: str, kind: str = "pypi") -> dict[str, Any]:
    safe_name = re.sub(r"[^A-Za-z0-9.-]", "-", name)
    package: dict[str, Any] = {
        "SPDXID": f"SPDXRef-{kind.partition('/')[0]}-{safe_name}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence if re.fullmatch(r"[A-Za-z0-9.()+ -]+", licence) else "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }
    if not name.startswith("netaware-"):
        purl = {
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": f"pkg:{kind}/{name}@{version}",
        }
        package["externalRefs"] = [purl]
    if digest:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": digest.removeprefix("sha256:")}]
    return package


def main() -> int:
    """Run a command; return the exit code."""
    packages = read_lock_file()
    match sys.argv[1:]:
        case ["sbom", folder]:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for program in PROGRAMS:
                path = Path(folder) / f"netaware-{program}.spdx.json"
                path.write_text(json.dumps(build_spdx(packages, program), indent=2) + "\n")
            return 0
        case ["licences", *flags]:
            text = TABLE_HEAD + "\n".join(build_table_rows(packages)) + "\n"
            if "--check" in flags:
                is_current = TABLE_FILE.exists() and TABLE_FILE.read_text() == text
                if not is_current:
                    print(
                        f"{TABLE_FILE.relative_to(ROOT)} is not current: run .ci/image_packages.py licences",
                        file=sys.stderr,
                    )
                return 0 if is_current else 1
            TABLE_FILE.write_text(text)
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
