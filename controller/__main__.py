"""The controller's command line: ``manager`` runs the controllers; ``extender`` answers kube-scheduler; ``gate-opener`` opens
scheduling gates that no manager opens; ``webhook`` gates pods on clusters before Kubernetes 1.36, ``webhook-certificate`` prints its
certificate; ``check-config`` checks a configuration file without a cluster.

Each command imports its own program only, so that the extender and the webhook start fast and need little memory.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from controller.config import ControllerConfiguration, load_config
from kubekit import logs
from kubekit.config import load_cluster_config
from kubekit.errors import ConfigError
from kubekit.runtime import EXIT_USAGE, run_program
from netperf.contract import NETAWARE_NAMESPACE

MAX_DAYS = 36500
"""Longest validity of a certificate, a hundred years."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code: 0 done or stopped, 1 failed, 2 wrong usage or configuration."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "check-config":
            config = load_config(arguments.file)
            for warning in config.descheduler.resolve().warnings:
                print(f"warning: {arguments.file}: {warning}", file=sys.stderr)
            print(f"{arguments.file}: good")
            return 0
        if arguments.command == "webhook-certificate":
            return _print_certificate(arguments)
        if arguments.command == "webhook":
            from controller.webhook.program import run_webhook

            logs.configure(format_=arguments.log_format or "text", level=arguments.log_level or "info")
            return run_program(lambda: run_webhook(arguments.certificate_dir, listen=arguments.listen))
        config = _apply_flags(load_config(arguments.config), arguments)
        logs.configure(format_=config.log_format, level=config.log_level)
        return _run(config, arguments)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE


def _run(config: ControllerConfiguration, arguments: argparse.Namespace) -> int:
    cluster = load_cluster_config(arguments.credentials)
    if arguments.command == "extender":
        from controller.scheduler.extender.program import DEFAULT_LISTEN, run_extender

        listen, metrics_listen = arguments.listen or DEFAULT_LISTEN, arguments.metrics_listen
        return run_program(
            lambda: run_extender(
                cluster,
                config.scheduler,
                listen=listen,
                metrics_listen=metrics_listen,
                netaware_namespace=config.namespace,
            )
        )
    if arguments.command == "gate-opener":
        from controller.scheduler.gating.opener import DEFAULT_LISTEN as OPENER_LISTEN
        from controller.scheduler.gating.opener import GRACE_S, run_gate_opener

        wait_s = None if arguments.all else config.scheduler.gates.max_wait_s + GRACE_S
        listen = arguments.listen or OPENER_LISTEN
        return run_program(lambda: run_gate_opener(cluster, max_wait_s=wait_s, listen=listen))
    from controller.manager import run_manager

    return run_program(lambda: run_manager(cluster, config))


def _print_certificate(arguments: argparse.Namespace) -> int:
    from controller.webhook.certificate import manifests

    now = datetime.datetime.now(datetime.UTC)
    print(yaml.safe_dump_all(manifests(arguments.namespace, arguments.days, now), sort_keys=False), end="")
    return 0


def _apply_flags(config: ControllerConfiguration, arguments: argparse.Namespace) -> ControllerConfiguration:
    """The configuration with the values of flags, which override the file and are checked like its values."""
    overrides = {
        field: value
        for field in ("namespace", "listen", "log_level", "log_format")
        if (value := getattr(arguments, field)) is not None
    }
    if getattr(arguments, "leader_elect", None) is not None:
        overrides["leader_election"] = msgspec.structs.replace(config.leader_election, enabled=arguments.leader_elect)
    changed = msgspec.structs.replace(config, **overrides)
    changed.validate()
    return changed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controller", description="Programs of netaware in the cluster.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    manager = commands.add_parser(
        "manager", help="run the controllers of NetworkTopologies, AppGroups, scheduling, descheduling and traffic"
    )
    _add_common(manager)
    manager.add_argument(
        "--leader-elect", action=argparse.BooleanOptionalAction, default=None, help="take part in the leader election"
    )
    extender = commands.add_parser("extender", help="answer kube-scheduler's filter and prioritize requests")
    _add_common(extender)
    extender.add_argument("--metrics-listen", metavar="HOST:PORT", help="also serve metrics and health checks here")
    webhook = commands.add_parser("webhook", help="gate pods on clusters before Kubernetes 1.36")
    webhook.add_argument(
        "--certificate-dir", metavar="DIR", type=Path, required=True, help="directory with tls.crt and tls.key"
    )
    webhook.add_argument("--listen", metavar="HOST:PORT", default=":9443", help="where to serve (default :9443)")
    webhook.add_argument("--log-level", choices=logs.LEVELS)
    webhook.add_argument("--log-format", choices=logs.FORMATS)
    certificate = commands.add_parser(
        "webhook-certificate", help="print the webhook's certificate and configuration, for kubectl apply"
    )
    certificate.add_argument(
        "--namespace", default=NETAWARE_NAMESPACE, help="namespace of netaware (default netaware-system)"
    )
    certificate.add_argument("--days", type=_days, default=3650, help="days of validity (default 3650)")
    opener = commands.add_parser(
        "gate-opener",
        help="open scheduling gates that no controller opened within scheduler.gates.maxWaitS and 30 s more",
    )
    _add_common(opener)
    opener.add_argument(
        "--all", action="store_true", help="open all gates immediately, also those of new pods: for an uninstall"
    )
    check = commands.add_parser("check-config", help="check a configuration file and exit")
    check.add_argument("file", metavar="FILE")
    return parser


def _days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MAX_DAYS}")
    return int(text)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", help="file with a ControllerConfiguration, see docs/configuration.md"
    )
    parser.add_argument(
        "--credentials",
        metavar="DIR",
        help="directory with server, ca.crt and token (default: the pod's ServiceAccount)",
    )
    parser.add_argument("--namespace", help="namespace of netaware (default netaware-system)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="where to serve (manager 0.0.0.0:9851, extender 127.0.0.1:9876, gate-opener 127.0.0.1:9853)",
    )
    parser.add_argument("--log-level", choices=logs.LEVELS)
    parser.add_argument("--log-format", choices=logs.FORMATS)


if __name__ == "__main__":
    sys.exit(main())
