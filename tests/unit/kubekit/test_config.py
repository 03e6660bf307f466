"""A kubeconfig is read as kubectl reads it, and what is wrong in it is named."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubekit.config import load_cluster
from kubekit.credentials import TokenFile
from kubekit.errors import ConfigError


def write(path: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> str:
    document = {
        "current-context": "lab",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {"token": "abc"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}],
    }
    file = path / "config"
    file.write_text(yaml.safe_dump(document))
    return str(file)


def test_token_server_and_namespace(tmp_path: Path) -> None:
    config = load_cluster(write(tmp_path))
    assert (config.server, config.namespace, config.context) == ("https://127.0.0.1:6443", "shop", "lab")
    assert config.token is not None
    assert config.token() == "abc"
    assert "abc" not in repr(config)


def test_environment_variable_and_home_are_found(tmp_path: Path) -> None:
    file = write(tmp_path)
    assert load_cluster(environ={"KUBECONFIG": f"/nowhere/x:{file}"}).context == "lab"
    (tmp_path / ".kube").mkdir()
    Path(file).rename(tmp_path / ".kube" / "config")
    assert load_cluster(environ={"HOME": str(tmp_path)}).context == "lab"


def test_a_token_file_is_read_again_after_a_minute_and_survives_a_missing_file(tmp_path: Path) -> None:
    file, now = tmp_path / "token", [0.0]
    file.write_text("one\n")
    token = TokenFile(file, clock=lambda: now[0])
    assert token() == "one"
    file.write_text("two\n")
    assert token() == "one"
    now[0] = 61
    assert token() == "two"
    file.unlink()
    now[0] = 130
    assert token() == "two"


@pytest.mark.parametrize(
    ("cluster", "user", "named"),
    [
        ({"server": "127.0.0.1"}, None, "server"),
        ({"certificate-authority": "missing.pem"}, None, "certificate-authority"),
        ({"certificate-authority-data": "&&"}, None, "certificate-authority-data"),
        (None, {"tokenFile": "absent"}, "absent"),
        (None, {"client-certificate-data": base64.b64encode(b"x").decode(), "client-key-data": "eA=="}, "client-cert"),
    ],
)
def test_errors_name_the_field(
    tmp_path: Path, cluster: dict[str, Any] | None, user: dict[str, Any] | None, named: str
) -> None:
    file = write(tmp_path, cluster=cluster, user=user)
    with pytest.raises(ConfigError, match=named):
        (load_cluster(file).token or str)()


def test_no_cluster_at_all_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="--kubeconfig FILE"):
        load_cluster(environ={})


@pytest.mark.parametrize("content", ["[1, 2]", "a: [", "", "contexts: []"])
def test_files_that_are_no_kubeconfig(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    with pytest.raises(ConfigError, match="config"):
        load_cluster(str(file))
    with pytest.raises(ConfigError, match="No such file"):
        load_cluster(str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="no entry named 'other'"):
        load_cluster(write(tmp_path), context="other")
