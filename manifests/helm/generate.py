"""Builds the Helm chart from the kustomizations: what an overlay adds becomes a value.

    python manifests/helm/generate.py --version 1.2.3 --to dist                                          writes dist/netaware
    python manifests/helm/generate.py --version 1.2.3 --to dist --registry ghcr.io/team --digests DIR    with images of a registry

The kustomizations are the source; values, their schema, NOTES.txt and _helpers.tpl in netaware/ are written by hand. With its
defaults the chart gives the objects of overlays/default, and with other values those of the other overlays, which tests compare.
DIR/<program>.json, as `docker buildx build --metadata-file` writes it, names the digest of an image.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lab.build import find_or_build

HERE = Path(__file__).resolve().parent
MANIFESTS = HERE.parent
NAMESPACE = "netaware-system"
MINORS = range(34, 38)
GATES = '(ne .Values.placement "none")'
BUNDLED = '(eq .Values.placement "extender")'
MUTATES = '(include "netaware.hasMutatingPolicies" .)'
# Overlay or component, the template that its objects go to (by program where empty), and when they are there. The first that has an
# object decides.
SOURCES = (
    ("overlays/observe-only", "", ""),
    (
        "components/replace-pending",
        "replace-pending",
        '(or .Values.replacePending.enabled (eq .Values.placement "affinity"))',
    ),
    ("overlays/any-scheduler", "", GATES),
    ("overlays/default", "", BUNDLED),
    ("overlays/enforce", "bandwidth", ".Values.bandwidth.enforce"),
    ("overlays/descheduler", "descheduler", ".Values.descheduler.enabled"),
    ("overlays/prometheus-operator", "prometheus-operator", ".Values.prometheusOperator.enabled"),
    ("components/measured-weights", "traffic", ".Values.traffic.keepWeights"),
    ("components/webhook", "webhook", f"(not {MUTATES}) {GATES}"),
    ("components/webhook-cert-manager", "webhook", f"(not {MUTATES}) {GATES} .Values.webhook.certManager"),
    ("grafana", "dashboards", ".Values.dashboards.enabled"),
)
PROGRAMS = ("agent", "controller", "scheduler", "webhook")
RIGHTS = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")

Doc = dict[str, Any]
IMAGES = {
    "kube-scheduler": "kubeScheduler",
    "extender": "controller",
    "webhook": "controller",
    "gate-opener": "controller",
}
"""Container -> whose image it runs, where that has another name."""


def kustomize(folder: Path) -> list[Doc]:
    """The objects of a kustomization."""
    command = [str(find_or_build()["kubectl"]), "kustomize", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [document for document in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if document]


def resources(component: Path) -> list[Doc]:
    """The objects that a component adds."""
    names = yaml.safe_load((component / "kustomization.yaml").read_text())["resources"]
    return [d for name in names for d in yaml.safe_load_all((component / name).read_text()) if d]


def collect() -> dict[str, list[tuple[str, Doc]]]:
    """Template -> its objects, each with the condition that it depends on; empty for always."""
    found: dict[str, list[tuple[str, Doc]]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for source, template_name, condition in SOURCES:
        folder = MANIFESTS / source
        for document in resources(folder) if source.startswith("components") else kustomize(folder):
            key = (document["kind"], re.sub(r"-config-[a-z0-9]{10}$", "-config", document["metadata"]["name"]))
            # Helm needs the namespace before it knows the chart.
            if key not in seen and document["kind"] != "Namespace":
                seen.add(key)
                found[template_of(document, template_name)].append((condition, document))
    return found


def template_of(document: Doc, template_name: str) -> str:
    """Which template an object goes to."""
    kind, name = document["kind"], document["metadata"]["name"]
    if kind == "CustomResourceDefinition":
        return "crds"
    if template_name:
        return template_name
    if kind.startswith("Mutating"):
        return "gates"
    if kind.startswith("Validating"):
        return "policies"
    part = name.removeprefix("netaware-").partition("-")[0]
    return {"extender": "scheduler", "gates": "gates"}.get(part, part if part in PROGRAMS else "common")


def template(name: str, objects: list[tuple[str, Doc]]) -> str:
    """One file of templates."""
    parts = []
    for condition, document in objects:
        conditions = [condition] if condition else []
        if document["kind"].startswith("Mutating") and name != "webhook":
            conditions.append(MUTATES)
        if document["kind"] in RIGHTS:
            conditions.append(".Values.rbac.create")
        if document["kind"] == "ServiceAccount":
            conditions.append(".Values.serviceAccount.create")
        if name == "crds":
            conditions.append(".Values.crds.enabled")
        text = "---\n" + render(parametrise(document))
        test = f"and {' '.join(conditions)}"
        parts.append(f"{{{{- if {test} }}}}\n{text}{{{{- end }}}}\n" if conditions else text)
    return "".join(parts)


def parametrise(document: Doc) -> Doc:
    """Put placeholders where values go."""
    found: Doc = json.loads(json.dumps(document).replace(NAMESPACE, "@@.Release.Namespace@@"))
    kind, metadata = found["kind"], found["metadata"]
    if kind == "CustomResourceDefinition":
        metadata.setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    if kind == "ConfigMap" and "-config" in metadata["name"]:
        program = metadata["name"].split("-")[1]
        metadata["name"] = f'@@include "netaware.{program}ConfigName" .@@'
        found["data"] = dict.fromkeys(found["data"], f'@@include "netaware.{program}Config" . | toJson@@')
    if kind in {"Deployment", "DaemonSet"}:
        _pods(metadata["name"].removeprefix("netaware-"), found["spec"])
    return found


def _pods(program: str, workload: Doc) -> None:
    # A name with a dash is no field of a template.
    program = re.sub("-([a-z])", lambda m: m[1].upper(), program)
    values = f".Values.{program}"
    if "replicas" in workload:
        workload["replicas"] = f"@@{values}.replicas@@"
    metadata, spec = workload["template"]["metadata"], workload["template"]["spec"]
    annotations = metadata.get("annotations")
    metadata["annotations"] = (
        annotations | {f"@@more {values}.podAnnotations@@": None}
        if annotations
        else f"@@with {values}.podAnnotations@@"
    )
    spec["imagePullSecrets"] = "@@with .Values.imagePullSecrets@@"
    spec["affinity"] = f"@@with {values}.affinity@@"
    spec["priorityClassName"] = f"@@{values}.priorityClassName@@"
    for field in ("nodeSelector", "tolerations"):
        spec[field] = f"@@block {values}.{field}@@"
    for volume in spec["volumes"]:
        name = volume.get("configMap", {}).get("name", "")
        if name:
            volume["configMap"]["name"] = f'@@include "netaware.{name.split("-")[1]}ConfigName" .@@'
    spec["volumes"].append(f"@@more {values}.extraVolumes@@")
    for container in spec["containers"]:
        which = IMAGES.get(container["name"], container["name"])
        container["image"] = f'@@include "netaware.image" (list . "{which}")@@'
        container["imagePullPolicy"] = f"@@.Values.images.{which}.pullPolicy@@"
        section = f"{values}.extender" if container["name"] == "extender" else values
        container["resources"] = f"@@block {section}.resources@@"
        container.setdefault("args" if "args" in container else "command", []).append(f"@@more {section}.extraArgs@@")
        container["volumeMounts"].append(f"@@more {values}.extraVolumeMounts@@")
    if program == "agent":
        spec["hostPID"] = f"@@not {values}.leastPrivilege@@"
        _mount_host_unless(f"{values}.leastPrivilege", spec)
        spec["containers"][0]["securityContext"]["capabilities"]["add"][0] = (
            f"@@if not {values}.leastPrivilege: NET_ADMIN@@"
        )
    flags = {
        "agent": {
            ".Values.bandwidth.enforce": "--bandwidth=enforce",
            ".Values.traffic.conntrack": "--traffic=conntrack",
            ".Values.agent.leastPrivilege": "--bandwidth=off",
        },
    }
    for value, flag in flags.get(program, {}).items():
        spec["containers"][0]["args"].insert(-1, f"@@if {value}: {flag}@@")


def _mount_host_unless(condition: str, spec: Doc) -> None:
    """Make volumes of the host, and their mounts, depend on a value."""
    host = [volume["name"] for volume in spec["volumes"] if "hostPath" in volume]
    for items in (spec["volumes"], spec["containers"][0]["volumeMounts"]):
        for i, item in enumerate(items):
            if isinstance(item, dict) and item["name"] in host:
                items[i] = f"@@if not {condition}: {json.dumps(item)}@@"


def render(document: Doc) -> str:
    """YAML with the placeholders replaced by template actions, and braces that are none of ours kept from Helm."""
    text = yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, width=10_000, allow_unicode=True)
    text = text.replace("{{", '{{ "{{" }}')
    lines = []
    for line in text.splitlines():
        # An entry of a list may be a mapping, whose first key stands behind the dash.
        indent = len(line) - len(line.lstrip(" -"))
        key = line.partition(":")[0]
        if match := re.search(r"^( *)(?:- )?'?@@more (.*?)@@'?", line):
            line = f"{{{{- with {match[2]} }}}}{{{{- toYaml . | nindent {len(match[1])} }}}}{{{{- end }}}}"
        elif match := re.search(r"@@block (.*)@@", line):
            line = f"{key}: {{{{- toYaml {match[1]} | nindent {indent + 2} }}}}"
        elif match := re.search(r"@@with (.*)@@", line):
            line = f"{{{{- with {match[1]} }}}}\n{key}: {{{{- toYaml . | nindent {indent + 2} }}}}\n{{{{- end }}}}"
        elif match := re.search(r"^( *- )'?@@if (.*?): (.*)@@'?", line):
            line = f"{{{{- if {match[2]} }}}}\n{match[1]}{match[3]}\n{{{{- end }}}}"
        else:
            unquoted = re.sub(r"'(@@[^']*)'$", r"\1", line)
            line = re.sub(r"@@(.*?)@@", lambda m: f"{{{{ {m[1]} }}}}", unquoted)
        lines.append(line)
    return "\n".join(lines) + "\n"


def scheduler_versions() -> Mapping[str, str]:
    """Kubernetes minor -> version of kube-scheduler, from the components."""
    found = {}
    for minor in MINORS:
        path = MANIFESTS / "components" / f"kubernetes-1.{minor}" / "kustomization.yaml"
        found[str(minor)] = str(yaml.safe_load(path.read_text())["images"][0]["newTag"])
    return found


def values(registry: str, digests: Path | None) -> str:
    """values.yaml, with the images of a registry, by digest where it is known."""
    text = (HERE / "netaware" / "values.yaml").read_text()
    for program in ("agent", "controller"):
        name = f"netaware-{program}"
        metadata = digests / f"{program}.json" if digests else None
        digest = json.loads(metadata.read_text())["containerimage.digest"] if metadata and metadata.exists() else ""
        before = f'{program}: {{repository: {name}, tag: "", digest: "",'
        if text.count(before) != 1:
            raise ValueError(f"values.yaml has no line {before}")
        repository = f"{registry}/{name}" if registry else name
        text = text.replace(before, f'{program}: {{repository: {repository}, tag: "", digest: "{digest}",')
    return text


def build(version: str, to: Path, registry: str = "", digests: Path | None = None) -> Path:
    """Write the chart below a folder; returns its own folder."""
    chart = to / "netaware"
    shutil.rmtree(chart, ignore_errors=True)
    shutil.copytree(HERE / "netaware", chart)
    description = "Network-aware scheduling: measures latency between zones, prices it, and places pods that talk near each other."
    about = {
        "apiVersion": "v2",
        "name": "netaware",
        "description": description,
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": f">=1.{MINORS[0]}.0-0",
        "keywords": ["scheduler", "latency", "bandwidth", "topology"],
        "annotations": {"artifacthub.io/license": "Apache-2.0"},
    }
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about, sort_keys=False, width=10_000))
    (chart / "values.yaml").write_text(values(registry, digests))
    for name, objects in collect().items():
        (chart / "templates" / f"{name}.yaml").write_text(template(name, objects))
    (chart / "files").mkdir()
    for name, source in (
        ("agent.yaml", "base/agent/config.yaml"),
        ("controller.yaml", "base/controller/config.yaml"),
        ("descheduler.yaml", "components/descheduler/config.yaml"),
        ("kube-scheduler.yaml", "scheduler/kube-scheduler.yaml"),
    ):
        shutil.copy(MANIFESTS / source, chart / "files" / name)
    (chart / "files" / "kube-scheduler-versions.yaml").write_text(yaml.safe_dump(dict(scheduler_versions())))
    return chart


def main() -> int:
    """Build the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", required=True, help="of the chart and of its images")
    parser.add_argument("--registry", default="", metavar="HOST/TEAM")
    parser.add_argument("--digests", type=Path, metavar="DIR")
    parser.add_argument("--to", type=Path, default=Path("dist"), metavar="DIR")
    arguments = parser.parse_args()
    build(arguments.version, arguments.to, arguments.registry, arguments.digests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
