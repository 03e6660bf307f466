"""Writes credentials for the lab's API server: kubeconfigs, and the directories that our programs read instead."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from lab.paths import write_private


def save_kubeconfig(
    path: Path, cluster: Mapping[str, str], user: str, user_credentials: Mapping[str, str], namespace: str = "default"
) -> None:
    """Write a kubeconfig with one context; only the file's owner may read it."""
    data = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": dict(cluster)}],
        "users": [{"name": user, "user": dict(user_credentials)}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user, "namespace": namespace}}],
    }
    write_private(path, yaml.safe_dump(data, sort_keys=False))


def credentials_dir(kubeconfig: Path) -> Path:
    """The directory beside a kubeconfig with the same credentials, which our programs read."""
    return kubeconfig.with_suffix(".credentials")


def save_credentials(
    directory: Path, server: str, ca_file: Path, user_credentials: Mapping[str, str], namespace: str = "default"
) -> None:
    """Write a directory for `kubekit.config.load_cluster_config`, with the ``user_credentials`` of `save_kubeconfig`."""
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)  # An existing directory kept its mode.
    (directory / "server").write_text(server)
    (directory / "namespace").write_text(namespace)
    shutil.copyfile(ca_file, directory / "ca.crt")
    token_file = directory / "token"
    if token := user_credentials.get("token"):
        token_file.write_text(token)
    else:
        token_file.unlink(missing_ok=True)  # Else a token of an earlier call would still be read.
        shutil.copyfile(user_credentials["client-certificate"], directory / "tls.crt")
        shutil.copyfile(user_credentials["client-key"], directory / "tls.key")
