"""IP addresses as texts."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def read_address(text: str) -> Address | None:
    """The address that a text is; None when it is none, such as a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
