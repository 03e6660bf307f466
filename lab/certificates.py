"""Creates a lab's certificate authority and the certificates that it signs, valid for a year.

Keys are elliptic-curve keys, because generating RSA keys would take longer than booting etcd.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubekit.addresses import parse_address
from lab.paths import write_private

_LIFETIME = timedelta(days=365)
# Clocks of machines that share a directory differ a little.
_BACKDATE = timedelta(minutes=5)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, both as PEM files."""

    certificate: Path
    key: Path


class CertificateAuthority:
    """A new certificate authority; writes its files into ``folder``, and replaces those of an earlier authority."""

    def __init__(self, folder: Path, common_name: str) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            self._start_certificate(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, file_name: str, common_name: str, *, organization: str = "", hosts: tuple[str, ...] = ()
    ) -> KeyPair:
        """Sign and write a certificate that is valid for clients and for servers with these DNS names and IP addresses.

        Kubernetes takes the common name for the user's name, and the organization for the user's group.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        builder = self._start_certificate(x509.Name(attributes), key.public_key())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_to_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = KeyPair(self.folder / f"{file_name}.crt", self.folder / f"{file_name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_private_key(pair.key, key)
        return pair

    def _start_certificate(self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        """Return the builder of a certificate for a subject, to be completed and signed."""
        now = datetime.now(UTC)
        issuer = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(now + _LIFETIME)
            # Python 3.13 sets VERIFY_X509_STRICT, which requires both extensions.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        )


def generate_signing_key(path: Path) -> None:
    """Write the key with which the API server signs service account tokens."""
    write_private_key(path, ec.generate_private_key(ec.SECP256R1()))


def write_private_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a key as a PEM file that only the file's owner can read."""
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    write_private(path, pem.decode())


def _to_general_name(host: str) -> x509.GeneralName:
    address = parse_address(host)
    return x509.IPAddress(address) if address is not None else x509.DNSName(host)
