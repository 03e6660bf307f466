"""Writes docs/configuration.md, docs/metrics.md and the table of conditions in docs/descheduling.md from the code.

    python docs/generate.py           writes them
    python docs/generate.py --check   writes nothing; exit code 1 if one of them is not current

Settings come from the structs of the configuration files and from the agent's flags. Metrics come from the registries of the programs,
which are started without a cluster, and from constructors in the source, for families that appear only with a value.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import gc
import importlib
import inspect
import logging
import re
import sys
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kubekit.settings import YEAR_S, Range  # noqa: E402 - this script stands outside of the packages

PACKAGES = ("kubekit", "netperf", "agent", "controller")
STRICT = """\
Every field has a default. An unknown field, a wrong type or a value out of range ends the program at start with
exit code 2 and a line that names the field; `python -m controller check-config FILE` checks a file without a cluster.
"""
ONE_FILE = """\
One YAML file for both, given with `--config`; in the shipped manifests it is the ConfigMap `netaware-controller-config`, made
from `manifests/base/controller/config.yaml`. Flags override the file: `--namespace`, `--listen`, `--log-level`, `--log-format`
and, for the manager, `--[no-]leader-elect`.

```yaml
apiVersion: netaware.io/v1alpha1
kind: ControllerConfiguration
```
"""
AGENT_FLAGS = """\
Flags of `python -m agent run`. Each overrides an environment variable: `NETAWARE_` and its name in capitals, such as `NETAWARE_LOG_LEVEL`;
`NODE_NAME` for `--node-name`, `POD_NAMESPACE` for `--namespace`.
"""
CAPACITIES = """\
Capacities, in bits per second, of nodes whose hardware does not report its speed, such as virtual machines. The first selector that matches a
node's labels counts, then its instance type.
"""
CAPACITIES_EXAMPLE = """\
```yaml
apiVersion: netaware.io/v1alpha1
kind: AgentConfiguration
capacityByNode:
  - {selector: pool=edge, capacity: 1G}
capacityByInstanceType:
  n2-standard-8: 16G
```
"""
SERVED = """\
Served at `/metrics` in Prometheus' text format or OpenMetrics. Units are seconds, bytes, bytes per second and ratios from 0 to 1. Groups of labels are abbreviated:
*pair* is `origin_zone, destination_zone, origin_region, destination_region`; *limit* is `namespace, pod, direction`; *path* is `topology, level, origin, destination`.
"""
NOTICE = "<!-- Written by docs/generate.py from the code. -->\n"


# --- settings --------------------------------------------------------------------------------------------------------


def attributes_of(struct: type) -> dict[str, str]:
    """Name of a field -> its meaning in the docstring of the struct, or of the structs that the docstring refers to."""
    text = inspect.cleandoc(struct.__doc__ or "")
    inherited: dict[str, str] = {}
    for module, name in re.findall(r"see `([a-z_.]+)\.([A-Za-z]+)`", text):
        referred = getattr(importlib.import_module(module), name)
        for part in (*(field.type for field in msgspec.structs.fields(referred) if is_struct(field.type)), referred):
            inherited |= attributes_of(part)
    meanings = _attributes_in(struct, text.splitlines())
    return inherited | {name: _in_camel_case(text.replace("``", "`"), struct) for name, text in meanings.items()}


def _in_camel_case(text: str, struct: type) -> str:
    """A meaning in which fields are spelt as in YAML."""
    for field in msgspec.structs.fields(struct):
        if "_" in field.name:
            text = re.sub(rf"\b{field.name}\b", field.encode_name, text)
    return text


def _attributes_in(struct: type, lines: list[str]) -> dict[str, str]:
    """Name -> text of the section ``Attributes:``. ``a, b: text`` is for both; ``; c: text`` within a text is for c."""
    if "Attributes:" not in lines:
        return {}
    flat = " ".join(line.strip() if line.startswith("     ") else f"; {line.strip()}" for line in lines)
    names = "|".join(field.name for field in msgspec.structs.fields(struct))
    parts = re.split(rf"[;.]* *;? ((?:(?:{names}), )*(?:{names})): ", flat.partition("Attributes:")[2])
    return {
        name: text.strip(" ;.") for key, text in zip(parts[1::2], parts[2::2], strict=True) for name in key.split(", ")
    }


def is_struct(kind: object) -> bool:
    """Whether the type is a msgspec struct."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def element_of(kind: object) -> type | None:
    """The struct that a list or tuple holds."""
    if typing.get_origin(kind) in {list, tuple}:
        return next((part for part in typing.get_args(kind) if is_struct(part)), None)
    return None


