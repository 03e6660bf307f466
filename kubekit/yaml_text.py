"""YAML read strictly. Imported where there is YAML to read: PyYAML is a megabyte that most agents need for nothing."""

from __future__ import annotations

from typing import Any

import yaml


class NotYamlError(ValueError):
    """The text is no YAML; says where and why."""


def parse(text: str) -> Any:
    """What a YAML text holds.

    Raises:
        NotYamlError: it is none, or a key is there twice.
    """
    try:
        return yaml.load(text, Loader=_UniqueKeys)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise NotYamlError(_problem(error)) from error


class _UniqueKeys(yaml.SafeLoader):
    """YAML says that keys are unique, PyYAML takes the last of two: a copied line would win unseen."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the field {key.value} is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    text = str(getattr(error, "problem", None) or error)
    return f"line {mark.line + 1}: {text}" if mark else text
