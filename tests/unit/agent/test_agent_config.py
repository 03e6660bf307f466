"""Flags, the environment and the file of capacities are read into the agent's configuration."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.config import AgentConfig, Reserve, add_flags, read_capacities, read_config
from kubekit.errors import ConfigError


def parse_flags(*flags: str, **environ: str) -> AgentConfig:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser, environ)
    return read_config(parser.parse_args(flags))


def write_config(folder: Path, body: str) -> Path:
    file = folder / "agent.yaml"
    file.write_text("apiVersion: netaware.io/v1alpha1\nkind: AgentConfiguration\n" + body)
    return file


def test_flags_win_over_the_environment() -> None:
    environ = {"NODE_NAME": "n1", "NETAWARE_CAPACITY": "1G", "POD_NAMESPACE": "other", "NETAWARE_BANDWIDTH": "enforce"}
    config = parse_flags("--capacity=2G", "--repair-burst", **environ)
    assert config == AgentConfig(
        node_name="n1", namespace="other", bandwidth="enforce", capacity_bps=2 * 10**9, repair_burst=True
    )


@pytest.mark.parametrize(
    ("text", "reserve"),
    [("10%", Reserve(ratio=0.1)), ("0", Reserve()), ("500M", Reserve(rate_bps=500_000_000)), ("0%", Reserve())],
)
def test_a_reserve_is_a_share_or_a_rate(text: str, reserve: Reserve) -> None:
    assert parse_flags(f"--reserve={text}", NODE_NAME="n1").reserve == reserve


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--capacity=ten", "'ten' is not a quantity"),
        ("--reserve=120%", "'120%' is not a share"),
        *((f"--reserve={text}", "") for text in ("100%", "-1", "-5%", "much", "1e400%")),
        ("--max-stream-bandwidth=0", "'0' is not above 0"),
        ("--listen=nonsense", "'nonsense' has no valid port"),
        ("--bandwidth=on", "'on' is unknown (write observe, enforce, off)"),
        ("--address=host.example", "'host.example' is not an address"),
        ("--upstream-keys=p95", "'p95' is unknown"),
        ("--config=/nonexistent.yaml", "/nonexistent.yaml: No such file"),
        ("--node-name=", "is not set"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused_by_name(flag: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_flags("--node-name=n1", flag)
    assert str(refused.value).startswith(f"{flag.partition('=')[0]}: {message}")


def test_the_file_names_capacities_by_label_and_instance_type(tmp_path: Path) -> None:
    body = "capacityByNode: [{selector: 'pool in (a, b)', capacity: 25G}]\ncapacityByInstanceType: {m5.large: 10000000000}\n"
    rules, by_type = read_capacities(write_config(tmp_path, body))
    assert [(rule.rate_bps, rule.selector.matches({"pool": "b"})) for rule in rules] == [(25 * 10**9, True)]
    assert by_type == {"m5.large": 10**10}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("capacityByNode: [{selector: 'pool in', capacity: 1G}]", r"capacityByNode\[0\].selector"),
        ("capacityByNode: [{selector: a=b, capacity: fast}]", r"capacityByNode\[0\].capacity"),
        ("capacityByInstanceType: {t3: 0}", r"capacityByInstanceType\[t3\]"),
        ("capacityByInstanceTypes: {}", "capacityByInstanceTypes"),
        ("capacityByNode: 5", "capacityByNode"),
        ("{", "is not YAML"),
    ],
)
def test_a_file_that_is_wrong_names_the_field(tmp_path: Path, body: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_capacities(write_config(tmp_path, body + "\n"))


def test_the_agent_reads_the_node_without_a_cluster_and_without_unused_large_packages() -> None:
    """Each of these packages takes a megabyte or more. On a node, psutil is imported only if sysfs is missing."""
    program = """
import asyncio, sys
from agent import __main__ as agent
assert agent.main(["capacity", "--capacity=10G", "--reserve=10%"]) == 0  # reads links, qdiscs and routes
print(*sys.modules, file=sys.stderr)
from agent.bandwidth.tc_writer import execute
from agent.bandwidth.state import SetIngressLimit, DeleteIfb
from agent.bandwidth.tbf import choose_params
from agent.bandwidth.tc_reader import read_tc_state
from agent.capacity.sysfs import read_psutil_mbps
from agent.netlink import KernelError
asyncio.run(read_tc_state({"uid": 1}))
asyncio.run(execute(DeleteIfb("no such device")))
try:
    asyncio.run(execute(SetIngressLimit(device_index=2**31 - 1, device_name="no such device", params=choose_params(10**7, 1500))))
except KernelError as error:
    assert "no such device: " in str(error)
assert read_psutil_mbps("lo") is not None
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert completed.returncode == 0, completed.stderr
    report = json.loads(completed.stdout)
    assert {"rate_bps": 9 * 10**9, "source": "flag", "node": None}.items() <= report.items()
    assert "lo" in {link["name"] for link in report["links"]}
    loaded_modules = set(completed.stderr.split())
    assert "pyroute2.iproute" in loaded_modules
    assert not loaded_modules & {"psutil", "sqlite3", "pyroute2.ndb", "pyroute2.plan9", "unittest", "yaml"}
