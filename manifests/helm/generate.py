"""Builds the Helm chart from the kustomizations: each overlay and component becomes a value.

    python manifests/helm/generate.py --version 1.2.3 --to dist                                          writes dist/netaware
    python manifests/helm/generate.py --version 1.2.3 --to dist --registry ghcr.io/team --digests DIR    with images of a registry

The kustomizations are the source of the objects; values, their schema, NOTES.txt and _helpers.tpl in netaware/ are written by hand.
With its defaults the chart has the objects of overlays/default, and with other values those of the other overlays, which tests
compare. DIR/<program>.json, as `docker buildx build --metadata-file` writes it, has the digest of an image.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lab.build import find_or_build_binaries

HERE = Path(__file__).resolve().parent
MANIFESTS = HERE.parent
NAMESPACE = "netaware-system"
MINORS = range(34, 38)
"""Supported minor versions of Kubernetes 1."""
USES_GATES = '(ne .Values.placement "none")'
USES_EXTENDER = '(eq .Values.placement "extender")'
HAS_MUTATING_POLICIES = '(include "netaware.hasMutatingPolicies" .)'
REPLACES_PENDING = '(or .Values.replacePending.enabled (eq .Values.placement "affinity"))'
USES_WEBHOOK = f"(not {HAS_MUTATING_POLICIES}) {USES_GATES}"


class Source(NamedTuple):
    """An overlay or component whose objects the chart contains.

    Attributes:
        folder: below manifests/.
        template: name of the objects' template; empty for a template per program.
        condition: Go template expression of the values for which the objects exist; empty for always.
    """

    folder: str
    template: str
    condition: str


# The first source that has an object decides its template and condition.
SOURCES = (
    Source("overlays/observe-only", "", ""),
    Source("components/replace-pending", "replace-pending", REPLACES_PENDING),
    Source("overlays/any-scheduler", "", USES_GATES),
    Source("overlays/default", "", USES_EXTENDER),
    Source("overlays/enforce", "bandwidth", ".Values.bandwidth.enforce"),
    Source("overlays/descheduler", "descheduler", ".Values.descheduler.enabled"),
    Source("overlays/prometheus-operator", "prometheus-operator", ".Values.prometheusOperator.enabled"),
    Source("components/measured-weights", "traffic", ".Values.traffic.keepWeights"),
    Source("components/webhook", "webhook", USES_WEBHOOK),
    Source("components/webhook-cert-manager", "webhook", f"{USES_WEBHOOK} .Values.webhook.certManager"),
    Source("grafana", "dashboards", ".Values.dashboards.enabled"),
)
PROGRAMS = ("agent", "controller", "scheduler", "webhook")
RBAC_KINDS = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")

Manifest = dict[str, Any]
ObjectsByTemplate = dict[str, list[tuple[str, Manifest]]]
"""Template -> its objects, each with the condition for which it exists; empty for always."""
IMAGE_BY_CONTAINER = {
    "kube-scheduler": "kubeScheduler",
    "extender": "controller",
    "webhook": "controller",
    "gate-opener": "controller",
}
"""Container -> name of its image in the values, if that is not the container's name."""


