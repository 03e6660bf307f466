"""SSL contexts for clients, which verify certificates and host names as every Kubernetes client does.

Python 3.13 also sets ``VERIFY_X509_STRICT``, which requires key identifiers and other fields of RFC 5280. Authorities of many clusters
lack them, and neither Go nor OpenSSL requires them by default, so this flag is cleared. This module imports only the standard library, so
that tests can run it on any interpreter.
"""

from __future__ import annotations

import re
import ssl

_PEM_CERTIFICATE = re.compile(rb"-----BEGIN (?P<label>[A-Z ]*CERTIFICATE)-----.+?-----END (?P=label)-----", re.DOTALL)


def create_client_context(authorities: bytes | None = None) -> ssl.SSLContext:
    """A context that trusts these certificate authorities, in PEM; None trusts those of the system.

    Raises:
        ssl.SSLError: ``authorities`` has no readable certificate.
    """
    if authorities is not None:
        # Comments between the certificates may be non-ASCII, which ``cadata`` does not accept.
        blocks = [match[0].decode("ascii", "ignore") for match in _PEM_CERTIFICATE.finditer(authorities)]
        if not blocks:
            raise ssl.SSLError("no certificate in PEM (-----BEGIN CERTIFICATE-----)")
        context = ssl.create_default_context(cadata="\n".join(blocks))
    else:
        context = ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
