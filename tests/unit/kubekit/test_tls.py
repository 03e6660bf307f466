"""Servers are verified as Python does by default, but without the strict flag that many clusters' authorities fail."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from kubekit.tls import client_context
from lab.certificates import CertificateAuthority


def test_only_the_strict_flag_is_cleared() -> None:
    ours, shipped = client_context(), ssl.create_default_context()
    assert ours.check_hostname
    assert ours.verify_mode is ssl.CERT_REQUIRED
    assert ours.verify_flags == shipped.verify_flags & ~ssl.VERIFY_X509_STRICT


def test_authorities_come_as_a_bundle_with_comments_in_any_language(tmp_path: Path) -> None:
    parts = [CertificateAuthority(tmp_path / name, name).certificate.read_bytes() for name in ("a", "b")]
    assert len(client_context("# Zürich, ключ\n".encode() + b"\n# next\n".join(parts)).get_ca_certs()) == 2


@pytest.mark.parametrize("content", [b"MIIB", b"-----BEGIN CERTIFICATE-----\n&&&\n-----END CERTIFICATE-----\n"])
def test_authorities_that_cannot_be_read_are_refused(content: bytes) -> None:
    with pytest.raises(ssl.SSLError):
        client_context(content)
