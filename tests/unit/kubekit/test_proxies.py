"""Proxies that the environment names: which servers they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubekit.config import load_cluster
from kubekit.errors import ConfigError
from kubekit.proxies import proxy_from_environment

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("server", "no_proxy"),
    [
        ("https://localhost:6443", ""),
        ("https://127.9.9.9:6443", ""),
        ("https://[::1]:6443", ""),
        ("https://api.example:6443", "*"),
        ("https://api.example:6443", "x, API.example ,y"),
        ("https://api.example:6443", "example"),
        ("https://api.example:6443", ".example"),
        ("https://api.example:6443", "*.example"),
        ("https://api.example:6443", "api.example:6443"),
        ("https://api.example", "api.example:443"),
        ("https://10.1.2.3:6443", "10.1.2.3"),
        ("https://10.1.2.3:6443", "10.0.0.1/8"),
        ("https://[2001:db8::1]:6443", "2001:db8::/32"),
        ("https://[2001:db8::1]:6443", "2001:DB8:0::1"),
        ("https://[2001:db8::1]:6443", "[2001:db8::1]:6443"),
    ],
)
def test_a_server_that_is_named_or_near_is_reached_directly(server: str, no_proxy: str) -> None:
    assert proxy_from_environment(server, {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}) == ""
    assert proxy_from_environment(server, {"https_proxy": PROXY, "no_proxy": no_proxy}) == ""


@pytest.mark.parametrize(
    ("server", "no_proxy"),
    [
        ("https://api.example:6443", ""),
        ("https://api.example:6443", "api.example:443"),
        ("https://api.example:6443", "i.example, .api.example,*.api.example,/,:6443"),
        ("https://10.1.2.3:6443", "10.1.2.4,11.0.0.0/8,10.1.2.3/33,10.1.2.3/x,10.0.0.0/255.0.0.0"),
        ("https://[2001:db8::1]:6443", "[2001:db8::1]:443,[2001:db8::1]"),
        ("https://example:6443", ".example,*.example"),
    ],
)
def test_any_other_is_reached_by_the_proxy(server: str, no_proxy: str) -> None:
    assert proxy_from_environment(server, {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}) == PROXY


def test_each_scheme_has_its_variable_and_the_upper_case_one_wins() -> None:
    both = {
        "HTTPS_PROXY": PROXY,
        "https_proxy": "http://other:1",
        "http_proxy": "plain.example:8080",
        "ALL_PROXY": "http://x:1",
    }
    assert proxy_from_environment("https://api.example", both) == PROXY
    assert proxy_from_environment("http://api.example", both) == "http://plain.example:8080"
    assert proxy_from_environment("http://api.example", {"HTTPS_PROXY": PROXY, "ALL_PROXY": PROXY}) == ""


@pytest.mark.parametrize("url", ["socks5://proxy.example:1080", "http://", "http://proxy.example:port"])
def test_what_is_no_http_proxy_is_refused_by_the_variable_s_name(url: str) -> None:
    with pytest.raises(ConfigError, match="https_proxy"):
        proxy_from_environment("https://api.example", {"https_proxy": url})


def test_the_kubeconfig_s_own_proxy_wins(tmp_path: Path) -> None:
    file = tmp_path / "config"
    text = (
        "{current-context: c, contexts: [{name: c, context: {cluster: c}}],"
        " clusters: [{name: c, cluster: {server: 'https://api.example'%s}}]}"
    )
    file.write_text(text % "")
    environ = {"KUBECONFIG": str(file), "HTTPS_PROXY": PROXY}
    assert load_cluster(environ=environ).proxy == PROXY
    assert load_cluster(str(file), environ={**environ, "NO_PROXY": "example"}).proxy == ""
    file.write_text(text % ", proxy-url: 'http://named.example:1'")
    assert load_cluster(environ={**environ, "NO_PROXY": "*"}).proxy == "http://named.example:1"