def type_name(kind: Any) -> str:
    """A type as a user reads it."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        limits = [m for m in parts[1:] if isinstance(m, msgspec.Meta)]
        bounds = [re.sub(rf"(\S+) to {YEAR_S}$", r"≥ \1", str(m)) for m in parts[1:] if isinstance(m, Range)] + [
            f"{sign} {getattr(m, name)}" for m in limits for name, sign in _BOUNDS if getattr(m, name) is not None
        ]
        return ", ".join([*([type_name(parts[0])] if parts[0] is not float or not bounds else []), *bounds])
    if origin is typing.Literal:
        return ", ".join(f"`{part}`" if part else "empty" for part in parts)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(type_name(part) for part in parts)
    if origin in {list, tuple}:
        return f"list of {type_name(parts[0])}"
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return f"map of {type_name(parts[1])}"
    return _PLAIN.get(kind, "section" if is_struct(kind) else str(getattr(kind, "__name__", kind)))


_PLAIN: dict[Any, str] = {
    bool: "bool",
    int: "int",
    float: "number",
    str: "string",
    type(None): "null",
    Any: "anything",
}
_HEADER = ("api_version", "kind")
"""Shown in the examples."""
_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"), ("min_length", "length ≥"), ("max_length", "length ≤"))


def default_text(field: msgspec.structs.FieldInfo) -> str:
    """The default in YAML, or "required"."""
    if field.default is not msgspec.NODEFAULT:
        return f"`{_as_yaml(field.default)}`"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{_as_yaml(field.default_factory())}`"
    return "required"


def _as_yaml(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def rows_of(struct: type, path: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Field as a dotted path, type, default and meaning."""
    texts = attributes_of(struct)
    for field in msgspec.structs.fields(struct):
        if field.name in _HEADER and not path:
            continue
        name = f"{path}{field.encode_name}"
        inner = element_of(field.type)
        if is_struct(field.type):
            yield from rows_of(field.type, f"{name}.")
        elif inner is not None:
            yield f"`{name}`", "list", _short(default_text(field)), texts.get(field.name, "")
            yield from rows_of(inner, f"{name}[].")
        else:
            yield f"`{name}`", type_name(field.type), _short(default_text(field)), texts.get(field.name, "")


