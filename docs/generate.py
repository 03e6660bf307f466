"""Writes docs/configuration.md, docs/metrics.md and the table of conditions in docs/descheduling.md from the code.

    python docs/generate.py           writes them
    python docs/generate.py --check   writes nothing; exit code 1 if one of them is not current

Settings come from the structs of the configuration files and from the agent's flags; metrics come from metric_families.py.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import metric_families  # noqa: E402 - after the change of sys.path

from kubekit.settings import YEAR_S, Range  # noqa: E402

_FILE_RULES = """\
An unknown field, a wrong type or a value out of range ends the program at start with
exit code 2 and a line that names the field; `python -m controller check-config FILE` checks a file without a cluster.
Values with `≥` have an upper limit of 1,000,000 or, for times, a year.
"""
_CONTROLLER_FILE = """\
One YAML file for both, given with `--config`; in the shipped manifests it is the ConfigMap `netaware-controller-config`, made
from `manifests/base/controller/config.yaml`. Flags override the file: `--namespace`, `--listen`, `--log-level`, `--log-format`
and, for the controller, `--[no-]leader-elect`.

```yaml
apiVersion: netaware.io/v1alpha1
kind: ControllerConfiguration
```
"""
_AGENT_FLAGS = """\
Flags of `python -m agent run`. Each overrides an environment variable: `NETAWARE_` and its name in capitals, such as
`NETAWARE_LOG_LEVEL`; `NODE_NAME` for `--node-name`, `POD_NAMESPACE` for `--namespace`. `--cleanup` is for
[uninstalling](install.md#uninstall).
"""
_AGENT_FILE = """\
Capacities, in bits per second, of nodes whose hardware does not report its speed, such as virtual machines. The first selector
that matches a node's labels counts, then its instance type.
"""
_AGENT_FILE_EXAMPLE = """\
```yaml
apiVersion: netaware.io/v1alpha1
kind: AgentConfiguration
capacityByNode:
  - {selector: pool=edge, capacity: 1G}
capacityByInstanceType:
  n2-standard-8: 16G
```
"""
_METRICS_RULES = """\
Served at `/metrics` in Prometheus' text format or OpenMetrics. Units are seconds, bytes, bytes per second and ratios from 0 to 1.
Groups of labels are abbreviated: *pair* is `origin_zone, destination_zone, origin_region, destination_region`;
*limit* is `namespace, pod, direction`; *path* is `topology, level, origin, destination`.
"""
_NOTICE = "<!-- Written by docs/generate.py from the code. -->\n"


def read_field_meanings(struct: type) -> dict[str, str]:
    """Return field -> its meaning in the docstring of the struct, or of a struct to which the docstring refers by "see"."""
    text = inspect.cleandoc(struct.__doc__ or "")
    referred_meanings: dict[str, str] = {}
    for module, name in re.findall(r"see `([a-z_.]+)\.([A-Za-z]+)`", text):
        referred = getattr(importlib.import_module(module), name)
        for part in (*(field.type for field in msgspec.structs.fields(referred) if is_struct(field.type)), referred):
            referred_meanings |= read_field_meanings(part)
    meanings = _parse_attributes(struct, text.splitlines())
    return referred_meanings | {
        name: _spell_as_in_yaml(text.replace("``", "`"), struct) for name, text in meanings.items()
    }


def _spell_as_in_yaml(text: str, struct: type) -> str:
    """Return a meaning in which fields are spelt as in YAML."""
    for field in msgspec.structs.fields(struct):
        if "_" in field.name:
            text = re.sub(rf"\b{field.name}\b", field.encode_name, text)
    return text


def _parse_attributes(struct: type, lines: list[str]) -> dict[str, str]:
    """Return field -> text of the section ``Attributes:``, in which ``a, b: text; c: text`` describes three fields."""
    if "Attributes:" not in lines:
        return {}
    section = " ".join(line.strip() if line.startswith("     ") else f"; {line.strip()}" for line in lines)
    names = "|".join(field.name for field in msgspec.structs.fields(struct))
    parts = re.split(rf"[;.]* *;? ((?:(?:{names}), )*(?:{names})): ", section.partition("Attributes:")[2])
    return {
        name: text.strip(" ;.") for key, text in zip(parts[1::2], parts[2::2], strict=True) for name in key.split(", ")
    }


def is_struct(kind: object) -> bool:
    """Whether the type is a msgspec struct."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def find_element_struct(kind: object) -> type | None:
    """Return the struct that a list or tuple holds; None for other types."""
    if typing.get_origin(kind) in {list, tuple}:
        return next((part for part in typing.get_args(kind) if is_struct(part)), None)
    return None


def format_type(kind: Any) -> str:
    """Return a type in the words of the documents."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        limits = [m for m in parts[1:] if isinstance(m, msgspec.Meta)]
        bounds = [
            re.sub(rf"(\S+) to (?:{YEAR_S}|1000000)$", r"≥ \1", str(m)) for m in parts[1:] if isinstance(m, Range)
        ] + [f"{sign} {getattr(m, name)}" for m in limits for name, sign in _BOUNDS if getattr(m, name) is not None]
        names = [format_type(parts[0])] if parts[0] is not float or not bounds else []
        return re.sub(r"≥ (\S+), ≤ (\S+)", r"\1 to \2", ", ".join([*names, *bounds]))
    if origin is typing.Literal:
        return ", ".join(f"`{part}`" if part else "empty" for part in parts)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(format_type(part) for part in parts)
    if origin in {list, tuple}:
        return f"list of {format_type(parts[0])}"
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return "map" if parts[1] is Any else f"map of {format_type(parts[1])}"
    return _TYPE_NAMES.get(kind, "section" if is_struct(kind) else str(getattr(kind, "__name__", kind)))


_FIELD_HEADINGS = ("field", "type", "default", "meaning")
_TYPE_NAMES: dict[Any, str] = {
    bool: "bool",
    int: "int",
    float: "number",
    str: "string",
    type(None): "null",
    Any: "anything",
}
_HEADER_FIELDS = ("api_version", "kind")
"""Fields that the examples show."""
_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"), ("min_length", "length ≥"), ("max_length", "length ≤"))


def format_default(field: msgspec.structs.FieldInfo) -> str:
    """Return the default in YAML, or "required"."""
    if field.default is not msgspec.NODEFAULT:
        return f"`{_encode_yaml(field.default)}`"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{_encode_yaml(field.default_factory())}`"
    return "required"


def _encode_yaml(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def build_field_rows(struct: type, path: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield dotted path, type, default and meaning of each field."""
    meanings = read_field_meanings(struct)
    for field in msgspec.structs.fields(struct):
        if field.name in _HEADER_FIELDS and not path:
            continue
        name = f"{path}{field.encode_name}"
        element = find_element_struct(field.type)
        if is_struct(field.type):
            yield from build_field_rows(field.type, f"{name}.")
        elif element is not None:
            yield f"`{name}`", "list", _shorten(format_default(field)), meanings.get(field.name, "")
            yield from build_field_rows(element, f"{name}[].")
        else:
            yield f"`{name}`", format_type(field.type), _shorten(format_default(field)), meanings.get(field.name, "")


def _shorten(default: str, limit: int = 48) -> str:
    """Replace a long string by "a query"; lists stay whole."""
    return "a query" if len(default) > limit and default.startswith('`"') else default


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(headings)} |", f"|{'|'.join('---' for _ in headings)}|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def build_section_parts(struct: type) -> list[str]:
    """Return the table of fields outside of sections; then heading, introduction and table of each section."""
    plain_rows, parts = [], []
    for field in msgspec.structs.fields(struct):
        if is_struct(field.type):
            rows = list(build_field_rows(field.type, f"{field.encode_name}."))
            parts += [
                f"### {field.encode_name}\n",
                _read_first_paragraph(field.type),
                format_table(_FIELD_HEADINGS, rows),
            ]
        elif field.name not in _HEADER_FIELDS:
            meaning = read_field_meanings(struct).get(field.name, "")
            plain_rows.append((f"`{field.encode_name}`", format_type(field.type), format_default(field), meaning))
    return [format_table(_FIELD_HEADINGS, plain_rows), *parts]


