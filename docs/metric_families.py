"""Collects the metric families of our programs for docs/generate.py.

They come from the programs' registries, built without a cluster, and from constructors in the source, because some families appear in
a registry only with a value.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from kubekit.client import Client
from kubekit.config import ClusterConfig

ROOT = Path(__file__).resolve().parents[1]
_NO_CLUSTER = ClusterConfig("http://127.0.0.1:1")


@dataclass(frozen=True, order=True)
class Family:
    """A metric family.

    Attributes:
        name: name in Prometheus; that of a counter ends in ``_total``.
        kind: ``counter``, ``gauge``, ``histogram`` or ``summary``.
        labels: names of its labels.
        meaning: its help text.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


_CONSTRUCTOR = re.compile(r"(Counter|Gauge|Histogram|Summary)(MetricFamily)?\Z")


def find_source_families(packages: Sequence[str]) -> dict[str, Family]:
    """Return name -> family that the packages' source constructs with a literal name."""
    families: dict[str, Family] = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _CONSTRUCTOR.match(node.func.id):
                    family = _read_constructor(node, module)
                    if family is not None:
                        families[family.name] = family
    return families


def _read_constructor(call: ast.Call, module: str) -> Family | None:
    """Return the family that a call constructs, with labels evaluated in the module; None if it has no name of ours."""
    assert isinstance(call.func, ast.Name)
    texts = [argument.value for argument in call.args[:2] if isinstance(argument, ast.Constant)]
    if len(texts) < 2 or not str(texts[0]).startswith("netaware_"):
        return None
    label_argument = next((k.value for k in call.keywords if k.arg in {"labels", "labelnames"}), None)
    if label_argument is None and len(call.args) > 2 and isinstance(call.args[2], ast.List | ast.Tuple):
        label_argument = call.args[2]
    labels: tuple[str, ...] = ()
    if label_argument is not None:
        scope = vars(importlib.import_module(module))
        labels = tuple(eval(compile(ast.Expression(label_argument), module, "eval"), dict(scope)))
    kind = call.func.id.removesuffix("MetricFamily").lower()
    return Family(_full_name(str(texts[0]), kind), kind, labels, str(texts[1]))


def _full_name(name: str, kind: str) -> str:
    """Return the name under which Prometheus stores the family."""
    return f"{name.removesuffix('_total')}_total" if kind == "counter" else name


def collect_families(registry: CollectorRegistry) -> dict[str, Family]:
    """Return name -> family of a registry."""
    families: dict[str, Family] = {}
    for collector in list(registry._collector_to_names):  # noqa: SLF001 - the public interface hides empty labels
        label_names = getattr(collector, "_labelnames", None)
        for family in collector.collect():
            if family.name.startswith("netaware_"):
                labels = tuple(label_names if label_names is not None else getattr(family, "_labelnames", ()))
                name = _full_name(family.name, family.type)
                families[name] = Family(name, family.type, labels, family.documentation)
    return families


def build_controller_registry() -> CollectorRegistry:
    """Return the registry of the controller, which is not started."""
    from controller.config import ControllerConfiguration
    from controller.manager import Manager

    registry = CollectorRegistry()
    Manager(Client(_NO_CLUSTER), ControllerConfiguration(), registry)
    return registry


def build_extender_registry() -> CollectorRegistry:
    """Return the registry of the extender, which is not started."""
    from controller.scheduler.metrics import ExtenderMetrics

    registry = CollectorRegistry()
    ExtenderMetrics(registry)
    return registry


def build_agent_registry() -> CollectorRegistry:
    """Return the registry of the agent, which is not started."""
    from agent.config import add_flags, read_config
    from agent.program import _AgentParts

    parser = argparse.ArgumentParser()
    add_flags(parser, {})
    flags = parser.parse_args(["--node-name=docs", "--address=127.0.0.1", "--traffic=conntrack"])
    parts = _AgentParts(Client(_NO_CLUSTER), read_config(flags))
    for task in parts.tasks.values():
        task.close()
    return parts.registry