def _short(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else f"{text[: limit // 3]}...`"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join('---' for _ in heads)}|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def section_rows(struct: type) -> Iterator[tuple[str, str, str]]:
    """Heading, first line of the docstring and table of every section of the controller's file, in order."""
    plain = []
    for field in msgspec.structs.fields(struct):
        if is_struct(field.type):
            first = inspect.cleandoc(field.type.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
            rows = list(rows_of(field.type, f"{field.encode_name}."))
            yield field.encode_name, first, table(("field", "type", "default", "meaning"), rows)
        else:
            texts = attributes_of(struct)
            row = (f"`{field.encode_name}`", type_name(field.type), default_text(field), texts.get(field.name, ""))
            if field.name not in _HEADER:
                plain.append(row)
    yield "", "", table(("field", "type", "default", "meaning"), plain)


def flag_rows() -> list[tuple[str, str, str]]:
    """The agent's flags: name, default, meaning."""
    from agent.config import add_flags

    parser = argparse.ArgumentParser()
    add_flags(parser, {})
    rows = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of what was declared
        if action.dest == "help":
            continue
        help_ = (action.help or "").replace("%%", "%")
        meaning = re.sub(r"\s*\(\$[^()]*(\([^()]*\)[^()]*)*\)$", "", help_)
        default = "" if action.default in {None, ""} else f"`{action.default}`".replace("%%", "%")
        rows.append((f"`{action.option_strings[0]}`", default, meaning))
    return rows


def configuration() -> str:
    """docs/configuration.md."""
    from agent.config import _ConfigFile
    from controller.config import ControllerConfiguration
    from netperf.policy import CostPolicy

    parts = [
        "# Configuration\n",
        NOTICE,
        STRICT,
        "## Controller and extender\n",
        ONE_FILE,
    ]
    sections = list(section_rows(ControllerConfiguration))
    parts.append(sections[-1][2])
    for name, first, rows in sections[:-1]:
        parts += [f"### {name}\n", f"{first}\n", rows]
    parts += [
        "### topology.costPolicy, and spec.costPolicy of a NetworkTopology\n",
        f"{inspect.cleandoc(CostPolicy.__doc__ or '').split(chr(10) * 2)[0].replace('``', '`')}\n",
        table(("field", "type", "default", "meaning"), list(rows_of(CostPolicy))),
        "## Agent\n",
        AGENT_FLAGS,
        table(("flag", "default", "meaning"), flag_rows()),
        "### The file of `--config`\n",
        CAPACITIES,
        table(("field", "type", "default", "meaning"), list(rows_of(_ConfigFile))),
        CAPACITIES_EXAMPLE,
    ]
    return "\n".join(parts)


# --- metrics ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Family:
    """One metric family."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


_CONSTRUCTORS = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
    "SummaryMetricFamily": "summary",
}


def families_of_source(packages: Sequence[str]) -> dict[str, Family]:
    """Name -> family that is constructed with a literal name in the source; labels are evaluated in their module."""
    families: dict[str, Family] = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CONSTRUCTORS:
                    family = _family_of(node, module)
                    if family is not None:
                        families[family.name] = family
    return families


def _family_of(call: ast.Call, module: str) -> Family | None:
    assert isinstance(call.func, ast.Name)
    texts = [argument.value for argument in call.args[:2] if isinstance(argument, ast.Constant)]
    if len(texts) < 2 or not str(texts[0]).startswith("netaware_"):
        return None
    given = next((k.value for k in call.keywords if k.arg in {"labels", "labelnames"}), None)
    if given is None and len(call.args) > 2 and isinstance(call.args[2], ast.List | ast.Tuple):
        given = call.args[2]
    labels: tuple[str, ...] = ()
    if given is not None:
        scope = vars(importlib.import_module(module))
        labels = tuple(eval(compile(ast.Expression(given), module, "eval"), dict(scope)))
    kind = _CONSTRUCTORS[call.func.id]
    return Family(_full_name(str(texts[0]), kind), kind, labels, str(texts[1]))


def _full_name(name: str, kind: str) -> str:
    """As Prometheus stores it."""
    return f"{name.removesuffix('_total')}_total" if kind == "counter" else name


def families_of_registry(registry: CollectorRegistry) -> dict[str, Family]:
    """Name -> family of a program's registry."""
    families: dict[str, Family] = {}
    for collector in list(registry._collector_to_names):  # noqa: SLF001 - the public interface hides empty labels
        label_names = getattr(collector, "_labelnames", None)
        for family in collector.collect():
            if family.name.startswith("netaware_"):
                labels = tuple(label_names if label_names is not None else getattr(family, "_labelnames", ()))
                name = _full_name(family.name, family.type)
                families[name] = Family(name, family.type, labels, family.documentation)
    return families


def registry_of_manager() -> CollectorRegistry:
    """The controller's registry, made without a cluster."""
    from controller.config import ControllerConfiguration
    from controller.manager import Manager
    from kubekit.client import Client
    from kubekit.config import ClusterConfig

    registry = CollectorRegistry()
    Manager(Client(ClusterConfig("http://127.0.0.1:1")), ControllerConfiguration(), registry)
    return registry


def registry_of_agent() -> CollectorRegistry:
    """The agent's registry; the agent is started without a cluster, for which it waits."""
    from agent.config import add_flags, read_config
    from agent.program import run_agent

    parser = argparse.ArgumentParser()
    add_flags(parser, {})
    before = {id(registry) for registry in _registries()}

    async def start() -> CollectorRegistry:
        task = asyncio.create_task(run_agent(config))
        await asyncio.sleep(0.3)
        if task.done():
            task.result()
        registry = next(registry for registry in _registries() if id(registry) not in before)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return registry

    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "server").write_text("http://127.0.0.1:1")
            flags = ["--node-name=docs", "--listen=127.0.0.1:0", "--address=127.0.0.1", "--traffic=conntrack"]
            config = read_config(parser.parse_args([*flags, f"--credentials={folder}"]))
            return asyncio.run(start())
    finally:
        logging.disable(logging.NOTSET)


