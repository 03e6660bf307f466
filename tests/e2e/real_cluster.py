"""A lab of real nodes, by kubectl alone, as an operator has it."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lab.realnode.images import ImageStore

MANIFESTS = Path(__file__).parents[2] / "manifests"
NAMESPACE = "netaware-system"
TIMEOUT_S = 300.0


def start_shipped_lab(
    command: Any, folder: Path, topology: str, images: Mapping[str, Path], *more_tags: str
) -> Cluster:
    """A lab of the topology's real nodes, named after it, whose registry has our images, also under more tags.

    Args:
        command: the fixture ``lab_command``.
        folder: for the topology's file.
        topology: as text.
        images: OCI layouts by name with its tag.
        more_tags: of the same images.
    """
    file = folder / "topology.yaml"
    file.write_text(topology)
    name = yaml.safe_load(topology)["name"]
    lab = command.json("up", "--name", f"e2e-{name}", "--topology", str(file))
    store = ImageStore(Path(lab["state_dir"]) / "registry")
    for image, layout in images.items():
        for each in (image, *(f"{image.partition(':')[0]}:{tag}" for tag in more_tags)):
            store.add_oci_layout(each, layout)
    return Cluster(lab)


class Cluster:
    """The lab, by kubectl alone, as an operator has it."""

    def __init__(self, lab: dict[str, Any]) -> None:
        self.lab = lab
        self._kubectl = [lab["kubectl"], "--kubeconfig", lab["kubeconfig"]]

    def run(
        self, *args: str, text: str | None = None, timeout_s: float = 60.0, env: dict[str, str] | None = None
    ) -> str:
        argv = [*(["env", *(f"{k}={v}" for k, v in env.items())] if env else []), *self._kubectl, *args]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, input=text, timeout=timeout_s)
        assert done.returncode == 0, (
            f"{args}: {done.stderr or done.stdout}\n{self.unready() if 'rollout' in args else ''}"
        )
        return done.stdout

    def get(self, *args: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("get", *args, "-o", "json"))
        return found

    def unready(self) -> str:
        """A description of our pods, for an assertion's message."""
        return subprocess.run(
            [*self._kubectl, "-n", NAMESPACE, "describe", "pods"],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout[-4000:]

    def apply(self, folder: Path) -> None:
        """Apply an overlay as docs/upgrade.md says, which prunes the one before, and wait for its rollout."""
        self.run("apply", "--server-side", "-f", str(MANIFESTS / "base" / "common" / "namespace.yaml"))
        prune = ["--prune", "--applyset=netaware", "-n", NAMESPACE, "-k", str(folder)]
        self.run("apply", "--server-side", "--force-conflicts", *prune, env={"KUBECTL_APPLYSET": "true"})
        self.await_rollout()

    def await_rollout(self) -> None:
        for name in self.run("-n", NAMESPACE, "get", "daemonsets,deployments", "-o", "name").split():
            self.run(
                "-n", NAMESPACE, "rollout", "status", name, f"--timeout={TIMEOUT_S:.0f}s", timeout_s=TIMEOUT_S + 10
            )

    def node_objects(self) -> dict[str, Any]:
        """Fields of the nodes that only an installation changes."""
        return {
            node["metadata"]["name"]: (
                node["metadata"]["labels"],
                {k: v for k, v in node["metadata"].get("annotations", {}).items() if "kubernetes.io" not in k},
                node["status"]["capacity"],
                sorted(condition["type"] for condition in node["status"]["conditions"]),
            )
            for node in self.get("nodes")["items"]
        }

    def traffic_control(self) -> dict[str, str]:
        """Queueing disciplines and filters of every node's devices but those of pods, which come and go."""
        found = {}
        for node in self.lab["nodes"]:
            text = ""
            for device in ("wan0", "mgmt0"):
                for verb in ("qdisc", "filter"):
                    argv = [*node["enter"], "tc", verb, "show", "dev", device]
                    text += subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
            found[node["name"]] = text
        return found

    @contextmanager
    def forwarded(self, what: str, port: int) -> Iterator[str]:
        """`kubectl port-forward`; yields the URL."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            local = probe.getsockname()[1]
        argv = [*self._kubectl, "-n", NAMESPACE, "port-forward", what, f"{local}:{port}"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert "Forwarding" in process.stdout.readline()
            try:
                yield f"http://127.0.0.1:{local}"
            finally:
                process.terminate()


def wait_until(check: Callable[[], bool], what: str, say: Callable[[], str] = lambda: "", every_s: float = 0.5) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not check():
        assert time.monotonic() < deadline, f"no {what} in time: {say()}"
        time.sleep(every_s)
