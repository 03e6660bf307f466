"""SSL contexts for clients, which verify certificates and host names as every Kubernetes client does.

Python 3.13 also sets ``VERIFY_X509_STRICT``, which requires key identifiers and other fields of RFC 5280. The authorities of many clusters
lack them, and neither Go nor OpenSSL requires them by default, so this flag is cleared. This module imports only the standard library, so
that tests can run it on any interpreter.
"""

from __future__ import annotations

import re
import ssl

_PEM = re.compile(rb"-----BEGIN (?P<label>[A-Z ]*CERTIFICATE)-----.+?-----END (?P=label)-----", re.DOTALL)


def create_client_context(authorities: bytes = b"") -> ssl.SSLContext:
    """A context that trusts servers whose certificates these authorities (in PEM, by default the system's) signed.

    Raises:
        ssl.SSLError: ``authorities`` has no readable certificate.
    """
    if authorities:
        blocks = [match[0].decode("ascii", "ignore") for match in _PEM.finditer(authorities)]
        if not blocks:
            raise ssl.SSLError("no certificate in PEM (-----BEGIN CERTIFICATE-----)")
        context = ssl.create_default_context(cadata="\n".join(blocks))
    else:
        context = ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
