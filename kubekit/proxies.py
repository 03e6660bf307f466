"""Which proxy leads to an API server whose kubeconfig names none: what Go's programs, kubectl among them, read from the environment.

Rules of golang.org/x/net/http/httpproxy, held to kubectl by a test: the upper-case variable comes first, hosts of the loopback are
reached directly, and NO_PROXY has names with their subdomains, ``.subdomains`` alone, addresses, ranges, ports, and ``*``.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Mapping

from kubekit.addresses import Address, read_address
from kubekit.errors import ConfigError


def proxy_from_environment(server: str, environ: Mapping[str, str]) -> str:
    """URL of the HTTP proxy for ``server``, a URL itself; empty for none.

    Raises:
        ConfigError: the variable names no HTTP proxy; names the variable.
    """
    address = urllib.parse.urlsplit(server)
    variable, url = _first_set(environ, "HTTPS_PROXY" if address.scheme == "https" else "HTTP_PROXY")
    if not url:
        return ""
    host, port = (address.hostname or "").lower(), address.port or (443 if address.scheme == "https" else 80)
    if _is_direct(host, str(port), _first_set(environ, "NO_PROXY")[1]):
        return ""
    return http_proxy(variable, url if "://" in url else f"http://{url}")


def http_proxy(field: str, url: str) -> str:
    """``url``, which ``field`` holds, if an HTTP proxy can be reached by it. Raises ConfigError otherwise."""
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(field, f"{url!r} is no HTTP proxy", "SOCKS proxies are not supported")
    return url


def _first_set(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    for variable in (name, name.lower()):
        if environ.get(variable):
            return variable, environ[variable]
    return name, ""


def _is_direct(host: str, port: str, no_proxy: str) -> bool:
    own = read_address(host)
    if host == "localhost" or (own is not None and own.is_loopback):
        return True
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return "*" in entries or any(_covers(entry, host, port, own) for entry in entries if entry)


def _covers(entry: str, host: str, port: str, own: Address | None) -> bool:
    name, slash, length = entry.partition("/")
    if slash and length.isdigit() and read_address(name) is not None:
        try:
            return own is not None and own in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, only_port = _split_port(entry)
    listed = read_address(name)
    if only_port and only_port != port:
        return False
    if listed is not None:
        return own == listed
    name = name.removeprefix("*") if name.startswith("*.") else name
    return bool(name) and (host == name or host.endswith(name if name.startswith(".") else f".{name}"))


def _split_port(entry: str) -> tuple[str, str]:
    """Host and port of an entry; an IPv6 address has a port only in brackets."""
    host, colon, port = entry.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        return entry, ""
    return host.strip("[]"), port
