"""Writes credentials for the lab's API server: kubeconfigs, and the directories that our programs read instead."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml


def save_kubeconfig(
    path: Path, cluster: Mapping[str, str], user: str, credentials: Mapping[str, str], namespace: str = "default"
) -> None:
    """Write a kubeconfig with one context that only the file's owner can read."""
    data = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": dict(cluster)}],
        "users": [{"name": user, "user": dict(credentials)}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user, "namespace": namespace}}],
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(data, sort_keys=False))


def credentials_of(kubeconfig: Path) -> Path:
    """The directory beside a kubeconfig with the same credentials, which our programs read."""
    return kubeconfig.with_suffix(".credentials")


def save_credentials(
    folder: Path, server: str, ca_file: Path, credentials: Mapping[str, str], namespace: str = "default"
) -> None:
    """Write a directory for `kubekit.config.load_cluster_config`, with the ``credentials`` of `save_kubeconfig`."""
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "server").write_text(server)
    (folder / "namespace").write_text(namespace)
    shutil.copyfile(ca_file, folder / "ca.crt")
    if token := credentials.get("token"):
        (folder / "token").write_text(token)
    else:
        shutil.copyfile(credentials["client-certificate"], folder / "tls.crt")
        shutil.copyfile(credentials["client-key"], folder / "tls.key")