def _registries() -> list[CollectorRegistry]:
    return [thing for thing in gc.get_objects() if isinstance(thing, CollectorRegistry)]


def metrics() -> str:
    """docs/metrics.md."""
    from controller.scheduler.metrics import ExtenderMetrics

    extender = CollectorRegistry()
    ExtenderMetrics(extender)
    shared = families_of_source(["kubekit"])
    agent = families_of_source(["agent"]) | families_of_registry(registry_of_agent())
    extender_families = families_of_registry(extender)
    everything = families_of_source(["controller"]) | families_of_registry(registry_of_manager())
    controller = {name: family for name, family in everything.items() if name not in extender_families}
    programs = (
        ("Agent", "Each node, port 9850.", {n: f for n, f in agent.items() if n not in shared}),
        ("Controller", "Each replica, port 9851; many metrics have values on the leader only.", controller),
        ("Extender", "Each replica of the scheduler.", extender_families),
        ("All programs", "Beside these, the usual `process_` and `python_` families.", shared),
    )
    parts = [
        "# Metrics\n",
        NOTICE,
        SERVED,
    ]
    for title, where, families in programs:
        rows = [
            (f"`{f.name}`", f.kind, _label_text(f.labels), f.meaning)
            for f in sorted(families.values())
            if title == "All programs" or f.name not in shared
        ]
        parts += [f"## {title}\n", f"{where}\n", table(("metric", "type", "labels", "meaning"), rows)]
    return "\n".join(parts)


def _label_text(labels: tuple[str, ...]) -> str:
    """Labels for the table; a group of `_LABEL_GROUPS` is abbreviated to its name."""
    group = next((name for name, of in _LABEL_GROUPS.items() if labels[: len(of)] == of), "")
    others = labels[len(_LABEL_GROUPS[group]) :] if group else labels
    return ", ".join(filter(None, (f"*{group}*" if group else "", f"`{', '.join(others)}`" if others else "")))


_LABEL_GROUPS: dict[str, tuple[str, ...]] = {
    "pair": ("origin_zone", "destination_zone", "origin_region", "destination_region"),
    "limit": ("namespace", "pod", "direction"),
    "path": ("topology", "level", "origin", "destination"),
}


def descheduling() -> str:
    """docs/descheduling.md with the table of conditions."""
    from controller.descheduler.conditions import ALL_STRATEGIES, CONDITIONS

    whole = (ROOT / "docs" / "descheduling.md").read_text()
    begin, end = "<!-- begin: conditions, by docs/generate.py -->\n", "<!-- end: conditions -->"
    rows = [
        (f"`{c.name}`", c.requires, ", ".join(f"`{s}`" for s in sorted(c.strategies) if c.strategies != ALL_STRATEGIES))
        for c in CONDITIONS
    ]
    before, after = whole.partition(begin)[0], whole.partition(end)[2]
    return f"{before}{begin}{table(('condition', 'requires', 'only of'), rows)}{end}{after}"


def main() -> int:
    """Write the documents, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    only_check = parser.parse_args().check
    stale = 0
    pages = {"configuration.md": configuration(), "metrics.md": metrics(), "descheduling.md": descheduling()}
    for name, text in pages.items():
        path = ROOT / "docs" / name
        if path.exists() and path.read_text() == text:
            continue
        if only_check:
            print(f"docs/{name} is not current: run python docs/generate.py", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text)
            print(f"wrote docs/{name}")
    return stale


if __name__ == "__main__":
    sys.exit(main())