def _read_first_paragraph(struct: type) -> str:
    """Return the first paragraph of a struct's docstring as a line of Markdown."""
    return inspect.cleandoc(struct.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`") + "\n"


def build_flag_rows() -> list[tuple[str, str, str]]:
    """Return name, default and meaning of the agent's flags."""
    from agent.config import add_flags

    parser = argparse.ArgumentParser()
    add_flags(parser, {})
    rows = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of what was declared
        if action.dest == "help":
            continue
        help_text = (action.help or "").replace("%%", "%")
        meaning = re.sub(r"\s*\(\$[^()]*(\([^()]*\)[^()]*)*\)$", "", help_text)
        default = "" if action.default in {None, ""} else f"`{action.default}`".replace("%%", "%")
        rows.append((f"`{action.option_strings[0]}`", default, meaning))
    return rows


def build_configuration_page() -> str:
    """Return the text of docs/configuration.md."""
    from agent.config import _ConfigFile
    from controller.config import ControllerConfiguration
    from netperf.policy import CostPolicy

    parts = [
        "# Configuration\n",
        _NOTICE,
        _FILE_RULES,
        "## Controller and extender\n",
        _CONTROLLER_FILE,
        *build_section_parts(ControllerConfiguration),
        "### topology.costPolicy, and spec.costPolicy of a NetworkTopology\n",
        _read_first_paragraph(CostPolicy),
        format_table(_FIELD_HEADINGS, list(build_field_rows(CostPolicy))),
        "## Agent\n",
        _AGENT_FLAGS,
        format_table(("flag", "default", "meaning"), build_flag_rows()),
        "### The file of `--config`\n",
        _AGENT_FILE,
        format_table(_FIELD_HEADINGS, list(build_field_rows(_ConfigFile))),
        _AGENT_FILE_EXAMPLE,
    ]
    return "\n".join(parts)


def build_metrics_page() -> str:
    """Return the text of docs/metrics.md."""
    collect, find = metric_families.collect_families, metric_families.find_source_families
    shared = find(["kubekit"])
    agent = find(["agent"]) | collect(metric_families.build_agent_registry())
    extender = collect(metric_families.build_extender_registry())
    controller = find(["controller"]) | collect(metric_families.build_controller_registry())
    programs = (
        ("Agent", "Each node, port 9850.", agent, set(shared)),
        (
            "Controller",
            "Each replica, port 9851; many metrics have values on the leader only.",
            controller,
            set(extender | shared),
        ),
        ("Extender", "Each replica of the scheduler, port 9852.", extender, set(shared)),
        (
            "All programs",
            "Also of the gate opener (port 9853); and the usual `process_` and `python_` families.",
            shared,
            set[str](),
        ),
    )
    parts = ["# Metrics\n", _NOTICE, _METRICS_RULES]
    for title, introduction, families, listed_elsewhere in programs:
        rows = [
            (f"`{family.name}`", family.kind, _format_labels(family.labels), family.meaning)
            for family in sorted(families.values())
            if family.name not in listed_elsewhere
        ]
        parts += [f"## {title}\n", f"{introduction}\n", format_table(("metric", "type", "labels", "meaning"), rows)]
    return "\n".join(parts)


def _format_labels(labels: tuple[str, ...]) -> str:
    """Return labels for the table, with the first ones abbreviated if they are a group of `_LABEL_GROUPS`."""
    group = next((name for name, members in _LABEL_GROUPS.items() if labels[: len(members)] == members), "")
    others = labels[len(_LABEL_GROUPS[group]) :] if group else labels
    return ", ".join(filter(None, (f"*{group}*" if group else "", f"`{', '.join(others)}`" if others else "")))


_LABEL_GROUPS: dict[str, tuple[str, ...]] = {
    "pair": ("origin_zone", "destination_zone", "origin_region", "destination_region"),
    "limit": ("namespace", "pod", "direction"),
    "path": ("topology", "level", "origin", "destination"),
}


def build_descheduling_page() -> str:
    """Return the text of docs/descheduling.md with the current table of conditions."""
    from controller.descheduler.conditions import ALL_STRATEGIES, CONDITIONS

    old_text = (ROOT / "docs" / "descheduling.md").read_text()
    begin, end = "<!-- begin: conditions, by docs/generate.py -->\n", "<!-- end: conditions -->"
    rows = [
        (
            f"`{c.name}`",
            c.check.__doc__ or "",
            ", ".join(f"`{s}`" for s in sorted(c.strategies) if c.strategies != ALL_STRATEGIES),
        )
        for c in CONDITIONS
    ]
    before, after = old_text.partition(begin)[0], old_text.partition(end)[2]
    return f"{before}{begin}{format_table(('condition', 'requires', 'only of'), rows)}{end}{after}"


def main() -> int:
    """Write the documents, or compare them with the code; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    only_check = parser.parse_args().check
    exit_code = 0
    pages = {
        "configuration.md": build_configuration_page(),
        "metrics.md": build_metrics_page(),
        "descheduling.md": build_descheduling_page(),
    }
    for name, text in pages.items():
        path = ROOT / "docs" / name
        if path.exists() and path.read_text() == text:
            continue
        if only_check:
            print(f"docs/{name} is not current: run python docs/generate.py", file=sys.stderr)
            exit_code = 1
        else:
            path.write_text(text)
            print(f"wrote docs/{name}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
