"""The server exports metrics in the requested format, and its health responses name each failing check."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from kubekit.errors import ConfigError
from kubekit.http import HealthChecks, Server, parse_listen


async def fetch(address: str, path: str, **headers: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}", headers=headers) as response:
        return response.status, await response.text(), response.headers["Content-Type"]


async def test_metrics_are_served_as_text_and_as_openmetrics() -> None:
    registry = CollectorRegistry()
    Gauge("netaware_test_seconds", "A gauge.", registry=registry).set(1.5)
    async with Server("127.0.0.1:0", registry=registry).running() as address:
        status, text, content_type = await fetch(address, "/metrics")
        assert status == 200
        assert "netaware_test_seconds 1.5" in text
        assert content_type.startswith("text/plain")
        _, text, content_type = await fetch(address, "/metrics", Accept="application/openmetrics-text")
        assert content_type.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")
        assert (await fetch(address, "/metrics?name[]=other"))[1] == ""


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
    server = Server(":0", registry=CollectorRegistry())
    async with server.running() as address, aiohttp.ClientSession() as session:
        port = address.rpartition(":")[2]
        hosts = ["127.0.0.1", *(["[::1]"] if socket.has_dualstack_ipv6() else [])]
        for host in hosts:
            async with session.get(f"http://{host}:{port}/healthz") as response:
                assert response.status == 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), (":9850", ("::", 9850))],
)
def test_listen_addresses_have_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", "9850", "host:9850", "127.0.0.1:http", "1.2.3.4:70000"])
def test_errors_of_invalid_listen_addresses_name_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        parse_listen(text)