def build_overlay(folder: Path) -> list[Manifest]:
    """The objects of an overlay."""
    command = [str(find_or_build_binaries()["kubectl"]), "kustomize", str(folder)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return [manifest for manifest in yaml.load_all(result.stdout, Loader=yaml.CSafeLoader) if manifest]


def read_component(component: Path) -> list[Manifest]:
    """The objects that a component adds to an overlay."""
    names = yaml.safe_load((component / "kustomization.yaml").read_text())["resources"]
    return [document for name in names for document in yaml.safe_load_all((component / name).read_text()) if document]


def collect_objects() -> ObjectsByTemplate:
    """The objects of all sources."""
    objects: ObjectsByTemplate = defaultdict(list)
    added_keys: set[tuple[str, str]] = set()
    for source in SOURCES:
        read_objects = read_component if source.folder.startswith("components") else build_overlay
        for manifest in read_objects(MANIFESTS / source.folder):
            key = (manifest["kind"], re.sub(r"-config-[a-z0-9]{10}$", "-config", manifest["metadata"]["name"]))
            # Helm creates the namespace, because it needs one before the chart.
            if key not in added_keys and manifest["kind"] != "Namespace":
                added_keys.add(key)
                objects[choose_template(manifest, source.template)].append((source.condition, manifest))
    return objects


def choose_template(manifest: Manifest, source_template: str) -> str:
    """Name of the template that contains an object."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    if kind == "CustomResourceDefinition":
        return "crds"
    if source_template:
        return source_template
    if kind.startswith("Mutating"):
        return "gates"
    if kind.startswith("Validating"):
        return "policies"
    part = name.removeprefix("netaware-").partition("-")[0]
    return {"extender": "scheduler", "gates": "gates"}.get(part, part if part in PROGRAMS else "common")


def render_template(name: str, objects: list[tuple[str, Manifest]]) -> str:
    """The text of a template."""
    parts = []
    for condition, manifest in objects:
        conditions = [condition] if condition else []
        if manifest["kind"].startswith("Mutating") and name != "webhook":
            conditions.append(HAS_MUTATING_POLICIES)
        if manifest["kind"] in RBAC_KINDS:
            conditions.append(".Values.rbac.create")
        if manifest["kind"] == "ServiceAccount":
            conditions.append(".Values.serviceAccount.create")
        if name == "crds":
            conditions.append(".Values.crds.enabled")
        text = "---\n" + render_manifest(insert_placeholders(manifest))
        parts.append(f"{{{{- if and {' '.join(conditions)} }}}}\n{text}{{{{- end }}}}\n" if conditions else text)
    return "".join(parts)


def insert_placeholders(manifest: Manifest) -> Manifest:
    """A copy of the object with placeholders for values, which `render_manifest` replaces.

    - ``@@EXPRESSION@@`` is the result of a template expression.
    - ``@@block EXPRESSION@@`` is its result as a block of YAML; ``@@with EXPRESSION@@`` also leaves out the key if the result is empty.
    - ``@@more EXPRESSION@@`` appends its result to the list or mapping around it.
    - ``@@if EXPRESSION: ENTRY@@`` is an entry of a list, if the expression is true.
    """
    copy: Manifest = json.loads(json.dumps(manifest).replace(NAMESPACE, "@@.Release.Namespace@@"))
    kind, metadata = copy["kind"], copy["metadata"]
    if kind == "CustomResourceDefinition":
        metadata.setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    if kind == "ConfigMap" and "-config" in metadata["name"]:
        program = metadata["name"].split("-")[1]
        metadata["name"] = f'@@include "netaware.{program}ConfigName" .@@'
        copy["data"] = dict.fromkeys(copy["data"], f'@@include "netaware.{program}Config" . | toJson@@')
    if kind in {"Deployment", "DaemonSet"}:
        _insert_workload_placeholders(metadata["name"].removeprefix("netaware-"), copy["spec"])
    return copy


def _insert_workload_placeholders(program: str, workload: Manifest) -> None:
    # A template expression cannot name a field with a dash.
    program = re.sub("-([a-z])", lambda m: m[1].upper(), program)
    values = f".Values.{program}"
    if "replicas" in workload:
        workload["replicas"] = f"@@{values}.replicas@@"
    metadata, spec = workload["template"]["metadata"], workload["template"]["spec"]
    annotations = metadata.get("annotations")
    if annotations:
        annotations[f"@@more {values}.podAnnotations@@"] = None
    else:
        metadata["annotations"] = f"@@with {values}.podAnnotations@@"
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
        _insert_container_placeholders(values, container)
    if program == "agent":
        _insert_agent_placeholders(values, spec)


def _insert_container_placeholders(values: str, container: dict[str, Any]) -> None:
    image = IMAGE_BY_CONTAINER.get(container["name"], container["name"])
    container["image"] = f'@@include "netaware.image" (list . "{image}")@@'
    container["imagePullPolicy"] = f"@@.Values.images.{image}.pullPolicy@@"
    section = f"{values}.extender" if container["name"] == "extender" else values
    container["resources"] = f"@@block {section}.resources@@"
    container.setdefault("args" if "args" in container else "command", []).append(f"@@more {section}.extraArgs@@")
    container["volumeMounts"].append(f"@@more {values}.extraVolumeMounts@@")


def _insert_agent_placeholders(values: str, spec: dict[str, Any]) -> None:
    (container,) = spec["containers"]
    spec["hostPID"] = f"@@not {values}.leastPrivilege@@"
    host_volumes = [volume["name"] for volume in spec["volumes"] if isinstance(volume, dict) and "hostPath" in volume]
    for items in (spec["volumes"], container["volumeMounts"]):
        for i, item in enumerate(items):
            if isinstance(item, dict) and item["name"] in host_volumes:
                items[i] = f"@@if not {values}.leastPrivilege: {json.dumps(item)}@@"
    capabilities = container["securityContext"]["capabilities"]["add"]
    capabilities[0] = f"@@if not {values}.leastPrivilege: NET_ADMIN@@"
    for condition, flag in (
        (".Values.bandwidth.enforce", "--bandwidth=enforce"),
        (".Values.traffic.conntrack", "--traffic=conntrack"),
        (".Values.agent.leastPrivilege", "--bandwidth=off"),
    ):
        container["args"].insert(-1, f"@@if {condition}: {flag}@@")


def render_manifest(manifest: Manifest) -> str:
    """The object as YAML, with template actions for the placeholders of `insert_placeholders` and all other braces escaped."""
    text = yaml.dump(manifest, Dumper=yaml.CSafeDumper, sort_keys=False, width=10_000, allow_unicode=True)
    text = text.replace("{{", '{{ "{{" }}')
    lines = []
    for line in text.splitlines():
        # The first key of a mapping in a list follows the dash.
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


def read_scheduler_versions() -> dict[str, str]:
    """Minor version of Kubernetes -> version of kube-scheduler, from the components."""
    versions = {}
    for minor in MINORS:
        path = MANIFESTS / "components" / f"kubernetes-1.{minor}" / "kustomization.yaml"
        versions[str(minor)] = str(yaml.safe_load(path.read_text())["images"][0]["newTag"])
    return versions


def build_values(registry: str, digests: Path | None) -> str:
    """The text of values.yaml, with the registry of the images and their digests, if they are known."""
    text = (HERE / "netaware" / "values.yaml").read_text()
    for program in ("agent", "controller"):
        name = f"netaware-{program}"
        metadata = digests / f"{program}.json" if digests else None
        digest = json.loads(metadata.read_text())["containerimage.digest"] if metadata and metadata.exists() else ""
        default_line = f'{program}: {{repository: {name}, tag: "", digest: "",'
        if text.count(default_line) != 1:
            raise ValueError(f"values.yaml has no line {default_line}")
        repository = f"{registry}/{name}" if registry else name
        text = text.replace(default_line, f'{program}: {{repository: {repository}, tag: "", digest: "{digest}",')
    return text


def build_chart(version: str, parent: Path, registry: str = "", digests: Path | None = None) -> None:
    """Write the chart to the folder netaware below ``parent``."""
    chart = parent / "netaware"
    shutil.rmtree(chart, ignore_errors=True)
    shutil.copytree(HERE / "netaware", chart)
    metadata = {
        "apiVersion": "v2",
        "name": "netaware",
        "description": "Network-aware scheduling: measures latency between zones, and places pods that communicate near each other.",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": f">=1.{MINORS[0]}.0-0",
        "keywords": ["scheduler", "latency", "bandwidth", "topology"],
        "annotations": {"artifacthub.io/license": "Apache-2.0"},
    }
    (chart / "Chart.yaml").write_text(yaml.safe_dump(metadata, sort_keys=False, width=10_000))
    (chart / "values.yaml").write_text(build_values(registry, digests))
    for name, objects in collect_objects().items():
        (chart / "templates" / f"{name}.yaml").write_text(render_template(name, objects))
    (chart / "files").mkdir()
    for name, source in (
        ("agent.yaml", "base/agent/config.yaml"),
        ("controller.yaml", "base/controller/config.yaml"),
        ("descheduler.yaml", "components/descheduler/config.yaml"),
        ("kube-scheduler.yaml", "scheduler/kube-scheduler.yaml"),
    ):
        shutil.copy(MANIFESTS / source, chart / "files" / name)
    (chart / "files" / "kube-scheduler-versions.yaml").write_text(yaml.safe_dump(read_scheduler_versions()))


def main() -> None:
    """Build the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", required=True, help="version of the chart and its images")
    parser.add_argument("--registry", default="", metavar="HOST/TEAM")
    parser.add_argument("--digests", type=Path, metavar="DIR")
    parser.add_argument("--to", type=Path, default=Path("dist"), metavar="DIR")
    arguments = parser.parse_args()
    build_chart(arguments.version, arguments.to, arguments.registry, arguments.digests)


if __name__ == "__main__":
    main()
