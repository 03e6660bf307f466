"""Errors of configuration file and flags name the field, and end the program with exit code 2 before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controller.__main__ import main
from controller.config import ControllerConfiguration, load_config
from kubekit.errors import ConfigError

HEAD = "apiVersion: netaware.io/v1alpha1\nkind: ControllerConfiguration\n"
# Its text is also YAML.
BANDWIDTH_POLICY = {f"{name}Thresholds": {"network.aware.com/bandwidth": 30} for name in ("low", "high")}


def write_config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


def run_controller(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "controller", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def assert_refused(completed: subprocess.CompletedProcess[str], message: str) -> None:
    assert completed.returncode == 2
    assert message in completed.stderr
    assert "Traceback" not in completed.stderr


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "apiVersion"),
        ("apiVersion: netaware.io/v1alpha1\nkind: Pod", "kind"),
        ("- a", "--config"),
        ("a: [", "--config"),
        (HEAD + "nonsense: 1", "nonsense"),
        (HEAD + "namespace: Not_A_Namespace", "namespace"),
        (HEAD + "listen: nowhere", "listen"),
        (HEAD + "logLevel: loud", "logLevel"),
        (HEAD + "leaderElection: {leaseDurationS: 0}", "leaderElection.leaseDurationS"),
        (HEAD + "topology: {probing: {interval: 5}}", "topology.probing.interval"),
        (HEAD + "topology: {probing: {extraTests: [TCP_RR]}}", "topology.probing.extraTests"),
        (HEAD + "topology: {costPolicy: {units: 1}}", "topology.costPolicy"),
        (HEAD + "scheduler: {networkOverhead: {weightsName: ''}}", "scheduler.networkOverhead.weightsName"),
        (HEAD + "scheduler: {networkOverhead: {namespaces: []}}", "scheduler.networkOverhead.namespaces"),
        (HEAD + "scheduler: {gates: {maxWaitS: 0}}", "scheduler.gates.maxWaitS"),
        (HEAD + "scheduler: {gates: {missingWorkloadTimeoutS: 500}}", "scheduler.gates.missingWorkloadTimeoutS"),
        (HEAD + "scheduler: {allocatable: {resources: [{name: cpu, weight: 0}]}}", "scheduler.allocatable.resources"),
        (HEAD + "descheduler: {intervalS: 0}", "descheduler.intervalS"),
        (HEAD + "descheduler: {policy: {lowThresholds: {cpu: 101}}}", "descheduler.policy.lowThresholds.cpu"),
        (HEAD + "descheduler: {limits: {perWorkload: 150%}}", "descheduler.limits.perWorkload"),
        (HEAD + "descheduler: {limits: {perWorkload: some}}", "descheduler.limits.perWorkload"),
        (HEAD + "descheduler: {usage: {prometheus: {url: 'prom:9090'}}}", "descheduler.usage.prometheus.url"),
        (HEAD + "descheduler: {enabled: true, usage: {source: prometheus}}", "descheduler.usage.prometheus.url"),
        (HEAD + f"descheduler: {{enabled: true, policy: {BANDWIDTH_POLICY}}}", "descheduler.usage.prometheus.url"),
        (HEAD + "traffic: {prometheusUrl: 'user:secret@prometheus:9090'}", "traffic.prometheusUrl"),
        (HEAD + "traffic: {prometheusUrl: 'http://user@'}", "traffic.prometheusUrl"),
        (HEAD + "traffic: {prometheusUrl: 'http://['}", "traffic.prometheusUrl"),
        (HEAD + "traffic: {prometheusUrl: 'http://prometheus:99999'}", "traffic.prometheusUrl"),
        (HEAD + "traffic: {prices: {betweenZones: -1}}", "traffic.prices.betweenZones"),
        (HEAD + "traffic: {prices: {betweenZones: 999.5}}", "traffic.prices.betweenZones"),
        (HEAD + f"bootstrap: {{networkTopology: {'x' * 254}}}", "bootstrap.networkTopology"),
    ],
)
def test_errors_name_file_and_field(tmp_path: Path, text: str, field: str) -> None:
    path = write_config(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert field in caught.value.field
    assert path in str(caught.value)
    assert "secret" not in str(caught.value)


def test_check_config_says_valid_or_exits_2_with_the_field(tmp_path: Path) -> None:
    path = write_config(tmp_path, HEAD)
    assert load_config(path) == load_config(None) == ControllerConfiguration(), "defaults, also without a file"
    valid = run_controller("check-config", path)
    assert valid.returncode == 0
    assert valid.stdout == f"{path}: valid\n"
    assert valid.stderr == ""

    invalid_path = write_config(tmp_path, HEAD + "topology: {probing: {intervalS: 0}}")
    assert_refused(
        run_controller("check-config", invalid_path), "topology.probing.intervalS: 0.0 is out of range (1 to 86400)"
    )
    assert_refused(run_controller("check-config", str(tmp_path / "none.yaml")), "No such file")


@pytest.mark.parametrize("days", ["0", "-1", "9999999", "x"])
def test_the_validity_of_a_certificate_is_checked(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["webhook-certificate", f"--days={days}"])
    assert "from 1 to 36500" in capsys.readouterr().err


def test_flags_override_the_file_and_are_checked_like_it(tmp_path: Path) -> None:
    path = write_config(tmp_path, HEAD + "listen: 127.0.0.1:1\n")
    for listen, field in (("nowhere", "listen"), ("127.0.0.1:0", "--credentials")):
        flags = [f"--config={path}", f"--listen={listen}", "--credentials=/nonexistent/credentials"]
        assert_refused(run_controller("manager", *flags), field)
