"""A client's server, authorities and token are read from a directory of credentials, and unusable files are refused."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest

from kubekit import config as config_module
from kubekit.config import load_cluster_config
from kubekit.credentials import TokenFile
from kubekit.errors import ConfigError
from kubekit.tls import create_client_context
from lab.certificates import CertificateAuthority


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    CertificateAuthority(tmp_path, "cluster")
    for name, text in {"server": "https://127.0.0.1:6443/\n", "token": "abc\n", "namespace": "shop"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_credentials_directory_has_server_token_and_namespace(directory: Path) -> None:
    config = load_cluster_config(directory)
    assert config.server == "https://127.0.0.1:6443"
    assert config.namespace == "shop"
    assert config.token is not None
    assert config.token() == "abc"
    assert "abc" not in repr(config)


def test_the_service_account_directory_is_the_default(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "server").unlink()
    monkeypatch.setattr(config_module, "SERVICE_ACCOUNT_DIR", directory)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert load_cluster_config(environ=environ).server == "https://[fd00::1]:443"
    assert load_cluster_config(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).server == "https://10.0.0.1:443"
    with pytest.raises(ConfigError, match="server: is missing"):
        load_cluster_config(environ={})


def test_a_token_file_is_read_again_after_a_minute_and_keeps_its_token_if_it_cannot_be_read(tmp_path: Path) -> None:
    now_s = 0.0
    token_file = tmp_path / "token"
    read_token = TokenFile(token_file, clock=lambda: now_s)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(token_file))}: token cannot be read"):
        read_token()
    for content, advance_s, token in (
        (b"first\n", 0, "first"),
        (b"second\n", 59, "first"),
        (b"second\n", 2, "second"),
        (b"\xff", 61, "second"),
    ):
        token_file.write_bytes(content)
        now_s += advance_s
        assert read_token() == token, content
    token_file.unlink()
    now_s += 61
    assert read_token() == "second"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("server", "127.0.0.1"),
        ("ca.crt", None),
        ("ca.crt", "no PEM"),
        ("ca.crt", ""),
        ("ca.crt", "-----BEGIN CERTIFICATE-----\n&&&\n-----END CERTIFICATE-----\n"),
        ("tls.crt", "no PEM"),
        ("namespace", "\xff"),
    ],
)
def test_errors_of_a_credentials_directory_name_the_file(directory: Path, name: str, text: str | None) -> None:
    (directory / name).unlink(missing_ok=True)
    if text is not None:
        (directory / name).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=re.escape(f"/{name}: ")):
        load_cluster_config(directory)


def test_the_error_of_an_absent_credentials_directory_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--credentials"):
        load_cluster_config(tmp_path / "absent")


def test_only_the_strict_flag_is_cleared() -> None:
    context, pythons_default = create_client_context(), ssl.create_default_context()
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.verify_flags == pythons_default.verify_flags & ~ssl.VERIFY_X509_STRICT


def test_a_bundle_of_authorities_may_have_comments_in_any_language(tmp_path: Path) -> None:
    certificates = [CertificateAuthority(tmp_path / name, name).certificate.read_bytes() for name in ("a", "b")]
    bundle = "# Zürich, ключ\n".encode() + b"\n# next\n".join(certificates)
    assert len(create_client_context(bundle).get_ca_certs()) == 2
