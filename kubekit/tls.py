"""Whom we believe over TLS: certificates are verified and host names compared, as every Kubernetes client does.

Python 3.13 also sets ``VERIFY_X509_STRICT``, which asks a certificate authority for key identifiers and other things of RFC
5280 that the authorities of many clusters lack and that neither Go nor OpenSSL's own default asks for. That flag alone is
cleared. Only the standard library is imported here, so that any interpreter can be asked about it.
"""

from __future__ import annotations

import re
import ssl

_PEM = re.compile(rb"-----BEGIN (?P<label>[A-Z ]*CERTIFICATE)-----.+?-----END (?P=label)-----", re.DOTALL)


def trust(authorities: bytes = b"") -> ssl.SSLContext:
    """A context for connections to servers whose certificates these authorities signed.

    Args:
        authorities: certificates in PEM, any number of them, with comments or without; empty for those of the system.

    Raises:
        ssl.SSLError: there are authorities, but none that can be read.
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
