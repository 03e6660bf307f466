"""A program's HTTP server exports metrics, names failing checks, and refuses requests for unknown public host names."""

from __future__ import annotations

import socket
from typing import NamedTuple

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from kubekit.errors import ConfigError
from kubekit.http import HealthChecks, Server, parse_listen


class Response(NamedTuple):
    """A response with its content."""

    status: int
    text: str
    content_type: str


async def fetch(address: str, path: str, **headers: str) -> Response:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}", headers=headers) as response:
        return Response(response.status, await response.text(), response.headers["Content-Type"])


async def test_metrics_are_served_as_text_and_as_openmetrics() -> None:
    registry = CollectorRegistry()
    Gauge("netaware_test_seconds", "A gauge.", registry=registry).set(1.5)
    async with Server("127.0.0.1:0", registry=registry).running() as address:
        response = await fetch(address, "/metrics")
        assert response.status == 200
        assert "netaware_test_seconds 1.5" in response.text
        assert response.content_type.startswith("text/plain")
        response = await fetch(address, "/metrics", Accept="application/openmetrics-text")
        assert response.content_type.startswith("application/openmetrics-text")
        assert response.text.endswith("# EOF\n")
        assert (await fetch(address, "/metrics?name[]=other")).text == ""


async def test_health_responses_name_each_failing_check() -> None:
    checks = HealthChecks()
    checks.ready["caches"] = lambda: "nodes not listed yet"
    checks.live["loop"] = lambda: ""
    async with Server("127.0.0.1:0", checks=checks, registry=CollectorRegistry()).running() as address:
        assert (await fetch(address, "/readyz"))[:2] == (503, "caches: nodes not listed yet\n")
        assert (await fetch(address, "/healthz"))[:2] == (200, "ok\n")
        checks.ready["caches"] = lambda: ""
        checks.warnings["probing"] = lambda: "the passphrase has 5 bytes"
        assert (await fetch(address, "/readyz"))[:2] == (200, "ok\nprobing: the passphrase has 5 bytes\n")


async def test_an_address_in_use_is_a_configuration_error() -> None:
    async with Server("127.0.0.1:0", registry=CollectorRegistry()).running() as address:
        with pytest.raises(ConfigError, match=r"^--metrics-listen: cannot bind"):
            async with Server(address, registry=CollectorRegistry(), listen_field="--metrics-listen").running():
                pass


async def test_without_a_host_all_ipv4_and_ipv6_addresses_are_served() -> None:
    async with Server(":0", registry=CollectorRegistry()).running() as address:
        port = address.rpartition(":")[2]
        for host in ["127.0.0.1", *(["[::1]"] if socket.has_dualstack_ipv6() else [])]:
            assert (await fetch(f"{host}:{port}", "/healthz")).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("127.0.0.1:8080", "[::1]:8080", "localhost", "Page.Example.com")),
        ("netaware-controller.netaware-system.svc:9850", 200),
        *((host, 421) for host in ("rebound.attacker.example", "127.0.0.1.attacker.example:9850")),
    ],
)
async def test_requests_for_unknown_public_host_names_are_refused(host: str, status: int) -> None:
    restricted = Server("127.0.0.1:0", registry=CollectorRegistry(), public_hosts=["page.example.com"])
    async with restricted.running() as address:
        assert (await fetch(address, "/healthz", Host=host)).status == status
    async with Server("127.0.0.1:0", registry=CollectorRegistry()).running() as address:
        assert (await fetch(address, "/healthz", Host=host)).status == 200


@pytest.mark.parametrize(
    ("text", "host", "port"), [("127.0.0.1:80", "127.0.0.1", 80), ("[::1]:0", "::1", 0), (":9850", "::", 9850)]
)
def test_listen_addresses_have_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_listen(text) == (host, port)


@pytest.mark.parametrize("text", ["", "9850", "host:9850", "127.0.0.1:http", "1.2.3.4:70000"])
def test_errors_of_invalid_listen_addresses_name_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        parse_listen(text)
