"""Loads the demo's application, the Online Boutique of manifests/examples.

Only requests, scheduler and sorting algorithm differ from the example. ReverseKahn puts dependencies first: in KahnSort order a
workload's first replica has no bound dependency, and so no cost (docs/adr/0006).
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

_EXAMPLE_FOLDER = Path(__file__).parents[1] / "manifests" / "examples" / "online-boutique"
_SORTING_ALGORITHM = "ReverseKahn"


@dataclass(frozen=True)
class Dependency:
    """Workload ``origin`` calls workload ``destination``, at a cost of at most ``max_network_cost``."""

    origin: str
    destination: str
    max_network_cost: int


@dataclass(frozen=True)
class Application:
    """An AppGroup, its Deployments and Services by workload, and its dependencies in the order of its spec."""

    group: dict[str, Any]
    deployments: dict[str, dict[str, Any]]
    services: dict[str, dict[str, Any]]
    dependencies: tuple[Dependency, ...]


def load_application(*, scheduler: str, cpu: str) -> Application:
    """Return the example with this schedulerName and CPU request of every pod."""
    files = sorted(_EXAMPLE_FOLDER.glob("*.yaml"))
    documents = [document for file in files for document in yaml.safe_load_all(file.read_text()) if document]
    group = next(d for d in documents if d.get("kind") == "AppGroup")
    group["spec"]["topologySortingAlgorithm"] = _SORTING_ALGORITHM
    deployments = {
        d["metadata"]["name"]: _with_scheduler_and_requests(d, scheduler, cpu)
        for d in documents
        if d["kind"] == "Deployment"
    }
    services = {d["metadata"]["name"]: d for d in documents if d["kind"] == "Service"}
    dependencies = tuple(
        Dependency(entry["workload"]["name"], callee["workload"]["name"], int(callee.get("maxNetworkCost", 0)))
        for entry in group["spec"]["workloads"]
        for callee in entry.get("dependencies", ())
    )
    return Application(group, deployments, services, dependencies)


def with_real_containers(application: Application, image: str) -> Application:
    """Return the application with containers of ``lab/app``, which call their dependencies' Services before they answer."""
    deployments = {}
    for name, original in application.deployments.items():
        deployment = copy.deepcopy(original)
        callees = [d.destination for d in application.dependencies if d.origin == name]
        urls = [f"http://{callee}:{application.services[callee]['spec']['ports'][0]['port']}/" for callee in callees]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        container |= {
            "image": image,
            "args": ["serve", f"--listen=:{container['ports'][0]['containerPort']}", f"--calls={','.join(urls)}"],
            "readinessProbe": {"httpGet": {"path": "/healthz", "port": "serving"}, "periodSeconds": 1},
        }
        for unused in ("command", "env", "livenessProbe", "volumeMounts"):
            container.pop(unused, None)
        deployment["spec"]["template"]["spec"].pop("volumes", None)
        deployments[name] = deployment
    return replace(application, deployments=deployments)


def shuffle_deployments(application: Application, seed: int) -> Application:
    """Return the application with its Deployments in a random order."""
    names = sorted(application.deployments)
    random.Random(seed).shuffle(names)
    return replace(application, deployments={name: application.deployments[name] for name in names})


def _with_scheduler_and_requests(deployment: dict[str, Any], scheduler: str, cpu: str) -> dict[str, Any]:
    changed = copy.deepcopy(deployment)
    spec = changed["spec"]["template"]["spec"]
    spec["schedulerName"] = scheduler
    for container in spec["containers"]:
        container["resources"] = {"requests": {"cpu": cpu, "memory": "64Mi"}}
    return changed
