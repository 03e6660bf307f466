"""One TLS handshake in memory, between our client's context and a server, on whichever interpreter runs this file.

``python tls_handshake.py AUTHORITY CERTIFICATE KEY HOST`` prints ``ok`` or why the client refuses. It needs the standard
library and kubekit/tls.py alone.
"""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

ROUNDS = 10


def handshake(client: ssl.SSLContext, certificate: Path, key: Path, host: str) -> str:
    """Return ``ok``, or the client's reason to refuse the server's certificate."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    caller = client.wrap_bio(to_client, to_server, server_hostname=host)
    open_ends = [caller, server]
    for _ in range(ROUNDS):
        for end in tuple(open_ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
            open_ends.remove(end)
        if not open_ends:
            return "ok"
    return "no end"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from kubekit.tls import client_context

    authority, certificate, key, host = sys.argv[1:]
    print(handshake(client_context(Path(authority).read_bytes()), Path(certificate), Path(key), host))
