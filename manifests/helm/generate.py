"""Writes the Helm chart in netaware/ from the kustomizations: what an overlay adds or changes becomes a value.

    python manifests/helm/generate.py           writes it
    python manifests/helm/generate.py --check   changes nothing and ends with 1 when a file is not current

The kustomizations are the source; values.yaml, NOTES.txt and _helpers.tpl are written by hand. With its defaults the chart gives
the objects of overlays/default, and with the values of OVERLAYS those of the others, which tests hold with Helm itself.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lab.build import find_or_build

HERE = Path(__file__).resolve().parent
MANIFESTS = HERE.parent
CHART = HERE / "netaware"
NAMESPACE = "netaware-system"
MINORS = range(30, 37)
HEAD = "{{- /* Written by ../../generate.py from the kustomizations. Change those, then run it again. */ -}}\n"
# Overlay or component -> when its objects are there. The first that has an object decides.
SCHEDULES = "scheduler.enabled"
SOURCES = (
    ("overlays/observe-only", ""),
    ("overlays/default", SCHEDULES),
    ("overlays/enforce", "bandwidth.enforce"),
    ("overlays/descheduler", "descheduler.enabled"),
    ("overlays/prometheus-operator", "prometheusOperator.enabled"),
    ("components/replace-pending", "replacePending.enabled"),
    ("components/measured-weights", "traffic.keepWeights"),
    ("components/heat-taint", "heatTaint.enabled"),
    ("components/page-auth", "pageAuth.enabled"),
    ("components/webhook", SCHEDULES),
)
PROGRAMS = ("agent", "controller", "scheduler", "webhook")

Doc = dict[str, Any]
IMAGES = {
    "kube-scheduler": "kubeScheduler",
    "extender": "controller",
    "webhook": "controller",
    "gate-opener": "controller",
}
"""Container -> whose image it runs, where that has another name."""


def kustomize(folder: Path) -> list[Doc]:
    """The objects of a kustomization; a component is built on top of the default overlay."""
    command = [str(find_or_build()["kubectl"]), "kustomize"]
    done = subprocess.run([*command, str(folder)], check=True, capture_output=True, text=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def collect() -> dict[str, list[tuple[str, Doc]]]:
    """File of the chart -> its objects, each with the value that it depends on; empty for always."""
    found: dict[str, list[tuple[str, Doc]]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for source, condition in SOURCES:
        folder = MANIFESTS / source
        documents = (
            kustomize(folder)
            if source.startswith("overlays")
            else [
                document
                for path in sorted(folder.glob("*.yaml"))
                if path.name != "kustomization.yaml"
                for document in yaml.safe_load_all(path.read_text())
            ]
        )
        for document in documents:
            key = (document["kind"], re.sub(r"-config-[a-z0-9]{10}$", "-config", document["metadata"]["name"]))
            # Helm needs the namespace before it knows the chart.
            if key in seen or document["kind"] == "Namespace":
                continue
            seen.add(key)
            found[file_of(document, condition)].append((condition, document))
    return found


def file_of(document: Doc, condition: str) -> str:
    """Which template an object goes to."""
    kind, name = document["kind"], document["metadata"]["name"]
    if kind == "CustomResourceDefinition":
        return "crds"
    if condition not in {"", SCHEDULES}:
        return re.sub("[A-Z]", lambda m: f"-{m[0].lower()}", condition.partition(".")[0])
    if kind.startswith("Mutating"):
        return "gates"
    if kind.startswith("Validating"):
        return "policies"
    part = name.removeprefix("netaware-").partition("-")[0]
    return {"extender": "scheduler", "gates": "gates"}.get(part, part if part in PROGRAMS else "common")


def template(name: str, objects: list[tuple[str, Doc]]) -> str:
    """One file of templates."""
    parts = [HEAD]
    for condition, document in objects:
        conditions = [f".Values.{condition}"] if condition else []
        if document["kind"].startswith("Mutating"):
            conditions.append('(include "netaware.hasMutatingPolicies" .)')
        if name == "webhook":
            conditions.append('(not (include "netaware.hasMutatingPolicies" .))')
        if name == "crds":
            conditions.append(".Values.crds.enabled")
        text = "---\n" + render(parametrise(document))
        test = f"and {' '.join(conditions)}" if len(conditions) > 1 else "".join(conditions)
        parts.append(f"{{{{- if {test} }}}}\n{text}{{{{- end }}}}\n" if conditions else text)
    return "".join(parts)


def parametrise(document: Doc) -> Doc:
    """Put placeholders where values go."""
    found: Doc = json.loads(json.dumps(document).replace(f'"{NAMESPACE}"', '"@@.Release.Namespace@@"'))
    kind, metadata = found["kind"], found["metadata"]
    if kind == "CustomResourceDefinition":
        metadata.setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    if kind == "ConfigMap":
        program = metadata["name"].split("-")[1]
        metadata["name"] = f'@@include "netaware.{program}ConfigName" .@@'
        found["data"] = dict.fromkeys(found["data"], f'@@include "netaware.{program}Config" . | toJson@@')
    spec = found.get("spec", {}).get("template", {}).get("spec") if kind in {"Deployment", "DaemonSet"} else None
    if spec is not None:
        _pods(metadata["name"].removeprefix("netaware-"), found, spec)
    return found


def _pods(program: str, found: Doc, spec: Doc) -> None:
    # A name with a dash is no field of a template.
    program = re.sub("-([a-z])", lambda m: m[1].upper(), program)
    if "replicas" in found["spec"]:
        found["spec"]["replicas"] = f"@@.Values.{program}.replicas@@"
    spec["imagePullSecrets"] = "@@with .Values.imagePullSecrets@@"
    for field in ("nodeSelector", "tolerations"):
        spec[field] = f"@@block .Values.{program}.{field}@@"
    for volume in spec["volumes"]:
        name = volume.get("configMap", {}).get("name", "")
        if name:
            volume["configMap"]["name"] = f'@@include "netaware.{name.split("-")[1]}ConfigName" .@@'
    for container in spec["containers"]:
        which = IMAGES.get(container["name"], container["name"])
        container["image"] = f'@@include "netaware.image" (list . "{which}")@@'
        container["imagePullPolicy"] = "@@.Values.imagePullPolicy@@"
        section = f"{program}.extender" if container["name"] == "extender" else program
        container["resources"] = f"@@block .Values.{section}.resources@@"
        if which == "kubeScheduler":
            for probe, path in (("livenessProbe", "livez"), ("readinessProbe", "readyz")):
                container[probe]["httpGet"]["path"] = f'@@include "netaware.schedulerProbe" (list . "{path}")@@'
    if program == "agent":
        arguments = spec["containers"][0]["args"]
        arguments.append("@@if .Values.bandwidth.enforce: --bandwidth=enforce@@")
        arguments.append("@@if .Values.traffic.conntrack: --traffic=conntrack@@")
    if program == "controller":
        spec["containers"][0]["args"].append("@@if .Values.pageAuth.enabled: --page-auth=token@@")


def render(document: Doc) -> str:
    """YAML with the placeholders replaced by template actions, and braces that are none of ours kept from Helm."""
    text = yaml.safe_dump(document, sort_keys=False, width=10_000, allow_unicode=True)
    text = text.replace("{{", '{{ "{{" }}')
    lines = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip(" -"))
        key = line.partition(":")[0]
        if match := re.search(r"@@block (.*)@@", line):
            line = f"{key}: {{{{- toYaml {match[1]} | nindent {indent + 2} }}}}"
        elif match := re.search(r"@@with (.*)@@", line):
            line = f"{{{{- with {match[1]} }}}}\n{key}: {{{{- toYaml . | nindent {indent + 2} }}}}\n{{{{- end }}}}"
        elif match := re.search(r"^( *- )'?@@if (.*?): (.*)@@'?", line):
            line = f"{{{{- if {match[2]} }}}}\n{match[1]}{match[3]}\n{{{{- end }}}}"
        else:
            line = re.sub(r"'?@@(.*?)@@'?", lambda m: f"{{{{ {m[1]} }}}}", line)
        lines.append(line)
    return "\n".join(lines) + "\n"


def scheduler_versions() -> Mapping[str, str]:
    """Kubernetes minor -> version of kube-scheduler, from the components."""
    found = {}
    for minor in MINORS:
        path = MANIFESTS / "components" / f"kubernetes-1.{minor}" / "kustomization.yaml"
        found[str(minor)] = str(yaml.safe_load(path.read_text())["images"][0]["newTag"])
    return found


def files() -> dict[Path, str]:
    """Every generated file of the chart."""
    version = tomllib.loads((MANIFESTS.parent / "pyproject.toml").read_text())["project"]["version"]
    chart = {
        "apiVersion": "v2",
        "name": "netaware",
        "description": "Network-aware scheduling: measures latency between zones, prices it, and places pods that talk near each other.",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.30.0-0",
        "keywords": ["scheduler", "latency", "bandwidth", "topology"],
        "annotations": {"artifacthub.io/license": "Apache-2.0"},
    }
    found = {CHART / "Chart.yaml": yaml.safe_dump(chart, sort_keys=False, width=10_000)}
    for name, objects in collect().items():
        found[CHART / "templates" / f"{name}.yaml"] = template(name, objects)
    for name, source in (
        ("controller.yaml", "base/controller/config.yaml"),
        ("descheduler.yaml", "components/descheduler/config.yaml"),
        ("kube-scheduler.yaml", "scheduler/kube-scheduler.yaml"),
    ):
        found[CHART / "files" / name] = (MANIFESTS / source).read_text()
    found[CHART / "files" / "kube-scheduler-versions.yaml"] = yaml.safe_dump(dict(scheduler_versions()))
    return found


def main() -> int:
    """Write the files, or with ``--check`` compare."""
    wanted = files()
    written = {*CHART.glob("files/*"), *CHART.glob("templates/*.yaml"), CHART / "Chart.yaml"} & {
        path for path in CHART.rglob("*") if path.is_file()
    }
    stale = sorted(
        {path for path, text in wanted.items() if not path.exists() or path.read_text() != text}
        | (written - wanted.keys())
    )
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(HERE)} is not current: run {Path(__file__).name}", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
