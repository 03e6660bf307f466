"""Starts a lab of real nodes and drives it with kubectl alone, as an operator does."""

from __future__ import annotations

import json
import os
import subprocess
import time
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
    """Start a lab of real nodes, named after its topology, whose registry has our images.

    Args:
        command: the fixture ``lab_command``.
        folder: folder for the topology's file.
        topology: text of the topology.
        images: image name with tag -> OCI layout.
        more_tags: further tags of the images.
    """
    file = folder / "topology.yaml"
    file.write_text(topology)
    name = yaml.safe_load(topology)["name"]
    lab = command.json("up", "--name", f"e2e-{name}", "--topology", str(file))
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
        argv, env = [*self._kubectl, *args], {**os.environ, "KUBECTL_APPLYSET": "true"}
        result = subprocess.run(
            argv, check=False, capture_output=True, text=True, input=text, timeout=timeout_s, env=env
        )
        pods = self.describe_pods() if result.returncode != 0 and "rollout" in args else ""
        assert result.returncode == 0, f"{args}: {result.stderr or result.stdout}\n{pods}"
        return result.stdout

    def get(self, *args: str) -> dict[str, Any]:
        """Return the JSON output of `kubectl get`."""
        result: dict[str, Any] = json.loads(self.run("get", *args, "-o", "json"))
        return result

    def describe_pods(self) -> str:
        """Return a description of our pods, for an assertion's message."""
        argv = [*self._kubectl, "-n", NAMESPACE, "describe", "pods"]
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60).stdout[-4000:]

    def apply(self, folder: Path) -> None:
        """Apply an overlay as docs/upgrade.md says, prune the previous overlay, and wait for the rollout."""
        self.run("apply", "--server-side", "-f", str(MANIFESTS / "base" / "common" / "namespace.yaml"))
        prune = ["--prune", "--applyset=netaware", "-n", NAMESPACE, "-k", str(folder)]
        self.run("apply", "--server-side", "--force-conflicts", *prune)
        self.await_rollout()

    def await_rollout(self, namespace: str = NAMESPACE) -> None:
        for name in self.run("-n", namespace, "get", "daemonsets,deployments", "-o", "name").split():
            self.run(
                "-n", namespace, "rollout", "status", name, f"--timeout={TIMEOUT_S:.0f}s", timeout_s=TIMEOUT_S + 10
            )

    def read_node_fields(self) -> dict[str, Any]:
        """Return node -> fields that only an installation changes."""
        return {
            node["metadata"]["name"]: (
                node["metadata"]["labels"],
                {k: v for k, v in node["metadata"].get("annotations", {}).items() if "kubernetes.io" not in k},
                node["status"]["capacity"],
                sorted(condition["type"] for condition in node["status"]["conditions"]),
            )
            for node in self.get("nodes")["items"]
        }

    def read_traffic_control(self) -> dict[str, str]:
        """Return node -> queueing disciplines and filters of its own devices, without those of pods."""
        text_by_node = {}
        for node in self.lab["nodes"]:
            text = ""
            for device in ("wan0", "mgmt0"):
                for verb in ("qdisc", "filter"):
                    argv = [*node["enter_command"], "tc", verb, "show", "dev", device]
                    text += subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
            text_by_node[node["name"]] = text
        return text_by_node

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
    deadline = time.monotonic() + TIMEOUT_S
    while not check():
        assert time.monotonic() < deadline, f"timed out waiting for {description}: {describe_state()}"
        time.sleep(every_s)
