"""Parses IP addresses."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_address(text: str) -> Address | None:
    """Parse an IP address; None if the text is not an address. An IPv4-mapped IPv6 address (``::ffff:10.0.0.1``) becomes IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def parse_host_address(text: str) -> Address | None:
    """Parse the IP address of a host, as `parse_address` does; None also for unspecified and multicast addresses."""
    address = parse_address(text)
    return None if address is None or address.is_unspecified or address.is_multicast else address
