"""Parses IP addresses."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_address(text: str) -> Address | None:
    """The address in a text; None if it is not an address, such as a name. IPv4 inside IPv6 (``::ffff:10.0.0.1``) is IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
