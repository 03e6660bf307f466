"""The controller's command line: runs one of netaware's programs in the cluster. `python -m controller --help` lists the commands.

Each command imports its own program only, so that the extender and the webhook start fast and need little memory.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import yaml

from controller.config import ControllerConfiguration, load_config
from kubekit import logs
from kubekit.config import ClusterConfig, load_cluster_config
from kubekit.errors import ConfigError
from kubekit.runtime import EXIT_USAGE, run_program
from netperf.contract import NETAWARE_NAMESPACE

EXTENDER_LISTEN, OPENER_LISTEN, WEBHOOK_LISTEN = "127.0.0.1:9876", "127.0.0.1:9853", ":9443"
"""Default addresses; the manager's is in `ControllerConfiguration`."""
NAMESPACE_HELP = f"namespace of netaware (default {NETAWARE_NAMESPACE})"
DEFAULT_CERTIFICATE_DAYS, MAX_CERTIFICATE_DAYS = 3650, 36500


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0 done or stopped, 1 failed, 2 wrong usage or configuration."""
    arguments = _build_parser().parse_args(argv)
    try:
        return int(arguments.run_command(arguments))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE


def _run_manager(arguments: argparse.Namespace) -> int:
    from controller.manager import run_manager

    config, cluster = _load(arguments)
    return run_program(lambda: run_manager(cluster, config))


def _run_extender(arguments: argparse.Namespace) -> int:
    from controller.scheduler.extender.program import run_extender

    config, cluster = _load(arguments)
    return run_program(
        lambda: run_extender(
            cluster,
            config.scheduler,
            listen=arguments.listen or EXTENDER_LISTEN,
            metrics_listen=arguments.metrics_listen,
            netaware_namespace=config.namespace,
        )
    )


def _run_gate_opener(arguments: argparse.Namespace) -> int:
    from controller.scheduler.gating.opener import GRACE_S, run_gate_opener

    config, cluster = _load(arguments)
    max_wait_s = None if arguments.all else config.scheduler.gates.max_wait_s + GRACE_S
    listen = arguments.listen or OPENER_LISTEN
    return run_program(lambda: run_gate_opener(cluster, max_wait_s=max_wait_s, listen=listen))


def _run_webhook(arguments: argparse.Namespace) -> int:
    from controller.webhook.program import run_webhook

    logs.configure(format_=arguments.log_format or "text", level=arguments.log_level or "info")
    return run_program(lambda: run_webhook(arguments.certificate_dir, listen=arguments.listen or WEBHOOK_LISTEN))


def _print_webhook_manifests(arguments: argparse.Namespace) -> int:
    from controller.webhook.certificate import build_webhook_manifests

    manifests = build_webhook_manifests(arguments.namespace, arguments.days, datetime.datetime.now(datetime.UTC))
    print(yaml.safe_dump_all(manifests, sort_keys=False), end="")
    return 0


def _check_config(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.file)
    for warning in config.descheduler.resolve().warnings:
        print(f"warning: {arguments.file}: {warning}", file=sys.stderr)
    print(f"{arguments.file}: valid")
    return 0


def _load(arguments: argparse.Namespace) -> tuple[ControllerConfiguration, ClusterConfig]:
    """Load the configuration and the credentials, and configure logging. Flags override the file and are checked like its values."""
    config = load_config(arguments.config)
    overrides = {
        field: value
        for field in ("namespace", "listen", "log_level", "log_format")
        if (value := getattr(arguments, field)) is not None
    }
    if getattr(arguments, "leader_elect", None) is not None:
        overrides["leader_election"] = msgspec.structs.replace(config.leader_election, enabled=arguments.leader_elect)
    config = msgspec.structs.replace(config, **overrides)
    config.validate()
    logs.configure(format_=config.log_format, level=config.log_level)
    return config, load_cluster_config(arguments.credentials)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controller", description="Programs of netaware in the cluster.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add_command(name: str, run: Callable[[argparse.Namespace], int], help_text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help_text)
        command.set_defaults(run_command=run)
        return command

    help_text = "run the controllers of NetworkTopologies, AppGroups, scheduling, descheduling and traffic"
    manager = add_command("manager", _run_manager, help_text)
    _add_common_flags(manager, ControllerConfiguration().listen)
    manager.add_argument(
        "--leader-elect", action=argparse.BooleanOptionalAction, default=None, help="take part in the leader election"
    )
    extender = add_command("extender", _run_extender, "answer kube-scheduler's filter and prioritize requests")
    _add_common_flags(extender, EXTENDER_LISTEN)
    extender.add_argument("--metrics-listen", metavar="HOST:PORT", help="also serve metrics and health checks here")
    help_text = "open scheduling gates that the manager has not opened some time after scheduler.gates.maxWaitS"
    opener = add_command("gate-opener", _run_gate_opener, help_text)
    _add_common_flags(opener, OPENER_LISTEN)
    opener.add_argument(
        "--all", action="store_true", help="open all gates immediately, also those of new pods: for an uninstall"
    )
    webhook = add_command("webhook", _run_webhook, "gate pods on clusters before Kubernetes 1.36")
    webhook.add_argument(
        "--certificate-dir", metavar="DIR", type=Path, required=True, help="directory with tls.crt and tls.key"
    )
    _add_listen_and_log_flags(webhook, WEBHOOK_LISTEN)
    help_text = "print the webhook's certificate and configuration, for kubectl apply"
    manifests = add_command("webhook-certificate", _print_webhook_manifests, help_text)
    manifests.add_argument("--namespace", default=NETAWARE_NAMESPACE, help=NAMESPACE_HELP)
    help_text = f"days of validity (default {DEFAULT_CERTIFICATE_DAYS})"
    manifests.add_argument("--days", type=_parse_days, default=DEFAULT_CERTIFICATE_DAYS, help=help_text)
    check = add_command("check-config", _check_config, "check a configuration file without a cluster")
    check.add_argument("file", metavar="FILE")
    return parser


def _add_common_flags(parser: argparse.ArgumentParser, default_listen: str) -> None:
    help_text = "file with a ControllerConfiguration, see docs/configuration.md"
    parser.add_argument("--config", metavar="FILE", help=help_text)
    help_text = "directory with server, ca.crt and token (default: the pod's ServiceAccount)"
    parser.add_argument("--credentials", metavar="DIR", help=help_text)
    parser.add_argument("--namespace", help=NAMESPACE_HELP)
    _add_listen_and_log_flags(parser, default_listen)


def _add_listen_and_log_flags(parser: argparse.ArgumentParser, default_listen: str) -> None:
    parser.add_argument("--listen", metavar="HOST:PORT", help=f"where to serve (default {default_listen})")
    parser.add_argument("--log-level", choices=logs.LEVELS)
    parser.add_argument("--log-format", choices=logs.FORMATS)


def _parse_days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_CERTIFICATE_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MAX_CERTIFICATE_DAYS}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
