"""Servers are believed when a known authority signed for their name, also by authorities without key identifiers."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kubekit.tls import client_context

HERE = Path(__file__).parent
PYTHONS = subprocess.run(
    [HERE.parents[2] / ".ci" / "pythons"], capture_output=True, text=True, check=False
).stdout.split()


@dataclass(frozen=True)
class Files:
    """An authority and a certificate of localhost that it signed."""

    authority: Path
    certificate: Path
    key: Path


def bare_authority(folder: Path) -> Files:
    """An authority as many clusters have it: neither it nor what it signs carries key identifiers."""
    folder.mkdir(exist_ok=True)
    found = Files(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name, name = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("bare", "server"))
    now = datetime.now(UTC)
    draft = x509.CertificateBuilder().issuer_name(ca_name).serial_number(x509.random_serial_number())
    draft = draft.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    authority = draft.subject_name(ca_name).public_key(ca_key.public_key())
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    served = draft.subject_name(name).public_key(key.public_key())
    served = served.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    for file, built in ((found.authority, authority), (found.certificate, served)):
        file.write_bytes(built.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    found.key.write_bytes(key.private_bytes(*form))
    return found


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
def test_on_every_python_of_this_machine_servers_are_verified_but_not_for_key_identifiers(
    python: str, tmp_path: Path
) -> None:
    def ask(authority: Path, host: str) -> str:
        arguments: list[str | Path] = [python, HERE / "tls_handshake.py", authority, known.certificate, known.key, host]
        return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.strip()

    known, other = bare_authority(tmp_path / "known"), bare_authority(tmp_path / "other")
    assert ask(known.authority, "localhost") == "ok"
    assert "mismatch" in ask(known.authority, "elsewhere.example")
    assert ask(other.authority, "localhost") != "ok"


def test_only_the_strict_flag_is_cleared() -> None:
    ours, shipped = client_context(), ssl.create_default_context()
    assert ours.check_hostname
    assert ours.verify_mode is ssl.CERT_REQUIRED
    assert ours.verify_flags == shipped.verify_flags & ~ssl.VERIFY_X509_STRICT


def test_authorities_come_as_a_bundle_with_comments_in_any_language(tmp_path: Path) -> None:
    first, second = bare_authority(tmp_path / "a"), bare_authority(tmp_path / "b")
    parts = [first.authority.read_bytes(), second.authority.read_bytes()]
    assert len(client_context("# Zürich, ключ\n".encode() + b"\n# next\n".join(parts)).get_ca_certs()) == 2


@pytest.mark.parametrize("content", [b"MIIB", b"-----BEGIN CERTIFICATE-----\n&&&\n-----END CERTIFICATE-----\n"])
def test_authorities_that_cannot_be_read_are_refused(content: bytes) -> None:
    with pytest.raises(ssl.SSLError):
        client_context(content)
