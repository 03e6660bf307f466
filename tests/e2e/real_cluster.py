"""Starts a lab of real nodes and drives it with kubectl alone, as an operator does."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lab.controlplane import find_free_ports
from lab.realnode.images import ImageStore
from tests.e2e.labs import LabCommand

MANIFESTS = Path(__file__).parents[2] / "manifests"
NAMESPACE = "netaware-system"
TIMEOUT_S = 300.0


def start_shipped_lab(
    command: LabCommand, folder: Path, topology: str, images: Mapping[str, Path], *more_tags: str
) -> Cluster:
    """Start a lab of real nodes, named after its topology, whose file is written into ``folder``.

    The lab's registry has ``images`` (name with tag -> OCI layout) with their tag, and with ``more_tags``.
    """
    file = folder / "topology.yaml"
    file.write_text(topology)
    topology_name = yaml.safe_load(topology)["name"]
    lab = command.json("up", "--name", f"e2e-{topology_name}", "--topology", str(file))
    store = ImageStore(Path(lab["state_dir"]) / "registry")
    for image, layout in images.items():
        for name_with_tag in (image, *(f"{image.partition(':')[0]}:{tag}" for tag in more_tags)):
            store.add_oci_layout(name_with_tag, layout)
    return Cluster(lab)


class Cluster:
    """A lab as an operator sees it: through kubectl."""

    def __init__(self, lab: dict[str, Any]) -> None:
        self.lab = lab
        self._kubectl = [lab["kubectl"], "--kubeconfig", lab["kubeconfig"]]

    def run(self, *args: str, text: str | None = None, timeout_s: float = 60.0) -> str:
        """Run kubectl; fail, with the output, if it fails."""
        result = subprocess.run(
            [*self._kubectl, *args],
            check=False,
            capture_output=True,
            text=True,
            input=text,
            timeout=timeout_s,
            env={**os.environ, "KUBECTL_APPLYSET": "true"},
        )
        pods = self.describe_pods() if result.returncode != 0 and "rollout" in args else ""
        assert result.returncode == 0, f"{args}: {result.stderr or result.stdout}\n{pods}"
        return result.stdout

    def get(self, *args: str) -> dict[str, Any]:
        """Return the JSON output of `kubectl get`."""
        return dict(json.loads(self.run("get", *args, "-o", "json")))

    def list_pods(self, *args: str) -> list[dict[str, Any]]:
        """Return pods, with the options of `kubectl get`, but those that terminate."""
        return [pod for pod in self.get("pods", *args)["items"] if "deletionTimestamp" not in pod["metadata"]]

    def describe_pods(self) -> str:
        """Return a description of our pods, for an assertion's message."""
        argv = [*self._kubectl, "-n", NAMESPACE, "describe", "pods"]
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60).stdout[-4000:]

    def create(self, namespace: str, *bodies: Mapping[str, Any]) -> None:
        """Create objects in a new namespace."""
        self.run("create", "namespace", namespace)
        self.run("apply", "-n", namespace, "-f", "-", text="\n---\n".join(map(json.dumps, bodies)))

    def apply_overlay(self, folder: Path) -> None:
        """Apply an overlay as docs/upgrade.md says, delete what only the previous one had, and wait for the rollout."""
        self.run("apply", "--server-side", "-f", str(MANIFESTS / "base" / "common" / "namespace.yaml"))
        prune = ["--prune", "--applyset=netaware", "-n", NAMESPACE, "-k", str(folder)]
        self.run("apply", "--server-side", "--force-conflicts", *prune)
        self.wait_for_rollout()

    def wait_for_rollout(self, namespace: str = NAMESPACE) -> None:
        for name in self.run("-n", namespace, "get", "daemonsets,deployments", "-o", "name").split():
            self.run(
                "-n", namespace, "rollout", "status", name, f"--timeout={TIMEOUT_S:.0f}s", timeout_s=TIMEOUT_S + 10
            )

    def read_node_fields(self) -> dict[str, Any]:
        """Return node -> labels, annotations, capacity and types of conditions, which only an installation changes."""
        fields_by_node = {}
        for node in self.get("nodes")["items"]:
            metadata, status = node["metadata"], node["status"]
            annotations = {k: v for k, v in metadata.get("annotations", {}).items() if "kubernetes.io" not in k}
            condition_types = sorted(condition["type"] for condition in status["conditions"])
            fields_by_node[metadata["name"]] = (metadata["labels"], annotations, status["capacity"], condition_types)
        return fields_by_node

    def read_traffic_control(self) -> dict[str, str]:
        """Return node -> queueing disciplines and filters of its own devices, without those of pods."""
        output_by_node: dict[str, str] = defaultdict(str)
        for node, device, kind in itertools.product(self.lab["nodes"], ("wan0", "mgmt0"), ("qdisc", "filter")):
            argv = [*node["enter_command"], "tc", kind, "show", "dev", device]
            result = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30)
            output_by_node[node["name"]] += result.stdout
        return output_by_node

    @contextmanager
    def forward_port(self, target: str, port: int) -> Iterator[str]:
        """Run `kubectl port-forward` for the block; yields the local URL."""
        (local_port,) = find_free_ports(1)
        argv = [*self._kubectl, "-n", NAMESPACE, "port-forward", target, f"{local_port}:{port}"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert "Forwarding" in process.stdout.readline()
            try:
                yield f"http://127.0.0.1:{local_port}"
            finally:
                process.terminate()


def wait_until(
    check: Callable[[], bool], description: str, describe_state: Callable[[], str] = lambda: "", every_s: float = 0.5
) -> None:
    """Poll until ``check`` is true; fail with both descriptions after `TIMEOUT_S`."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not check():
        assert time.monotonic() < deadline_s, f"timed out waiting for {description}: {describe_state()}"
        time.sleep(every_s)
